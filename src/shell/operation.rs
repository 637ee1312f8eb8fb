//! What a submission was for. With the slot of its connection it makes the token that its completion brings back.

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    Accept = 1,
    Read,
    Receive,
    Write,
    Watch,
    ReadStderr,
    /// The rest of the stderr of a worker that has gone.
    ReadRestOfStderr,
    Children,
    Stop,
    Log,
    /// What a connection that is no client yet waits for.
    Handshake,
    AdminReceive,
    AdminSend,
    /// A file of tokens was read again.
    Reread,
    /// SIGHUP has come.
    Hangup,
    /// Another configuration is prepared.
    Reload,
    /// Workers hold more memory than they may.
    Memories,
    HttpReceive,
    HttpSend,
    /// The other side of a connection of the door for MCP leaves.
    HttpWatch,
}

impl Operation {
    pub(super) fn token(self, slot: usize) -> u64 {
        (self as u64) << 32 | slot as u64
    }

    /// What was submitted with this token, and the slot.
    pub(super) fn of(token: u64) -> Option<(Self, usize)> {
        let operation = match token >> 32 {
            1 => Self::Accept,
            2 => Self::Read,
            3 => Self::Receive,
            4 => Self::Write,
            5 => Self::Watch,
            6 => Self::ReadStderr,
            7 => Self::ReadRestOfStderr,
            8 => Self::Children,
            9 => Self::Stop,
            10 => Self::Log,
            11 => Self::Handshake,
            12 => Self::AdminReceive,
            13 => Self::AdminSend,
            14 => Self::Reread,
            15 => Self::Hangup,
            16 => Self::Reload,
            17 => Self::Memories,
            18 => Self::HttpReceive,
            19 => Self::HttpSend,
            20 => Self::HttpWatch,
            _ => return None,
        };
        Some((operation, token as u32 as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_brings_back_what_it_was_made_from() {
        use Operation as O;
        let all = [O::Accept, O::Read, O::Receive, O::Write, O::Watch, O::ReadStderr, O::ReadRestOfStderr, O::Children];
        let others = [
            O::Stop,
            O::Log,
            O::Handshake,
            O::AdminReceive,
            O::AdminSend,
            O::Reread,
            O::Hangup,
            O::Reload,
            O::Memories,
        ];
        let of_http = [O::HttpReceive, O::HttpSend, O::HttpWatch];
        for operation in all.into_iter().chain(others).chain(of_http) {
            assert_eq!(Operation::of(operation.token(77)), Some((operation, 77)));
        }
        assert_eq!((Operation::of(0), Operation::of(21 << 32)), (None, None));
    }
}
