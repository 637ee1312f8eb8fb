//! Pools that sleep: what twenty servers in one configuration cost while nobody asks, and while two of them are used, and
//! how long the first answer of one takes. The servers are node's, as many of MCP's are.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::client::{Client, request};
use crate::harness::direct::Direct;
use crate::harness::machine::{Placement, children, proportional};
use crate::harness::measure::{median, progress};
use crate::harness::server::{Contestant, Server};
use crate::scenario::{Goal, Scenario, goals};

const POOLS: usize = 20;
/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is begun by a start or by a first request is over then.
const SETTLES: Duration = Duration::from_secs(2);

/// Answers each request by its id.
const SERVER: &str = r#"
require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id } = JSON.parse(line);
  if (id !== undefined) process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, result: {} }) + "\n");
});
"#;

/// At most this much memory, to that of the two servers that are used.
const MOST_MEMORY: f64 = 1.1;
/// At most this much, to a daemon with a single pool that sleeps.
const MOST_ASLEEP: f64 = 1.05;
/// At most this much, and [`ALLOWANCE`], to the time of a process of one's own.
const MOST_TIME: f64 = 1.05;
/// In milliseconds.
const ALLOWANCE: f64 = 5.0;

/// The only scenario. It needs node.
pub fn scenario() -> Scenario {
    Scenario::new("asleep", |harness| Ok(vec![goals(measure(harness)?)])).on_request()
}

fn server() -> Command {
    let mut command = Command::new("node");
    command.args(["-e", SERVER]);
    command
}

fn pool(at: usize) -> Value {
    json!({ "id": format!("s{at}"), "command": "node", "args": ["-e", SERVER], "instances": 1, "start": "on_demand" })
}

fn start(harness: &Harness, pools: usize) -> io::Result<Server> {
    let pools: Vec<_> = (0..pools).map(pool).collect();
    harness.start(Contestant::Bus, &pools, Transport::Unix, Placement::FREE)
}

/// Sends a request to a pool, and waits for the answer. The milliseconds that it took.
fn ask(server: &Server, pool: usize) -> io::Result<f64> {
    let until = Instant::now() + PATIENCE;
    let mut client = Client::connect(&server.address)?;
    let begun = Instant::now();
    client.ask(1, "m", &format!("s{pool}"), until)?;
    let answer = client.answer(1, until)?;
    match answer.get("result") {
        Some(_) => Ok(begun.elapsed().as_secs_f64() * 1e3),
        None => Err(io::Error::other(format!("a client of a pool that sleeps gets {answer}"))),
    }
}

/// Memory in megabytes.
fn memory(processes: &[u32]) -> io::Result<f64> {
    let bytes = processes.iter().map(|process| proportional(*process)).sum::<io::Result<u64>>()?;
    Ok(bytes as f64 / 1e6)
}

fn measure(harness: &Harness) -> io::Result<Vec<Goal>> {
    let rounds = harness.either(5, 1);
    let [mut one, mut asleep, mut two, mut all] = [const { Vec::new() }; 4];
    let [mut direct, mut woken] = [const { Vec::new() }; 2];
    let mut processes = 0;
    for round in 0..rounds {
        progress(&format!("asleep, round {} of {rounds}", round + 1));
        let single = start(harness, 1)?;
        std::thread::sleep(SETTLES);
        one.push(memory(&[single.process()])?);
        drop(single);
        let daemon = start(harness, POOLS)?;
        std::thread::sleep(SETTLES);
        processes += children(daemon.process()).len();
        asleep.push(memory(&[daemon.process()])?);
        for pool in [3, 7] {
            ask(&daemon, pool)?;
        }
        std::thread::sleep(SETTLES);
        let servers = children(daemon.process());
        two.push(memory(&servers)?);
        all.push(memory(&[&servers[..], &[daemon.process()]].concat())?);
        for pool in 8..POOLS {
            direct.push(directly()?);
            woken.push(ask(&daemon, pool)?);
        }
    }
    progress("");
    let [one, asleep, two, all] = [one, asleep, two, all].map(median);
    let [direct, woken] = [direct, woken].map(median);
    let goal = |what: &str, goal: String, value: String, reached, figures| Goal {
        what: what.to_owned(),
        goal,
        value,
        reached,
        figures,
    };
    Ok(vec![
        goal(
            "twenty servers, nobody asks: their processes",
            "0".to_owned(),
            processes.to_string(),
            processes == 0,
            json!(processes),
        ),
        goal(
            "the same: the daemon's memory, to that of one with a single pool",
            format!("at most {MOST_ASLEEP:.2} ×"),
            format!("{:.2} × ({asleep:.1} MB, {one:.1})", asleep / one),
            asleep <= MOST_ASLEEP * one,
            json!({ "megabytes": asleep, "with_one_pool": one }),
        ),
        goal(
            "two of twenty servers in use: memory of all processes, to that of these two",
            format!("at most {MOST_MEMORY:.2} ×"),
            format!("{:.2} × ({all:.1} MB, {two:.1})", all / two),
            all <= MOST_MEMORY * two,
            json!({ "megabytes": all, "of_the_two": two }),
        ),
        goal(
            "the first answer of a server that sleeps, to a start and a request without the daemon",
            format!("at most {MOST_TIME:.2} × + {ALLOWANCE} ms"),
            format!("{:.2} × ({woken:.0} ms, {direct:.0})", woken / direct),
            woken <= MOST_TIME * direct + ALLOWANCE,
            json!({ "milliseconds": woken, "direct_milliseconds": direct }),
        ),
    ])
}

/// Starts a server, and asks it. The milliseconds until its answer.
fn directly() -> io::Result<f64> {
    let begun = Instant::now();
    let mut server = Direct::start(&mut server())?;
    server.send(&request(1, "m", "bench"))?;
    server.answer()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
