//! What the small worlds (`mcp`, `families`) have in common: the bytes between the bus and each peer, the time, the order
//! in which effects are carried out, and the events that are printed if a seed fails.

use std::time::Duration;

use serde_json::Value;

use crate::Random;
use crate::bus::port::{Effect, Input, Moment, Next, Peer};
use crate::bus::report::Reason;
use crate::scan::{PAD, Window};
use crate::twins::Twins;

/// The bus may ask for a tick so often at one moment.
const MOST_TICKS: usize = 16;

/// The bytes between the bus and one peer.
#[derive(Default)]
pub(crate) struct Wire {
    /// Written by the peer and not consumed.
    pub(crate) written: Vec<u8>,
    pub(crate) paused: bool,
    /// Queued by the bus, but not a whole line yet.
    half: Vec<u8>,
}

impl Wire {
    /// The next whole line that has arrived at the peer.
    pub(crate) fn next_line(&mut self) -> Option<Value> {
        let end = memchr::memchr(b'\n', &self.half)?;
        let line: Vec<u8> = self.half.drain(..=end).collect();
        Some(serde_json::from_slice(&line).expect("the bus writes JSON"))
    }
}

/// What follows once all effects of a call are carried out.
#[derive(Default)]
pub(crate) struct After {
    /// Peers that bytes were sent to; none if a worker is to be checked.
    sent: Vec<(Peer, usize)>,
    resumed: Vec<Peer>,
    /// Clients whose connections are to be closed, by their places.
    pub(crate) closed: Vec<usize>,
}

/// The bus of a small world, its time and its choices.
pub(crate) struct Ground {
    /// Its draws are not those of other worlds.
    seed: u64,
    salt: u64,
    pub(crate) steps: usize,
    /// Its last events are printed if it fails.
    prints: bool,
    /// What finds the test of this world among all.
    test: &'static str,
    /// What else is printed.
    about: String,
    pub(crate) random: Random,
    pub(crate) bus: Twins,
    pub(crate) now: Moment,
    log: Vec<String>,
}

impl Ground {
    /// The world's `random` has drawn what it begins with.
    pub(crate) fn new(
        (seed, salt, steps): (u64, u64, usize),
        prints: bool,
        (test, about): (&'static str, String),
        random: Random,
        bus: Twins,
    ) -> Self {
        Self { seed, salt, steps, prints, test, about, random, bus, now: Moment(1), log: Vec::new() }
    }

    /// A step begins. One more draw in it changes no draw of a later one.
    pub(crate) fn begin_step(&mut self, step: usize) {
        self.random = Random::new(self.seed ^ self.salt ^ (step as u64 + 1) << 40);
    }

    pub(crate) fn note(&mut self, text: String) {
        self.log.push(format!("{:>10.4} {text}", self.now.0 as f64 / 1e9));
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() && self.prints {
            let most = std::env::var("STDIO_BUS_SIM_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(80);
            self.log.iter().rev().take(most).rev().for_each(|line| eprintln!("  {line}"));
            eprint!("{}", self.about);
            let Self { seed, steps, test, .. } = self;
            eprintln!(
                "to repeat it:\n  STDIO_BUS_SIM_SEED={seed} STDIO_BUS_SIM_STEPS={steps} cargo test -p stdio-bus-sim {test}"
            );
        }
    }
}

/// A small world: its peers write and read through these methods alone.
pub(crate) trait SmallWorld {
    fn ground(&mut self) -> &mut Ground;

    fn wire(&mut self, peer: Peer) -> &mut Wire;

    /// Carries out an effect that is not about the bytes between the bus and a peer alone.
    fn one_effect(&mut self, effect: Effect, after: &mut After);

    /// All peers read the whole lines that have arrived.
    fn read_all(&mut self);

    /// The connection of a client is closed, if it is not yet.
    fn close(&mut self, client: usize);

    /// A tick is due now.
    fn on_tick(&mut self) {}

    fn note(&mut self, text: String) {
        self.ground().note(text);
    }

    fn pass(&mut self, duration: Duration) {
        let end = self.ground().now.after(duration);
        let mut ticks = 0;
        while let Some(deadline) = self.ground().bus.view().next_deadline().filter(|deadline| *deadline <= end) {
            let now = self.ground().now;
            ticks = if deadline > now { 1 } else { ticks + 1 };
            self.ground().now = now.max(deadline);
            self.on_tick();
            let ground = self.ground();
            let effects = ground.bus.handle(ground.now, Input::Tick);
            let moves = ground.bus.view().next_deadline().is_none_or(|next| next > ground.now);
            assert!(moves, "a tick moves the next deadline on");
            self.carry_out(effects, &[]);
            // What peers say at once, since they are read again, may be due at once.
            assert!(ticks < MOST_TICKS, "the bus asks for the same moment again and again");
        }
        self.ground().now = end;
    }

    fn handle(&mut self, input: Input) {
        let ground = self.ground();
        let effects = ground.bus.handle(ground.now, input);
        self.carry_out(effects, &[]);
    }

    fn write(&mut self, peer: Peer, line: &Value) {
        self.wire(peer).written.extend_from_slice(format!("{line}\n").as_bytes());
        self.present(peer);
    }

    fn present(&mut self, peer: Peer) {
        while !self.wire(peer).paused && !self.wire(peer).written.is_empty() {
            let mut buffer = vec![0; PAD];
            buffer.extend_from_slice(&self.wire(peer).written);
            let end = buffer.len();
            buffer.resize(end + PAD, 0);
            let window = Window::new(&buffer, PAD, end);
            let ground = self.ground();
            let (received, effects) = ground.bus.receive(ground.now, peer, window);
            self.wire(peer).written.drain(..received.consumed);
            self.carry_out(effects, window.data());
            if received.next != Next::Again {
                return;
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>, data: &[u8]) {
        let mut after = After::default();
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    let bytes = &data[span.start as usize..span.end as usize];
                    self.wire(to).half.extend_from_slice(bytes);
                    after.sent.push((to, bytes.len()));
                }
                Effect::Insert { to, text } => {
                    self.wire(to).half.extend_from_slice(text.as_bytes());
                    after.sent.push((to, text.as_bytes().len()));
                }
                Effect::Pause(peer) => self.wire(peer).paused = true,
                Effect::Resume(peer) => {
                    self.wire(peer).paused = false;
                    after.resumed.push(peer);
                }
                Effect::Probe(worker) => after.sent.push((worker.into(), 0)),
                Effect::Report(report) if !matches!(report.reason, Reason::ClientOpened | Reason::ClientClosed) => {
                    self.note(format!("  reported: {}: {}", report.reason.name(), report.text));
                }
                other => self.one_effect(other, &mut after),
            }
            self.read_all();
        }
        for (peer, bytes) in after.sent {
            match (peer, bytes) {
                (Peer::Worker(worker), 0) => self.handle(Input::UnreadMeasured { worker, bytes: 0 }),
                _ => self.handle(Input::Sent { peer, bytes }),
            }
        }
        for peer in after.resumed {
            self.present(peer);
        }
        for client in after.closed {
            self.close(client);
        }
    }
}
