//! Tests of the benchmark itself: its arguments and its counting. A target of its own, because the benchmark's main
//! function is its harness.

#![allow(dead_code, reason = "the tests call a part of what the benchmark runs")]

mod harness;
mod options;
mod scenario;
mod scenarios;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use stdio_bus::io::ring::Ring;
use stdio_bus_proto::websocket::Role;
use stdio_bus_proto::websocket::frame::{Decoder, FrameEvent, Received};

use harness::install::Installer;
use harness::post::{self, Caller};
use harness::request::{call, request, set_id, tool};
use harness::{machine, relay, talk, web};
use options::{Door, Options};
use scenario::Scenario;

fn options(arguments: &[&str]) -> Result<Options, &'static str> {
    Options::parse(arguments.iter().map(|argument| (*argument).to_owned()))
}

#[test]
fn websocket_is_measured_when_it_is_asked_for() {
    let usual = options(&["--bench"]).map(|options| options.door);
    assert_eq!(usual, Ok(Door::Usual));
    let asked = options(&["--websocket", "=64 x 16", "idle"]).expect("both are words");
    assert!(asked.door == Door::WebSocket && asked.wants("64 x 16", false) && asked.wants("idle", false));
    assert!(!asked.wants("64 x 1", false) && !asked.wants("handshakes", false));
    let all = options(&["--websocket"]).expect("it needs no words");
    for (word, door) in [("--http", Door::Http), ("--peers", Door::Peers)] {
        assert_eq!(options(&[word]).map(|options| options.door), Ok(door));
    }
    assert!(scenarios::websocket().iter().all(|scenario| all.wants(scenario.name, scenario.on_request)));
}

#[test]
fn the_sweep_runs_only_when_it_is_asked_for() {
    let asked = |words: &[&str]| {
        let options = options(words).expect("these are words");
        let wanted = scenarios::all().into_iter().filter(|scenario| options.wants(scenario.name, scenario.on_request));
        wanted.filter(|scenario| scenario.name.starts_with("sweep")).count()
    };
    assert_eq!((asked(&[]), asked(&["sweep"]), asked(&["sweep: TCP"])), (0, 16, 4));
}

#[test]
fn scenarios_are_known_by_their_names() {
    let names = |all: Vec<Scenario>| all.iter().map(|scenario| scenario.name).collect::<Vec<_>>();
    let websocket = names(scenarios::websocket());
    assert_eq!(websocket, ["64 x 1", "64 x 16", "4 x 2, 60 KB", "idle", "handshakes"]);
    let http = names(scenarios::http());
    assert!(http.starts_with(&["a call, 1 x 1", "a call, 16 x 1"]) && http.ends_with(&["a thousand sessions"]));
    let peers = names(scenarios::peers());
    assert!(peers.starts_with(&["TCP, a client"]) && peers.contains(&"MCP, 16 sessions, new connections"));
    let mut all = names(scenarios::all());
    assert!(all.starts_with(&["ping-pong"]) && all.contains(&"reload"));
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn what_is_no_option_is_answered_with_the_usage() {
    for arguments in [&["--web-socket"][..], &["--rounds"], &["--rounds", "many"]] {
        let usage = options(arguments).err().expect("no run");
        assert!(usage.contains("--websocket"), "{usage}");
    }
}

#[test]
fn a_frame_of_a_request_is_that_request_to_a_server() {
    for length in [200, 60 * 1024, 70_000] {
        let request = request(7, length);
        let mut frame = web::frame(&request[..length - 1]);
        assert!(frame.starts_with(&web::head_of_request(length - 1)));
        let size = frame.len();
        frame.push(0);
        let (mut decoder, mut received) = (Decoder::new(Role::Server, u64::MAX), Received::new(&mut frame, size));
        assert!(matches!(decoder.next(&mut received), Some(FrameEvent::Text { is_last: true, .. })));
        assert!(decoder.next(&mut received).is_none());
        assert_eq!(received.lines(), request);
    }
}

#[test]
fn lines_are_found_in_frames_and_pings_are_found() {
    let answer = |text: &str| [&web::head_of_answer(text.len()), text.as_bytes()].concat();
    let sent = [&answer("{}")[..], b"\x89\x01p", &answer("[1]")].concat();
    let mut decoder = Decoder::new(Role::Client, u64::MAX);
    let (mut pings, mut lines) = (Vec::new(), Vec::new());
    for byte in sent {
        let mut bytes = [byte, 0];
        let ping = |payload: &[u8]| pings.push(payload.to_vec());
        lines.extend_from_slice(web::lines(&mut decoder, &mut bytes, 1, ping).expect("nothing is wrong"));
    }
    assert_eq!((lines, pings), (b"{}\n[1]\n".to_vec(), vec![b"p".to_vec()]));
    let mut end = *b"\x88\x02\x03\xe8\0";
    let closed = web::lines(&mut decoder, &mut end, 4, |_| {}).expect_err("there will be no answers");
    assert!(closed.to_string().contains("Close"), "{closed}");
}

#[test]
fn a_server_that_refuses_is_quoted() {
    assert_eq!(web::is_accepted(b"HTTP/1.1 101 Swi", false).ok(), Some(false));
    let refused = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
    let why = web::is_accepted(refused, false).expect_err("403 is no handshake").to_string();
    assert!(why.contains("403") && why.contains("Forbidden"), "{why}");
}

#[test]
fn the_id_of_an_answer_is_found_wherever_it_is() {
    for (line, id) in [
        (&br#"{"jsonrpc":"2.0","id":1000100007,"result":{}}"#[..], Some(1_000_100_007)),
        (br#"{"result":{"text":"id"},"jsonrpc":"2.0","id": 12}"#, Some(12)),
        (br#"{"jsonrpc":"2.0","method":"session/update","sessionId":"sess-0001"}"#, None),
        (br#"{"id":"12"}"#, None),
    ] {
        assert_eq!(talk::id_of(line), id, "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn what_cannot_be_installed_says_why() {
    let nothing = Installer { until: None };
    let why = nothing.system("a-program-that-nobody-has").expect_err("it is not there");
    assert!(why.contains("installs nothing") || why.contains("only root"), "{why}");
    let late = Installer { until: Some(Instant::now()) };
    let why = late.run("sleep", Command::new("sleep").arg("60")).expect_err("its time is over");
    assert!(why.contains("the time for installing is over"), "{why}");
    let until = Some(Instant::now() + Duration::from_secs(60));
    let failing = Installer { until }.run("sh", Command::new("sh").args(["-c", "echo no such package; exit 3"]));
    let why = failing.expect_err("it has failed");
    assert!(why.contains("exit status: 3: no such package"), "{why}");
}

/// A server with fixed responses.
struct Canned<'a>(&'a [u8], Vec<u8>);

impl Read for Canned<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Canned<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_call_has_the_length_that_is_asked_for_and_its_head_says_what_it_calls() {
    for (bytes, is_modern) in [(100, false), (220, true)] {
        let mut call = call(bytes, is_modern);
        set_id(&mut call, 7, 3);
        let message: serde_json::Value = serde_json::from_slice(&call).expect("it is JSON");
        assert_eq!((call.len(), message["method"].as_str()), (bytes, Some("tools/call")));
        assert_eq!(message["params"]["name"], tool(&call));
    }
    let modern = String::from_utf8(Caller::Modern.request(80, &call(220, true))).expect("it is text");
    assert!(modern.contains("Mcp-Method: tools/call\r\nMcp-Name: ee") && modern.contains("Content-Length: 220\r\n"));
}

#[test]
fn answers_of_any_server_are_read_as_json_or_as_events() {
    let ask = |answer: &[u8]| post::ask(&mut Canned(answer, Vec::new()), b"").map(|answer| answer.text);
    let json = [post::head_of_answer(8), b"{\"id\":1}".to_vec()].concat();
    assert_eq!(ask(&json).ok().as_deref(), Some("{\"id\":1}"));
    let events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
        1e\r\nid: 1\ndata: \n\ndata: {\"id\":1}\n\n\r\n0\r\n\r\n";
    assert_eq!(ask(events).ok().as_deref(), Some("{\"id\":1}"));
    let refused = ask(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").expect_err("it is no answer");
    assert!(refused.to_string().contains("404 Not Found"), "{refused}");
}

#[test]
fn what_the_kernel_counts_is_found_by_its_name() {
    let status =
        "Name:\tstdio_bus\nVmRSS:\t    6300 kB\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t4\n";
    assert_eq!(machine::field(status, "VmRSS:"), 6300);
    assert_eq!(machine::field(status, "voluntary_ctxt_switches:"), 17);
    assert_eq!(machine::field(status, "nonvoluntary_ctxt_switches:"), 4);
    assert_eq!(machine::field(status, "Pss:"), 0);
    let own = std::process::id();
    assert!(machine::proportional(own).expect("of this process") <= machine::resident(own).expect("of it, too"));
    assert!(machine::family(own).starts_with(&[own]));
}

#[test]
fn pings_that_come_together_are_a_bunch_and_one_stall_is_none() {
    use scenarios::websocket_idle::usual_bunch;
    assert_eq!(usual_bunch(&[]), 0);
    let even: Vec<u64> = (0..1000).map(|number| number * 30).collect();
    assert_eq!(usual_bunch(&even), 4);
    let stalled: Vec<u64> = even.iter().map(|time| if (5000..6000).contains(time) { 6000 } else { *time }).collect();
    assert_eq!(usual_bunch(&stalled), 4);
    let together: Vec<u64> = (0..1000).collect();
    assert_eq!(usual_bunch(&together), 100);
}

#[test]
fn the_floor_carries_lines_to_a_worker_and_back() {
    if Ring::new().is_err() {
        // Without io_uring there is no relay to measure.
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("floor");
    let line = b"{\"id\":1,\"method\":\"m\"}\n";
    let words = ["answers", &line.len().to_string(), "1", "--unix", path.to_str().expect("text"), "cat"];
    let words = words.map(str::to_owned);
    // It never ends: it is killed with the test process, and its worker ends with its input.
    std::thread::spawn(move || relay::run(words.into_iter()));
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..2 {
        let mut client = loop {
            match UnixStream::connect(&path) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < deadline, "it does not listen: {error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("it is a socket");
        client.write_all(line).expect("it reads");
        let mut answer = vec![0; line.len()];
        client.read_exact(&mut answer).expect("the line comes back");
        assert_eq!(answer, line);
    }
}
