//! What a client is told of lists that have changed: a line of which it need not get a second one while the first one
//! waits in its output, since it asks for the list only when it has read that.

/// Kinds of lists.
pub(crate) const LISTS: usize = 3;

/// Of each kind how many bytes will have left for a client when it has the newest such line.
#[derive(Default)]
pub(crate) struct ListsTold([u64; LISTS]);

impl ListsTold {
    pub(crate) const NONE: Self = Self([0; LISTS]);

    /// Whether a client of which `left` bytes have left has to be told; then the line will end so many bytes behind them.
    pub(crate) fn is_due(&mut self, list: usize, left: u64, behind: usize) -> bool {
        let is_due = self.0[list] <= left;
        if is_due {
            self.0[list] = left + behind as u64;
        }
        is_due
    }
}
