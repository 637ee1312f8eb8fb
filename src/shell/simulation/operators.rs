//! The operators of the simulation.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::lines::{Pulled, pull, push};
use crate::testing::Random;

/// The operators' requests.
pub(super) const QUESTIONS: [&str; 7] = [
    "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /status.json HTTP/1.0\r\n\r\n",
    "GET /clients.json HTTP/1.1\r\nHost: a\r\n\r\nGET /pending.json HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "HEAD /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /restart-worker?worker=p/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
    "{\"jsonrpc\":\"2.0\"}\n",
];

/// A client of the admin listener: sends requests, reads a little, or nothing, and leaves at any time.
pub(super) struct Operator {
    pub(super) end: Option<OwnedFd>,
    pub(super) asks: VecDeque<u8>,
    pub(super) came: Vec<u8>,
}

impl Operator {
    /// Does one step. False if there was nothing to do.
    pub(super) fn acts(&mut self, random: &mut Random, asks: bool) -> bool {
        let Some(end) = &self.end else { return false };
        match random.range(0..20) {
            0 if asks => {
                self.end = None;
                true
            }
            1..4 if asks && self.asks.len() < 10_000 => {
                self.asks.extend(random.pick(&QUESTIONS).bytes());
                true
            }
            4..10 => push(end, &mut self.asks, random.range(1..300)) > 0,
            _ => {
                let pulled = pull(end, &mut self.came, random.range(1..20_000));
                assert!(self.came.len() < 9 || self.came.starts_with(b"HTTP/1.1 "), "an answer is HTTP");
                if pulled == Pulled::End {
                    self.end = None;
                }
                pulled != Pulled::Nothing
            }
        }
    }
}
