//! The shell: the only part that calls the kernel. It moves bytes and makes no decisions; the core's effects say what
//! to do.
//!
//! It has two halves, so that the core cannot be called while its effects are carried out: the core, and the reactor
//! (`reactor.rs`), which owns everything that is open. `turn.rs` has the loop between them.
//!
//! State is at the bottom, operations on it are above. State, owned by the reactor: `connections.rs` is the table of
//! all connections. What moves their bytes is in `transport.rs`, with `inbox.rs` and `outbox.rs`; above it
//! `protocol.rs` says what they speak: lines, WebSocket (`websocket.rs`, `websocket_output.rs`) or HTTP (`http/exchange.rs`).
//! `endpoint.rs` and `stderr.rs` are what is known of a peer of the core. Besides, `connection_counts.rs`,
//! `listeners.rs`, `memory_pressure.rs`, `stdio.rs`, `timers.rs`. Operations: `accept.rs` accepts connections,
//! `life.rs` has their lives in order, whatever they speak; those of peers of the core are read in `read.rs`, written
//! in `write.rs` and closed in `close.rs`; `eviction.rs` chooses which of them is evicted when there is no room,
//! `handshakes` handles PROXY headers and WebSocket requests, `http` requests, `websocket_control.rs` WebSocket control frames,
//! `liveness.rs` failed networks, `workers` processes, `reload` changed configurations and tokens, `memory.rs` memory
//! pressure, and `effects.rs` carries out the core's effects, on what `receivers.rs` finds for the peer that they name.
//!
//! A connection with more lines than its share of a turn is queued behind the others. A turn never waits for more than
//! one completion: what came meanwhile is taken with it (docs/performance.md says what waiting for more would cost).

mod accept;
mod access;
pub(crate) mod admin;
mod clock;
mod close;
mod connection_counts;
mod connections;
pub(crate) mod descriptors;
mod effects;
mod endpoint;
mod eviction;
mod exit_watchdog;
mod handshakes;
mod http;
mod inbox;
mod inherited;
mod life;
pub(crate) mod listen;
mod listeners;
mod liveness;
mod log;
mod log_file;
mod log_line;
mod loop_handle;
mod memory;
mod memory_pressure;
mod notify;
mod operation;
mod outbox;
mod peer_origin;
mod persistence;
mod program_pages;
mod protocol;
mod reactor;
mod read;
mod receivers;
mod recycle;
pub mod reload;
mod request_lines;
mod signals;
#[cfg(test)]
mod simulation;
mod startup;
mod stderr;
mod stdio;
mod timers;
mod transport;
mod turn;
mod websocket;
mod websocket_control;
mod websocket_output;
mod workers;
mod write;
mod write_stdio;

use crate::config::{Config, LogFormat};
use crate::error::{StartError, exit};
use crate::io::Io;
use crate::io::kernel::{Choice, Kernel};
use startup::StartupContext;
use turn::Unflushed;

/// Runs the daemon until it has drained, and returns the exit code: failure if output was lost that a reader may miss, or
/// the last state.
///
/// # Errors
/// Anything that prevents the start; at run time, only a failure of the ring itself.
pub fn run(config: Config, source: reload::Source, choice: Choice) -> Result<u8, StartError> {
    let file = config.log.file.as_deref();
    let taken = file.map(log_file::opened).transpose().and_then(log_file::take);
    log::install(&config.log);
    if let (Err(source), Some(file)) = (taken, file) {
        return Err(StartError::LogFile { path: file.to_owned(), source });
    }
    exit_watchdog::limit_panic();
    let mut left = Unflushed::default();
    let result = StartupContext::prepare(&config).and_then(|context| {
        let kernel = Kernel::open(choice, config.usual_workers())?;
        let context = match &kernel {
            Kernel::Ring(_) => context,
            Kernel::Epoll(_, why) => context.without_ring(why.as_ref()),
        };
        operate(kernel, context, config, source, &mut left)
    });
    // Shutdown signals have no effect from here on.
    exit_watchdog::limit(result.as_ref().map_or_else(StartError::exit_code, |()| exit::FAILURE));
    let log_is_complete = !left.log_in_flight && log::flush(&mut left.log);
    let has_lost_nothing = left.unwritten == 0 && log_is_complete && !left.has_lost_state;
    result.map(|()| if has_lost_nothing { exit::OK } else { exit::FAILURE })
}

/// Why the daemon does not run, in the format of its log.
pub fn last_line(error: &StartError, format: LogFormat) -> Vec<u8> {
    log::set_format(format);
    log::last_line(error)
}

/// Stderr as it was at the start, if the log has a file: whoever started the daemon looks there for its final messages.
pub fn stderr_before() -> Option<std::fs::File> {
    log_file::before()
}

/// The daemon's life, from start to end.
fn operate(
    io: Kernel,
    context: StartupContext,
    config: Config,
    source: reload::Source,
    left: &mut Unflushed,
) -> Result<(), StartError> {
    let name = io.name();
    let mut shell = startup::start(io, context, config, source)?;
    program_pages::give_back();
    let served = shell.serve();
    *left = shell.finish();
    served.map_err(StartError::io(&format!("use {}", name)))
}
