//! The core under valgrind: `scripts/instructions` counts the instructions of each case, and compares them with the
//! record.
//!
//! `instructions CASE ROUNDS` runs a case for the given rounds after a warm-up: [`measured`] is what callgrind
//! collects. It prints the number of lines or round trips, their time, and the scanner's instruction set.

#[allow(dead_code)]
mod core;

use std::time::{Duration, Instant};

use core::{Core, Lines, answer, call, modern_call, progress, request, update};
use stdio_bus::bus::settings::{MAX_CONNECTIONS, ToolRules};
use stdio_bus::scan::Scanner;

/// The number of clients, and of lines in one read, in cases with many.
const MANY: usize = 64;
/// Warm-up rounds, in which tables grow and sessions are created.
const WARM_UP: usize = 20;

/// The lines of clients and the worker in one round.
struct Case {
    core: Core,
    clients: Vec<(usize, Lines)>,
    worker: Vec<Lines>,
    /// Round trips, or lines of the worker, per round.
    each: usize,
    /// All clients use one id, so those of all but the first are replaced: the next id that the bus makes.
    makes: Option<usize>,
}

impl Case {
    fn named(name: &str) -> Option<Self> {
        let session = |client: usize| format!("session-{client}");
        let id = |number: usize| 10_000 + number;
        Some(match name {
            // Every client sends one request, and is answered.
            "64x1" => Self {
                core: Core::new(MANY, 1),
                clients: (0..MANY).map(|at| (at, Lines::new([request(id(at), &session(at))]))).collect(),
                worker: (0..MANY).map(|at| Lines::new([answer(id(at))])).collect(),
                each: MANY,
                makes: None,
            },
            // The same while the tables are almost full: 1,024 clients with a session each, 3,968 unanswered requests.
            "full" => {
                let mut core = Core::new(MAX_CONNECTIONS, 1);
                for client in 0..MAX_CONNECTIONS {
                    let held = if client < MANY { 2 } else { 4 };
                    let held = (0..held).map(|at| request(100_000 + 4 * client + at, &session(client)));
                    core.client(client, &Lines::new(held));
                }
                Self { core, ..Self::named("64x1")? }
            }
            // One client sends many requests at once, which are answered at once.
            "1x64" => Self {
                core: Core::new(1, 1),
                clients: vec![(0, Lines::new((0..MANY).map(|at| request(id(at), &session(0)))))],
                worker: vec![Lines::new((0..MANY).map(|at| answer(id(at))))],
                each: MANY,
                makes: None,
            },
            // Every client sends a call with the same id, and is answered.
            "replaced" => Self {
                core: Core::new(MANY, 1),
                clients: (0..MANY).map(|at| (at, Lines::new([call(id(0), false)]))).collect(),
                worker: Vec::new(),
                each: MANY,
                makes: Some(2_000_000_000),
            },
            // Every client sends a call without a session, and is answered; the same with MCP 2026-07-28; the same with
            // progress tokens, and one progress notification each; the same in a pool with rules for tools.
            "calls" | "modern" | "progress" | "rules" => {
                let has_token = name == "progress";
                let asks = |id| if name == "modern" { modern_call(id) } else { call(id, has_token) };
                let progresses = (0..MANY).filter(|_| has_token).map(|at| Lines::new([progress(id(at))]));
                let denied = if name == "rules" { vec!["delete_*".to_owned(), "shell".to_owned()] } else { Vec::new() };
                Self {
                    core: Core::with_rules(MANY, 1, ToolRules { deny: denied, ..ToolRules::default() }),
                    clients: (0..MANY).map(|at| (at, Lines::new([asks(id(at))]))).collect(),
                    worker: progresses.chain((0..MANY).map(|at| Lines::new([answer(id(at))]))).collect(),
                    each: MANY,
                    makes: None,
                }
            }
            // A worker sends one line to every client at once.
            "tokens" => {
                let mut core = Core::new(MANY, 1);
                for client in 0..MANY {
                    core.client(client, &Lines::new([request(id(client), &session(client))]));
                }
                Self {
                    core,
                    clients: Vec::new(),
                    worker: vec![Lines::new((0..MANY).map(|at| update(&session(at))))],
                    each: MANY,
                    makes: None,
                }
            }
            _ => return None,
        })
    }

    fn round(&mut self) {
        for (client, lines) in &self.clients {
            self.core.client(*client, lines);
        }
        for lines in &self.worker {
            self.core.worker(0, lines);
        }
        if let Some(made) = &mut self.makes {
            let ids = std::iter::once(10_000).chain(*made..*made + MANY - 1);
            *made += MANY - 1;
            let answers: Vec<Lines> = ids.map(|id| Lines::new([answer(id)])).collect();
            answers.iter().for_each(|answer| self.core.worker(0, answer));
        }
    }
}

/// The measured part.
#[inline(never)]
fn measured(case: &mut Case, rounds: usize) -> Duration {
    let began = Instant::now();
    for _ in 0..rounds {
        case.round();
    }
    began.elapsed()
}

fn main() {
    // Cargo adds `--bench`.
    let mut given = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let case = given.next().and_then(|name| Case::named(&name));
    let rounds = given.next().and_then(|rounds| rounds.parse::<usize>().ok());
    let (Some(mut case), Some(rounds)) = (case, rounds) else {
        eprintln!(
            "usage: instructions 64x1|full|1x64|calls|replaced|modern|progress|rules|tokens ROUNDS; scripts/instructions counts it"
        );
        return;
    };
    for _ in 0..WARM_UP {
        case.round();
    }
    let took = measured(&mut case, rounds);
    let done = rounds * case.each;
    println!("{done} {} {:?}", took.as_nanos(), Scanner::new().set());
}
