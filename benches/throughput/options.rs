//! The command line of the benchmark.

use std::path::PathBuf;
use std::time::Duration;

use crate::harness::Harness;

const HELP: &str = "\
usage: cargo bench --bench throughput -- [options] [words]

  words               run only the cases whose names contain one of them; =NAME is the case NAME
  --quick             short rounds, and fewer of them: a minute, and another one for the attacks of fairness
                      sweep: rates and times by the number of clients, 1 to 1,000; ten minutes
  --list              name the cases
  --rounds N          rounds for each case and contestant
  --seconds N         length of a round
  --without-relay     leave the floor out
  --with-admin        the daemon twice more, with an admin listener: unasked, and scraped each second
  --websocket         instead of all that: cases over WebSocket beside TCP, idle, handshakes
  --http              instead of all that: MCP over HTTP beside TCP, a thousand sessions
  --peers             instead of all that: the same work through what else there is; installs it, ten minutes at most
  --record FILE       write the table and the figures to FILE.md and FILE.json too

STDIO_BUS_PEER=PATH   another stdio_bus to measure in the same run
STDIO_BUS=PATH        measure this daemon instead of the one just built";

/// A group of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The default group: TCP, Unix sockets, and the daemon's operation.
    Usual,
    WebSocket,
    /// MCP over HTTP.
    Http,
    /// Comparison with other servers.
    Peers,
}

pub struct Options {
    /// Names to match; none means all.
    words: Vec<String>,
    /// Only list them.
    pub list: bool,
    /// The group.
    pub door: Door,
    /// Where to write the record, without the extension.
    pub record: Option<PathBuf>,
    /// How and what to measure.
    pub harness: Harness,
}

impl Options {
    /// Reads the arguments; cargo adds `--bench`.
    ///
    /// # Errors
    /// A message to print instead of running.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, &'static str> {
        let harness = Harness {
            rounds: 7,
            round: Duration::from_millis(1000),
            warm_up: Duration::from_millis(150),
            relay: true,
            with_admin: false,
            quick: false,
            bus: std::env::var_os("STDIO_BUS").map_or_else(|| env!("CARGO_BIN_EXE_stdio_bus").into(), PathBuf::from),
            peer: std::env::var_os("STDIO_BUS_PEER").map(PathBuf::from),
        };
        let mut options = Self { words: Vec::new(), list: false, door: Door::Usual, record: None, harness };
        let harness = &mut options.harness;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(HELP);
            match argument.as_str() {
                "--bench" => {}
                "--quick" => {
                    harness.quick = true;
                    harness.rounds = 3;
                    harness.round = Duration::from_millis(80);
                    harness.warm_up = Duration::from_millis(20);
                }
                "--rounds" => harness.rounds = value()?.parse().map_err(|_| HELP)?,
                "--seconds" => harness.round = value()?.parse().map(Duration::from_secs_f64).map_err(|_| HELP)?,
                "--without-relay" => harness.relay = false,
                "--with-admin" => harness.with_admin = true,
                "--record" => options.record = Some(value()?.into()),
                "--websocket" => options.door = Door::WebSocket,
                "--http" => options.door = Door::Http,
                "--peers" => {
                    options.door = Door::Peers;
                    harness.rounds = harness.rounds.min(5);
                    harness.round = harness.round.min(Duration::from_millis(600));
                }
                "--list" => options.list = true,
                word if !word.starts_with('-') => options.words.push(word.to_owned()),
                _ => return Err(HELP),
            }
        }
        Ok(options)
    }

    /// Whether to run the scenario with this name, which is `on_request` or not.
    pub fn wants(&self, name: &str, on_request: bool) -> bool {
        let means = |word: &String| word.strip_prefix('=').map_or(name.contains(word), |exact| name == exact);
        self.words.is_empty() && !on_request || self.words.iter().any(means)
    }
}
