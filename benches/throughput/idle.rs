//! What the daemon needs while nothing happens: memory and CPU, without clients and with as many as fit, and the time
//! from its start until it listens.

use std::io;
use std::time::Duration;

use crate::case::Transport;
use crate::machine::{self, Placement, Usage};
use crate::options::Options;
use crate::round::median;
use crate::server::{Contestant, Pool, Server};

/// Connections that the daemon takes at once.
const CLIENTS: usize = 1024;

/// What came out, for one contestant.
pub struct Idle {
    /// Who.
    pub who: Contestant,
    /// Milliseconds from the start of the process to the first connection: a median.
    pub start_millis: f64,
    /// Resident bytes without clients.
    pub resident: u64,
    /// How many clients could connect.
    pub clients: usize,
    /// Resident bytes with them.
    pub resident_with_clients: u64,
    /// CPU time with them over the whole wait, in microseconds.
    pub cpu_micros: f64,
    /// How long was waited.
    pub wait: Duration,
}

/// Measures everybody but the relay.
pub fn measure(options: &Options) -> io::Result<Vec<Idle>> {
    let placement = &Placement::choose(true, options);
    let wait = Duration::from_secs(if options.quick { 1 } else { 5 });
    let mut all = Vec::new();
    for who in Contestant::all(options).into_iter().filter(|who| *who != Contestant::Relay) {
        eprint!("\r\x1b[Kidle, {}", who.name());
        let mut starts = Vec::new();
        for _ in 0..if options.quick { 3 } else { 9 } {
            let server = Server::start(who, &[Pool::echo("bench", options, 2)], Transport::Tcp, options, placement)?;
            starts.push(server.started_in.as_secs_f64() * 1e3);
        }
        let server = Server::start(who, &[Pool::echo("bench", options, 2)], Transport::Unix, options, placement)?;
        std::thread::sleep(Duration::from_millis(300));
        let resident = machine::resident(server.process())?;
        let mut clients = Vec::new();
        while clients.len() < CLIENTS {
            let Ok(client) = server.address.connect() else { break };
            clients.push(client);
        }
        // Taking the clients in must be over, log included.
        std::thread::sleep(Duration::from_millis(1500));
        let before = Usage::of(server.process())?;
        std::thread::sleep(wait);
        let used = Usage::of(server.process())?.since(before);
        all.push(Idle {
            who,
            start_millis: median(starts),
            resident,
            clients: clients.len(),
            resident_with_clients: machine::resident(server.process())?,
            cpu_micros: used.cpu_nanos as f64 / 1e3,
            wait,
        });
    }
    eprint!("\r\x1b[K");
    Ok(all)
}
