//! What few requests have beside them: names that are no numbers, and what stood in the line where the answerer sees
//! another name.

use super::id::Id;
use super::peer::{SessionKey, Text};

/// See the top of the file.
#[derive(Default)]
pub(super) struct Rare {
    /// The wire id, if it is no number.
    pub wire: Option<Id>,
    /// The id as its asker wrote it, where it is not the wire id, or is spelled in another way.
    pub original: Option<Original>,
    /// The session in its params, where that is another one than the one that decided its way.
    pub second_session: Option<SessionKey>,
    /// The token that its progress is told under, where that is another one than its id on either side.
    pub progress: Option<Progress>,
}

/// The id as its asker wrote it.
pub(super) struct Original {
    pub id: Id,
    pub token: Text,
    /// The answerer sees another id.
    pub is_replaced: bool,
}

/// A progress token.
pub(super) struct Progress {
    /// What the answerer sees; none if that is the wire id.
    pub wire: Option<Id>,
    /// What its asker has written, where the answerer sees another one.
    pub original: Option<Text>,
}
