//! The command line of the benchmark.

use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
usage: cargo bench --bench throughput -- [options] [words]

  words               run only the cases whose names contain one of them; =NAME is the case NAME
  --quick             short rounds, and fewer of them: a minute, and another one for the attacks of fairness
  --list              name the cases
  --rounds N          rounds for each case and contestant
  --one-cpu           daemon, workers and clients on one CPU, always
  --two-cpus          the daemon on a CPU of its own, always
  --seconds N         length of a round
  --without-relay     leave the floor out
  --with-admin        the daemon twice more, with an admin listener: unasked, and scraped each second
  --websocket         instead of all that: cases over WebSocket beside TCP, idle, handshakes, and gateways from npm
  --record FILE       write the table and the figures to FILE.md and FILE.json too

STDIO_BUS_PEER=PATH   another stdio_bus to measure in the same run
STDIO_BUS=PATH        measure this daemon instead of the one just built";

/// See the top of the file.
pub struct Options {
    /// Names to look for; none means all.
    words: Vec<String>,
    /// Rounds for each case and contestant.
    pub rounds: usize,
    /// How long one round is measured.
    pub round: Duration,
    /// How long the load runs before it is measured.
    pub warm_up: Duration,
    /// Everything on one CPU or not, if it is not for the case to say.
    pub one_cpu: Option<bool>,
    /// Whether the floor takes part.
    pub relay: bool,
    /// Whether the daemon with an admin listener takes part.
    pub with_admin: bool,
    /// Whether WebSocket is what is measured.
    pub websocket: bool,
    /// Whether this run is short.
    pub quick: bool,
    /// Where to keep the results, without the extension.
    pub record: Option<PathBuf>,
    /// The daemon.
    pub bus: PathBuf,
    /// The other daemon.
    pub peer: Option<PathBuf>,
}

impl Options {
    /// Reads the arguments; cargo adds `--bench`.
    ///
    /// # Errors
    /// What to print instead of running.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            words: Vec::new(),
            rounds: 7,
            round: Duration::from_millis(1000),
            warm_up: Duration::from_millis(150),
            one_cpu: None,
            relay: true,
            with_admin: false,
            websocket: false,
            quick: false,
            record: None,
            bus: std::env::var_os("STDIO_BUS").map_or_else(|| env!("CARGO_BIN_EXE_stdio_bus").into(), PathBuf::from),
            peer: std::env::var_os("STDIO_BUS_PEER").map(PathBuf::from),
        };
        let (mut arguments, mut list) = (arguments, false);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| HELP.to_owned());
            match argument.as_str() {
                "--bench" => {}
                "--quick" => {
                    options.quick = true;
                    options.rounds = 3;
                    options.round = Duration::from_millis(80);
                    options.warm_up = Duration::from_millis(20);
                }
                "--rounds" => options.rounds = value()?.parse().map_err(|_| HELP.to_owned())?,
                "--two-cpus" => options.one_cpu = Some(false),
                "--one-cpu" => options.one_cpu = Some(true),
                "--seconds" => {
                    options.round = value()?.parse().map(Duration::from_secs_f64).map_err(|_| HELP.to_owned())?;
                }
                "--without-relay" => options.relay = false,
                "--with-admin" => options.with_admin = true,
                "--record" => options.record = Some(value()?.into()),
                "--websocket" => options.websocket = true,
                "--list" => list = true,
                word if !word.starts_with('-') => options.words.push(word.to_owned()),
                _ => return Err(HELP.to_owned()),
            }
        }
        if list { Err(options.names().join("\n")) } else { Ok(options) }
    }

    /// What there is to run.
    fn names(&self) -> Vec<&'static str> {
        if self.websocket {
            return crate::case::beside_tcp().map(|case| case.name).chain(crate::websocket::PARTS).collect();
        }
        crate::case::all()
            .map(|case| case.name)
            .chain(["fairness"])
            .chain(crate::attacks::all().map(|attack| attack.name))
            .chain(["idle", "admin"])
            .collect()
    }

    /// Whether the case of this name is to run.
    pub fn wants(&self, name: &str) -> bool {
        let means = |word: &String| word.strip_prefix('=').map_or(name.contains(word), |exact| name == exact);
        self.words.is_empty() || self.words.iter().any(means)
    }
}
