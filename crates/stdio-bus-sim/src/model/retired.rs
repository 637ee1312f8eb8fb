//! Requests that have left the table, and that their worker may still answer.

/// Number of such ids that are remembered.
const REMEMBERED: usize = 1024;

/// The ids of one worker's requests that have left the table.
#[derive(Default)]
pub(super) struct Retired {
    ids: Vec<String>,
    /// Progress tokens of such requests, if they differ from their ids.
    tokens: Vec<String>,
    /// Their number, once they were too many to be remembered.
    more: usize,
}

impl Retired {
    /// A request leaves the table. Returns whether it is remembered by its id.
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

    /// A request that may be one of them is answered.
    pub(super) fn answered(&mut self, id: &str) {
        self.ids.retain(|retired| retired != id);
        self.more = self.more.saturating_sub(1);
    }

    pub(super) fn has_id(&self, id: &str) -> bool {
        self.ids.iter().any(|retired| retired == id)
    }

    /// Whether progress with this token may still arrive.
    pub(super) fn has_token(&self, token: &str) -> bool {
        self.has_id(token) || self.tokens.iter().any(|retired| retired == token)
    }

    /// Whether an answer with this id may belong to one of them.
    pub(super) fn may_have(&self, id: &str) -> bool {
        self.more > 0 || self.has_id(id)
    }
}
