//! What a connection that speaks HTTP is for: requests of clients, requests of operators, or a handshake. `serve.rs`
//! moves the bytes of all of them, and asks this for what they mean. A further service is a `Purpose`
//! (`connection_counts.rs`), which is counted and has its places, and an implementation of this, which `serve.rs`
//! lists.

use crate::bus::port::Moment;
use crate::http1::{Error, Request, Status};
use crate::io::Io;
use crate::mcp::Fault;
use crate::shell::turn::Shell;

/// See the module documentation.
pub(in crate::shell) trait Service {
    /// Takes the head of a request; `begun` follows it.
    ///
    /// # Errors
    /// It is refused.
    fn head<I: Io>(
        shell: &mut Shell<I>,
        now: Moment,
        slot: usize,
        head: &Request<'_>,
        begun: &[u8],
    ) -> Result<(), Fault>;

    /// Takes a piece of its body.
    ///
    /// # Errors
    /// It is refused.
    fn body<I: Io>(_shell: &mut Shell<I>, _now: Moment, _slot: usize, _data: &[u8]) -> Result<(), Fault> {
        Ok(())
    }

    /// The request is complete.
    fn request<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize);

    /// The refusal of what is no request that can be read.
    fn malformed(error: Error, _longest: usize) -> Fault {
        Fault::new(error.status, error.why)
    }

    /// Refuses a request after which nothing can be read.
    fn fail<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, fault: &Fault);

    /// The request has not come in time.
    fn late<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.fail_http(now, slot, &Fault::new(Status::RequestTimeout, "the request took too long to arrive"));
    }

    /// The connection has ended or failed before a request was complete.
    fn ended<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.reactor.close_http(now, slot);
    }
}
