//! The kinds of submissions. With the slot of its connection, an operation makes up the token of a completion.

macro_rules! operations {
    ($($(#[$says:meta])* $operation:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Operation { $($(#[$says])* $operation,)* }

        /// All operations, in the order of their numbers.
        const ALL: &[Operation] = &[$(Operation::$operation,)*];
    };
}

operations! {
    Accept,
    Read,
    Receive,
    Write,
    /// The peer of a connection has gone or half-closed.
    Watch,
    ReadStderr,
    /// Children have started or died, or threads have sent a message.
    Children,
    Stop,
    Log,
    /// SIGHUP was received.
    Hangup,
}

impl Operation {
    pub(super) fn token(self, slot: usize) -> u64 {
        // 0 is not a token.
        (self as u64 + 1) << 32 | slot as u64
    }

    /// The operation and the slot in a token.
    pub(super) fn of(token: u64) -> Option<(Self, usize)> {
        let number = (token >> 32).checked_sub(1)?;
        Some((*ALL.get(number as usize)?, token as u32 as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips() {
        for operation in ALL {
            assert_eq!(Operation::of(operation.token(77)), Some((*operation, 77)));
        }
        assert_eq!((Operation::of(0), Operation::of((ALL.len() as u64 + 1) << 32)), (None, None));
    }
}
