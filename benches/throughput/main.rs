//! `cargo bench --bench throughput`: the real daemon, with real workers behind real pipes and real clients before
//! real sockets, beside a raw relay (the floor) and, if `STDIO_BUS_PEER` names one, another daemon with the same
//! command line.
//!
//! What counts is the daemon's own CPU time for a round trip, from the scheduler's accounting, and its ratio to the
//! others in the same run: rounds are interleaved, so that whatever else the machine does hits all alike. The medians
//! of the rounds are reported.
//!
//! Reading order: [`case`] is what is measured, [`load`] the clients, [`server`] the processes, [`relay`] the floor,
//! [`worker`] the workers that the daemon has not built in, [`round`] the measuring, [`fairness`], [`attacks`] and
//! [`idle`] the cases that are no race, [`admin`] what looking inside costs, [`web`] and [`websocket`] clients that speak
//! WebSocket and what they cost, [`report`] what comes out.

mod admin;
mod attack;
mod attacks;
mod case;
mod client;
mod fairness;
mod idle;
mod load;
mod machine;
mod options;
mod relay;
mod report;
mod round;
mod server;
mod web;
mod websocket;
mod worker;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let result = match arguments.next().as_deref() {
        Some("be-relay") => relay::run(arguments),
        Some("be-stream-worker") => worker::stream(arguments),
        Some("be-flood-worker") => worker::flood(),
        Some("be-agent-worker") => worker::agent(arguments),
        Some("be-flooder") => fairness::flooder(arguments),
        Some("be-visitors") => websocket::handshakes::visitors(arguments),
        first => match options::Options::parse(first.map(str::to_owned).into_iter().chain(arguments)) {
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

fn bench(options: &options::Options) -> io::Result<()> {
    machine::allow_descriptors()?;
    let mut report = report::Report::new(options);
    report.print_head();
    if options.websocket {
        websocket::measure(options, &mut report)?;
        return report.finish();
    }
    // A fixed number of messages takes its time.
    let in_time = |case: &case::Case| !options.quick || case.total.is_none();
    for case in case::all().filter(|case| options.wants(case.name) && in_time(case)) {
        let rows = round::measure(&case, &server::Contestant::all(options), options)?;
        report.add(&case, rows);
    }
    if options.wants("fairness") {
        report.add_fairness(fairness::measure(options)?);
    }
    for attack in attacks::all().filter(|attack| options.wants(attack.name)) {
        report.add_attack(attack.measure(options)?);
    }
    if options.wants("idle") {
        report.add_idle(idle::measure(options)?);
    }
    if options.wants("admin") {
        report.add_admin(&admin::measure(options)?);
    }
    report.finish()
}
