//! Hashes the results of a world into two numbers: what every peer was delivered and why it was closed, and everything
//! that the bus did. The hashes of all seeds are kept in `traces.txt`, to show which of them a change alters.
//!
//! The wording of errors and reports is not part of them; their reasons are.

use std::collections::BTreeMap;

use super::line::Party;
use crate::bus::port::{Close, Effect, Moment, Next, Peer, Received, Signal};
use crate::bus::report::Report;

/// FNV-1a, which is the same everywhere.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn report(&mut self, report: &Report) {
        self.text(report.reason.name().as_bytes());
        self.number(report.level as u64);
        self.number(report.client.map_or(u64::MAX, u64::from));
        self.number(report.worker.map_or(u64::MAX, |worker| worker.incarnation.into()));
        self.text(report.id.as_deref().unwrap_or_default().as_bytes());
        self.number(report.suppressed);
        if let Some(account) = &report.account {
            self.number(account.lasted.as_nanos() as u64);
            let traffic = account.traffic;
            let lines = [traffic.lines_in, traffic.bytes_in, traffic.lines_out, traffic.bytes_out];
            for number in lines.into_iter().chain([account.answered, account.failed]) {
                self.number(number);
            }
            self.text(account.why.unwrap_or_default().as_bytes());
        }
    }

    /// Bytes with a terminator.
    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.bytes(text);
    }

    fn party(&mut self, party: Party) {
        self.number(match party {
            Party::Client(at) => at as u64,
            Party::Worker(at) => at as u64 | 1 << 63,
        });
    }

    /// Folded to half the bits.
    fn folded(self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

/// The two numbers of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// What every peer was delivered, in order, and how and why it was closed. Deliveries to different peers may swap
    /// places.
    pub delivered: u32,
    /// All effects of the bus, in order, with their times.
    pub effects: u32,
}

#[derive(Default)]
pub struct Trace {
    delivered: BTreeMap<Party, Hash>,
    effects: Hash,
}

impl Trace {
    /// A whole line was queued for a peer; the bus has made it itself, or forwarded it.
    pub fn line(&mut self, to: Party, line: &[u8], is_own: bool) {
        let delivered = self.delivered.entry(to).or_default();
        if !is_own {
            return delivered.text(line);
        }
        without_wording(line).iter().for_each(|part| delivered.text(part));
    }

    /// The result of bytes that the bus received.
    pub fn received(&mut self, received: Received) {
        self.effects.number(received.consumed as u64);
        self.effects.number(match received.next {
            Next::Again => 1,
            Next::Read => 2,
            Next::Wait => 3,
        });
    }

    /// An effect of the bus. `party` maps its peers.
    pub fn effect(&mut self, now: Moment, effect: &Effect, data: &[u8], party: impl Fn(Peer) -> Party) {
        let hash = &mut self.effects;
        hash.number(now.0);
        let mut peer = |kind: u8, peer: Peer| {
            hash.bytes(&[kind]);
            hash.party(party(peer));
        };
        match effect {
            Effect::Copy { to, span } => {
                peer(b'c', *to);
                hash.text(&data[span.start as usize..span.end as usize]);
            }
            Effect::Insert { to, text } => {
                peer(b'i', *to);
                without_wording(text.as_bytes()).iter().for_each(|part| hash.text(part));
            }
            Effect::Pause(paused) => peer(b'p', *paused),
            Effect::Resume(resumed) => peer(b'r', *resumed),
            Effect::CloseStdin(worker) => peer(b'e', (*worker).into()),
            Effect::Probe(worker) => peer(b'u', (*worker).into()),
            Effect::Release(worker) => peer(b'f', (*worker).into()),
            Effect::Signal { worker, signal } => {
                peer(b's', (*worker).into());
                hash.bytes(match signal {
                    Signal::Terminate => b"t",
                    Signal::Kill => b"k",
                });
            }
            Effect::Close { client, how, why } => {
                peer(b'x', (*client).into());
                let client = party((*client).into());
                for hash in [hash, self.delivered.entry(client).or_default()] {
                    hash.text(match how {
                        Close::Refuse => b"refuse",
                        Close::Flush => b"flush",
                        Close::Now => b"now",
                    });
                    hash.text(why.name().as_bytes());
                }
            }
            Effect::Spawn { name, .. } => {
                hash.bytes(b"w");
                for number in [name.pool.index() as u64, name.place as u64, name.incarnation.into()] {
                    hash.number(number);
                }
            }
            Effect::PauseAccept => hash.bytes(b"P"),
            Effect::ResumeAccept => hash.bytes(b"R"),
            Effect::CloseListener(listener) => hash.text(format!("close {}", listener.index()).as_bytes()),
            Effect::OpenListener(listener) => hash.text(format!("open {}", listener.index()).as_bytes()),
            Effect::HoldListener(listener) => hash.text(format!("hold {}", listener.index()).as_bytes()),
            Effect::ReleaseListener(listener) => hash.text(format!("release {}", listener.index()).as_bytes()),
            Effect::LeaveSharedPorts => hash.bytes(b"L"),
            Effect::StopAccept => hash.bytes(b"S"),
            Effect::Discovered { pool } => hash.text(format!("discovered {}", pool.index()).as_bytes()),
            Effect::Report(report) => hash.report(report),
            Effect::BadLine { line, length, .. } => {
                hash.text(b"stray");
                hash.text(line);
                hash.number(*length as u64);
            }
            Effect::Done => hash.bytes(b"D"),
        }
    }

    pub fn hashes(&self) -> Hashes {
        let mut all = Hash::default();
        for (party, delivered) in &self.delivered {
            all.party(*party);
            all.number(delivered.0);
        }
        Hashes { delivered: all.folded(), effects: self.effects.folded() }
    }
}

/// The parts of an error reply before and after its sentence.
fn without_wording(line: &[u8]) -> [&[u8]; 2] {
    const MESSAGE: &[u8] = b"\"error\":{\"code\":";
    let Some(error) = memchr::memmem::find(line, MESSAGE) else { return [line, &[]] };
    let Some(data) = memchr::memmem::rfind(line, b",\"data\":{\"reason\":") else { return [line, &[]] };
    let Some(code) = memchr::memchr(b',', &line[error + MESSAGE.len()..]) else { return [line, &[]] };
    [&line[..error + MESSAGE.len() + code], &line[data..]]
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::bus::reply::{Data, Delivered};
    use crate::{shrink, simulator::World};

    const SEEDS: u64 = 2000;
    /// Number of seeds compared, unless `STDIO_BUS_SIM_SEEDS` says more.
    const USUAL: u64 = 400;
    const STEPS: usize = 250;
    /// Maximum number of seeds named in a failure.
    const NAMED: usize = 12;

    fn file() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/traces.txt")
    }

    /// The hashes of the first seeds.
    fn all(seeds: u64) -> BTreeMap<u64, Hashes> {
        let lived = shrink::run(1..seeds + 1, STEPS, |seed, steps, is_repeated| {
            let world = World::new(seed, steps);
            if is_repeated { world.narrated().traced().0 } else { world.traced().0 }
        });
        (1..).zip(lived).collect()
    }

    fn written(all: &BTreeMap<u64, Hashes>) -> String {
        let mut text =
            String::from("# seed, what its peers are delivered, all effects (CONTRIBUTING.md, \"Traces\")\n");
        for (seed, hashes) in all {
            writeln!(text, "{seed} {:08x} {:08x}", hashes.delivered, hashes.effects).expect("a string takes it");
        }
        text
    }

    fn read() -> BTreeMap<u64, Hashes> {
        let text = std::fs::read_to_string(file()).expect("the traces are in the tree");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let hash = |text: &str| u32::from_str_radix(text, 16).expect("a hash");
        let entry = |line: &str| {
            let [seed, delivered, effects] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
            (seed.parse().expect("a seed"), Hashes { delivered: hash(delivered), effects: hash(effects) })
        };
        lines.map(entry).collect()
    }

    /// Names the seeds that differ in the hash that `of` selects; none if they are the same.
    fn differing(what: &str, all: &BTreeMap<u64, Hashes>, of: impl Fn(&Hashes) -> u32) -> Option<String> {
        let recorded = read();
        let is_new = |(seed, hashes): &(&u64, &Hashes)| recorded.get(seed).map(&of) != Some(of(hashes));
        let seeds: Vec<String> = all.iter().filter(is_new).map(|(seed, _)| seed.to_string()).collect();
        let first = seeds.first()?;
        Some(format!(
            "{what} differs in {} of {} seeds: {}{}\n  to see one of them, here and in the version before:\n    \
             STDIO_BUS_SIM_SEED={first} cargo test -p stdio-bus-sim trace -- --nocapture\n",
            seeds.len(),
            all.len(),
            seeds[..seeds.len().min(NAMED)].join(" "),
            if seeds.len() > NAMED { " …" } else { "" },
        ))
    }

    #[test]
    fn every_seed_has_the_recorded_deliveries_and_effects() {
        let is_set = |name| std::env::var_os(name).is_some();
        if let (Ok(seed), false) = (std::env::var("STDIO_BUS_SIM_SEED"), is_set("STDIO_BUS_SIM_SEEDS")) {
            let seed = seed.parse().expect("STDIO_BUS_SIM_SEED");
            let (hashes, happened) = World::new(seed, STEPS).narrated().traced();
            println!("{}\nseed {seed}: {:08x} {:08x}", happened.join("\n"), hashes.delivered, hashes.effects);
            return;
        }
        let seeds = std::env::var("STDIO_BUS_SIM_SEEDS").map(|text| text.parse().expect("STDIO_BUS_SIM_SEEDS"));
        let is_recorded = is_set("STDIO_BUS_SIM_RECORD");
        let all = all(if is_recorded { SEEDS } else { seeds.map_or(USUAL, |seeds: u64| seeds.min(SEEDS)) });
        if is_recorded {
            return std::fs::write(file(), written(&all)).expect("the traces can be written");
        }
        let differing = [
            differing("what peers are delivered, or why they are closed,", &all, |hashes| hashes.delivered),
            differing("what the bus does, or when,", &all, |hashes| hashes.effects),
        ];
        let differing: String = differing.into_iter().flatten().collect();
        assert!(
            differing.is_empty(),
            "{differing}  if that is meant (CONTRIBUTING.md, \"Traces\"):\n    \
             STDIO_BUS_SIM_RECORD=1 cargo test -p stdio-bus-sim trace\n"
        );
    }

    #[test]
    fn a_trace_does_not_depend_on_the_wording_of_errors() {
        let error = |session: Option<&[u8]>, message: &str| {
            let delivered = Delivered::No;
            let data = Data { reason: "no_worker", cause: None, delivered, lists_revisions: false };
            crate::bus::reply::error(b"7", session, -32010, message, &data)
        };
        let line = |message: &str| error(Some(b"s"), message);
        let hash = |line: &[u8]| {
            let mut trace = Trace::default();
            trace.line(Party::Client(0), line, true);
            trace.hashes()
        };
        assert_eq!(hash(&line("no worker")), hash(&line("a \"data\":{ other, word")));
        let other = error(None, "no worker");
        assert_ne!(hash(&line("no worker")), hash(&other));
    }

    #[test]
    fn deliveries_to_two_peers_may_swap_places() {
        let trace = |order: [usize; 3]| {
            let mut trace = Trace::default();
            let lines = [(Party::Client(0), "a\n"), (Party::Client(0), "b\n"), (Party::Worker(0), "c\n")];
            order.map(|at| lines[at]).into_iter().for_each(|(to, line)| trace.line(to, line.as_bytes(), false));
            trace.hashes()
        };
        assert_eq!(trace([0, 1, 2]), trace([2, 0, 1]));
        assert_ne!(trace([0, 1, 2]), trace([1, 0, 2]));
    }
}
