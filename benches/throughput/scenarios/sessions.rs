//! A thousand MCP sessions on one shared worker, each with an open stream: the daemon's memory, and the number of
//! processes.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::machine::{self, Placement};
use crate::harness::measure::progress;
use crate::harness::post::{self, Caller};
use crate::harness::request::{call, set_id};
use crate::harness::server::Contestant;
use crate::scenario::{Goal, Scenario, goals};

const SESSIONS: usize = 1000;
/// Length of a call.
const CALL: usize = 100;
/// The daemon's memory limit with them, in MB.
const MEMORY: f64 = 40.0;

/// The only scenario.
pub fn scenario() -> Scenario {
    Scenario::new("a thousand sessions", |harness| {
        let reached = measure(harness)?;
        progress("");
        Ok(vec![goals(vec![reached])])
    })
}

fn measure(harness: &Harness) -> io::Result<Goal> {
    progress("a thousand sessions");
    let transport = Transport::Http;
    let pools = [harness.tools("bench", 1, CALL)];
    let server = harness.start(Contestant::Http, &pools, transport, Placement::choose(false))?;
    let port = server.address.port()?;
    let before = machine::resident(server.process())? as f64 / 1e6;
    let streams = (0..SESSIONS).map(|number| {
        let mut stream = TcpStream::from(server.address.connect()?);
        let caller = Caller::begin(&mut stream, port, false)?;
        let mut call = call(CALL, false);
        set_id(&mut call, number, 0);
        post::ask(&mut stream, &caller.request(port, call.trim_ascii_end()))?.message()?;
        stream.write_all(caller.stream(port).as_bytes())?;
        let count = stream.read(&mut [0; 4096])?;
        if count > 0 { Ok(stream) } else { Err(io::Error::other("no stream was opened")) }
    });
    let streams = streams.collect::<io::Result<Vec<TcpStream>>>()?;
    let megabytes = machine::resident(server.process())? as f64 / 1e6;
    let workers = server.workers().len();
    Ok(Goal {
        what: format!("{} sessions, each with its stream: memory of the daemon", streams.len()),
        goal: format!("below {MEMORY:.0} MB, one worker"),
        value: format!("{megabytes:.1} MB ({before:.1} before), {workers} workers"),
        reached: megabytes < MEMORY && workers == 1,
        figures: json!({ "sessions": SESSIONS, "megabytes": megabytes, "before": before, "workers": workers }),
    })
}
