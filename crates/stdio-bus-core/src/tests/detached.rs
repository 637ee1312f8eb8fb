//! Sessions of MCP listeners whose programs have ended without a word: they give up their workers.

use super::eras::{LEGACY, with_mcp_listener};
use super::*;
use crate::readiness::Readiness;
use crate::settings::Era;

const ASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#;

fn key(client: Peer) -> ClientKey {
    let Peer::Client(client) = client else { panic!("{client:?} is no client") };
    client
}

impl Bench {
    fn session_from(&mut self, address: u8) -> Peer {
        let source = Source::Address([address; 16]);
        let (client, effects) = self.bus.connect_mcp(self.now, 1, source, 0, Era::Legacy);
        let effects = effects.collect();
        self.effects(&[], effects);
        let client = Peer::Client(client.expect("there is room"));
        self.write(client, ASK);
        client
    }

    /// A session from this address that has a worker, and its answer.
    fn served_from(&mut self, address: u8) -> Peer {
        let before = self.workers.clone();
        let session = self.session_from(address);
        self.answer_all(&before);
        assert_eq!(self.read(session).len(), 1, "it is served");
        session
    }

    /// Workers answer what they were asked.
    fn answer_all(&mut self, _before: &[WorkerKey]) {
        for worker in self.workers.clone() {
            for line in self.read(worker.into()) {
                let line: Value = serde_json::from_str(&line).expect("it is JSON");
                if line["method"] == "initialize" {
                    self.write(worker.into(), &format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, line["id"]));
                }
            }
        }
    }

    fn loses_its_connections(&mut self, session: Peer) {
        self.handle(Input::Detached { client: key(session), is_detached: true });
    }

    /// The worker of an ended session ends.
    fn end_workers(&mut self) {
        for worker in self.workers.clone() {
            if !self.signals_to(worker.into()).is_empty() {
                self.exits(worker.into(), Exit::Code(0));
            }
        }
    }

    fn is_full(&self) -> bool {
        matches!(self.bus.view().listener_readiness(1), Some(Readiness::Full(_)))
    }
}

/// A pool of so many workers, one for each session.
fn own(most: usize) -> Bench {
    let pool = Pool { max_instances: most, ..pool(1, Assignment::Dedicated) };
    let settings = with_mcp_listener(pool);
    let mut bench = Bench::new(settings);
    let worker = bench.worker(0);
    let question = bench.read_json(worker);
    bench.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{},{}}}"#, question["id"], LEGACY.expect("an answer")));
    bench.pass(seconds(1));
    bench.end_workers();
    bench.pass(seconds(1));
    bench
}

#[test]
fn a_session_without_a_connection_gives_its_worker_up_after_ten_seconds_and_the_one_that_waits_gets_one() {
    let mut bench = own(2);
    let (first, second) = (bench.served_from(1), bench.served_from(2));
    assert!(bench.is_full());
    bench.loses_its_connections(second);
    bench.pass(seconds(1));
    bench.loses_its_connections(first);
    let newcomer = bench.session_from(3);
    bench.pass(milliseconds(8_900));
    assert_eq!((bench.count(Reason::SessionEvicted), bench.read(newcomer).len()), (0, 0), "it waits");
    assert!(bench.is_full());
    bench.pass(milliseconds(100));
    assert_eq!((bench.count(Reason::SessionEvicted), bench.how_closed(second)), (1, Some(Close::Flush)));
    bench.gone(second);
    bench.end_workers();
    bench.pass(seconds(1));
    bench.answer_all(&[]);
    assert_eq!(bench.read(newcomer).len(), 1, "it is served");
    assert_eq!(bench.how_closed(first), None, "one is enough");
    bench.pass(seconds(1));
    assert!(!bench.is_full(), "another one could be given up");
}

#[test]
fn a_session_with_a_connection_or_a_pending_request_keeps_its_worker() {
    let mut bench = own(2);
    let (first, second) = (bench.served_from(1), bench.served_from(1));
    bench.write(first, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
    bench.loses_its_connections(first);
    bench.loses_its_connections(second);
    bench.pass(seconds(60));
    assert!(!bench.is_full());
    bench.handle(Input::Detached { client: key(second), is_detached: false });
    assert!(bench.is_full());
    let newcomer = bench.session_from(1);
    let (reason, ..) = bench.read_error(newcomer);
    assert_eq!((reason.as_str(), bench.count(Reason::SessionEvicted)), ("no_worker", 0), "it does not wait in vain");
}

#[test]
fn a_session_that_has_waited_for_its_worker_without_a_connection_does_not_give_it_up_at_once() {
    let mut bench = own(1);
    let first = bench.served_from(1);
    bench.loses_its_connections(first);
    let waiting = [bench.session_from(3), bench.session_from(3)];
    waiting.into_iter().for_each(|session| bench.loses_its_connections(session));
    bench.pass(seconds(10));
    assert_eq!(bench.how_closed(first), Some(Close::Flush));
    bench.gone(first);
    bench.end_workers();
    bench.pass(seconds(1));
    bench.answer_all(&[]);
    assert_eq!(waiting.map(|session| bench.read(session).len()), [1, 0], "the first one is served");
    assert_eq!(bench.how_closed(waiting[0]), None);
    bench.pass(seconds(10));
    assert!(bench.how_closed(waiting[0]).is_some(), "it gives its worker up after ten seconds");
}

#[test]
fn a_session_of_the_source_with_most_goes_first_and_none_of_one_with_fewer_than_the_newcomers() {
    let mut bench = own(4);
    let lonely = bench.served_from(1);
    bench.loses_its_connections(lonely);
    bench.pass(seconds(5));
    let many = [2, 2, 2].map(|address| bench.served_from(address));
    bench.loses_its_connections(many[1]);
    bench.pass(seconds(20));
    let newcomer = bench.session_from(3);
    bench.pass(milliseconds(1));
    assert_eq!((bench.how_closed(lonely), bench.how_closed(many[1])), (None, Some(Close::Flush)));
    bench.gone(many[1]);
    bench.end_workers();
    bench.pass(seconds(1));
    bench.answer_all(&[]);
    assert_eq!(bench.read(newcomer).len(), 1);
    let greedy = bench.session_from(2);
    assert_eq!(bench.read_error(greedy).0, "no_worker", "its source has two of four, and the lonely one has one");
    assert_eq!(bench.how_closed(lonely), None);
}

#[test]
fn as_many_sessions_give_up_their_workers_as_clients_wait() {
    let mut bench = own(4);
    let sessions = [1, 1, 1, 1].map(|address| bench.served_from(address));
    sessions.into_iter().for_each(|session| bench.loses_its_connections(session));
    bench.pass(seconds(20));
    let waiting = [bench.session_from(1), bench.session_from(1)];
    bench.pass(seconds(5));
    assert_eq!(bench.count(Reason::SessionEvicted), 2);
    sessions
        .into_iter()
        .filter(|session| bench.how_closed(*session).is_some())
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|session| bench.gone(session));
    bench.end_workers();
    bench.pass(seconds(1));
    bench.answer_all(&[]);
    bench.pass(seconds(1));
    bench.answer_all(&[]);
    assert_eq!(waiting.map(|session| bench.read(session).len()), [1, 1]);
    assert_eq!(bench.count(Reason::SessionEvicted), 2);
}
