//! What comes of tokens that were read again (`token_files.rs`): who came in by one that is good no more goes.

use std::io;
use std::os::fd::AsRawFd;

use super::operation::Operation;
use super::token_files::{Read, Whose};
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Peer};
use crate::io::{Io, Submission};

impl<I: Io> Shell<I> {
    /// Waits for what is read.
    pub(super) fn arm_rereading(&mut self) {
        let Some(rereading) = &mut self.reactor.rereading else { return };
        let (into, bytes) = (rereading.rung.as_mut_ptr(), rereading.rung.len() as u32);
        let read =
            Submission::Read { from: rereading.bell.as_raw_fd(), into, bytes, registered: None, now_or_never: false };
        // SAFETY: the bytes live as long as the process, and the socket as long as the reactor.
        unsafe { self.reactor.io.submit(read, Operation::Reread.token(0)) };
    }

    /// Something was read.
    pub(super) fn reread(&mut self, now: Moment) {
        let Some(rereading) = &self.reactor.rereading else { return };
        let read: Vec<Read> = rereading.read.try_iter().collect();
        for (whose, content) in read {
            match whose {
                Whose::Listener(listener) => self.take_tokens(now, listener, content),
                Whose::Admin => self.admin.take_token(content),
            }
        }
        self.arm_rereading();
    }

    /// The tokens of a listener are these now: who came in by one that is not among them goes.
    fn take_tokens(&mut self, now: Moment, listener: usize, content: io::Result<Vec<u8>>) {
        let reactor = &mut self.reactor;
        let Some(policy) = reactor.listeners.policy_mut(listener) else { return };
        if !policy.take_tokens(content) {
            return;
        }
        for (_, connection) in reactor.connections.iter() {
            let bearer = connection.web.as_ref().and_then(|web| web.bearer_of(listener));
            if let (Some(bearer), Peer::Client(client)) = (bearer, connection.peer)
                && !policy.knows(bearer)
            {
                reactor.inputs.push_back((now, Input::TokenRemoved(client)));
            }
        }
    }
}
