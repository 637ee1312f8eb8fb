//! `cargo bench --bench throughput`: the real daemon, with real workers on real pipes and real clients on real sockets,
//! beside a raw relay (the floor) and, if `STDIO_BUS_PEER` names one, another daemon with the same command line.
//!
//! The main figure is the daemon's own CPU time per round trip, from the scheduler's accounting, and its ratio to the
//! others in the same run: rounds are interleaved, so that other load on the machine affects all alike. The medians of
//! the rounds are reported.
//!
//! Reading order: [`harness`] has the parts of scenarios; in it [`harness::load`] the clients, [`harness::server`] the
//! processes, [`harness::relay`] the floor, [`harness::race`] the rounds. [`scenarios`] lists what is measured, each in
//! a file of its own, and [`report`] prints the resulting tables.

mod harness;
mod options;
mod report;
mod scenario;
mod scenarios;

use std::io;
use std::process::ExitCode;

use harness::{machine, relay, worker};
use options::{Door, Options};
use report::Report;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let result = match arguments.next().as_deref() {
        Some("be-relay") => relay::run(arguments),
        Some("be-stream-worker") => worker::stream(arguments),
        Some("be-flood-worker") => worker::flood(),
        Some("be-agent-worker") => worker::agent(arguments),
        Some(worker::TOOLS) => worker::tools(arguments),
        Some("be-flooder") => scenarios::fairness::flooder(arguments),
        Some("be-visitors") => scenarios::handshakes::visitors(arguments),
        first => match Options::parse(first.map(str::to_owned).into_iter().chain(arguments)) {
            Ok(options) => bench(&options),
            Err(message) => {
                println!("{message}");
                return ExitCode::from(2);
            }
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("throughput: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> io::Result<()> {
    let scenarios = match options.door {
        Door::Usual => scenarios::all(),
        Door::WebSocket => scenarios::websocket(),
        Door::Http => scenarios::http(),
        Door::Peers => scenarios::peers(),
    };
    if options.list {
        scenarios.iter().for_each(|scenario| println!("{}", scenario.name));
        return Ok(());
    }
    machine::allow_descriptors()?;
    let mut report = Report::new(options);
    for scenario in scenarios.iter().filter(|scenario| options.wants(scenario.name, scenario.on_request)) {
        report.add((scenario.run)(&options.harness)?);
    }
    report.finish()
}
