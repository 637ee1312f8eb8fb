//! The kinds of submissions. With the slot of its connection, an operation makes up the token of a completion.

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
    /// The rest of the stderr of a worker that has ended.
    ReadRestOfStderr,
    Children,
    Stop,
    Log,
    /// A handshake's operation.
    Handshake,
    AdminReceive,
    AdminSend,
    /// A token file was reread.
    Reread,
    /// SIGHUP was received.
    Hangup,
    /// A new configuration was prepared.
    Reload,
    /// Workers use more memory than their limit.
    Memories,
    HttpReceive,
    HttpSend,
    /// The client of an MCP connection has gone or half-closed.
    HttpWatch,
}

impl Operation {
    pub(super) fn token(self, slot: usize) -> u64 {
        (self as u64) << 32 | slot as u64
    }

    /// The operation and the slot in a token.
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
    fn a_token_round_trips() {
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
