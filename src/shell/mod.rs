//! The shell: the only place that calls the kernel. It moves bytes and decides nothing; what to do is said by the
//! core's effects.
//!
//! It has two halves, so that the core cannot be called while its effects are carried out: the core, and the reactor
//! (`reactor.rs`) that holds whatever is open. `turn.rs` has the loop between them.
//!
//! State is below, and what is done with it above. Below: `connection.rs` with `inbox.rs`, `outbox.rs`, `framing.rs`,
//! `websocket.rs` and `stderr.rs`, `listeners.rs`, `handshakes/state.rs`, `budget.rs`, `stdio.rs`, `timers.rs`. The reactor
//! holds that. Above: `read.rs` and `write.rs` move bytes, `accept.rs` takes clients in, `handshakes` those who have to say
//! something first, `frames.rs` is for those who speak WebSocket, `liveness.rs` for networks that have gone, `workers` looks
//! after processes, `memory.rs` after memory, `close.rs` ends what they opened, and `effects.rs` is what the core wants.
//!
//! A connection that brings more lines than fit into its turn goes behind the others; a busy turn may wait for more
//! (`io/batching.rs`).

mod accept;
pub(crate) mod admin;
mod budget;
mod clock;
mod close;
mod connection;
pub(crate) mod descriptors;
mod effects;
mod entry;
mod exit_watchdog;
mod frames;
mod framing;
mod handshakes;
mod http;
mod ids;
mod inbox;
mod inherited;
mod listen;
mod listeners;
mod liveness;
mod log;
mod memory;
mod notify;
mod operation;
mod outbox;
mod outcomes;
mod reactor;
mod read;
mod recycle;
mod reload;
pub mod reloads;
mod request_lines;
mod reread;
mod signals;
#[cfg(test)]
mod simulation;
mod source;
mod startup;
mod stderr;
mod stdio;
mod timers;
mod token_files;
mod turn;
mod websocket;
mod workers;
mod write;
mod write_stdio;

use crate::config::{Config, LogFormat};
use crate::error::{StartError, exit};
use crate::io::Io;
use crate::io::kernel::{Choice, Kernel};
use startup::StartupContext;
use turn::Unflushed;

/// Runs the daemon until it has drained, and returns what the program exits with: failure if something could not be
/// written that somebody may miss.
///
/// # Errors
/// Whatever keeps it from starting; once it runs, only a failure of the ring itself.
pub fn run(config: Config, source: reloads::Source, choice: Choice) -> Result<u8, StartError> {
    log::install(config.log);
    exit_watchdog::limit_those_of_a_panic();
    let mut left = Unflushed::default();
    let result = StartupContext::prepare(&config).and_then(|context| {
        let kernel = Kernel::open(choice, config.max_workers())?;
        let context = match &kernel {
            Kernel::Ring(_) => context,
            Kernel::Epoll(_, why) => context.without_ring(why.as_ref()),
        };
        operate(kernel, context, config, source, &mut left)
    });
    // Signals that ask for the end are not heard any more.
    exit_watchdog::limit(result.as_ref().map_or_else(StartError::exit_code, |()| exit::FAILURE));
    let log_is_complete = !left.log_in_flight && log::flush(&mut left.log);
    result.map(|()| if left.unwritten == 0 && log_is_complete { exit::OK } else { exit::FAILURE })
}

/// Why the daemon does not run, as its log would say it.
pub fn last_line(error: &StartError, format: LogFormat) -> Vec<u8> {
    log::set_format(format);
    log::last_line(error)
}

/// The life of the daemon.
fn operate(
    io: Kernel,
    context: StartupContext,
    config: Config,
    source: reloads::Source,
    left: &mut Unflushed,
) -> Result<(), StartError> {
    let name = io.name();
    let mut shell = startup::start(io, context, config, source)?;
    let served = shell.serve();
    *left = shell.finish();
    served.map_err(StartError::io(&format!("use {}", name)))
}
