//! Requests that have left the table, and that their worker may answer still.

/// So many ids are remembered of what a worker may answer although it has left the table.
const REMEMBERED: usize = 1024;

/// The ids of one worker's requests that have left the table.
#[derive(Default)]
pub(super) struct Retired {
    ids: Vec<String>,
    /// Tokens that the progress of such requests may be told under, if those are not their ids.
    tokens: Vec<String>,
    /// How many there are that were too many to be remembered.
    more: usize,
}

impl Retired {
    /// A request leaves the table. Says whether it is remembered by its id.
    pub(super) fn add(&mut self, id: &str, token: Option<&String>) -> bool {
        self.tokens.extend(token.filter(|token| *token != id).cloned());
        let is_full = self.more > 0 || self.ids.len() == REMEMBERED;
        if is_full {
            self.more += 1 + std::mem::take(&mut self.ids).len();
        } else {
            self.ids.push(id.to_owned());
        }
        !is_full
    }

    /// What may be one of them is answered.
    pub(super) fn answered(&mut self, id: &str) {
        self.ids.retain(|retired| retired != id);
        self.more = self.more.saturating_sub(1);
    }

    pub(super) fn has_id(&self, id: &str) -> bool {
        self.ids.iter().any(|retired| retired == id)
    }

    /// Whether progress may still be told under this.
    pub(super) fn has_token(&self, token: &str) -> bool {
        self.has_id(token) || self.tokens.iter().any(|retired| retired == token)
    }

    /// Whether an answer with this id may be one to them.
    pub(super) fn may_have(&self, id: &str) -> bool {
        self.more > 0 || self.has_id(id)
    }
}
