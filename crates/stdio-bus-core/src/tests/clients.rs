//! Clients that connect, half-close, leave and break (spec 4.1.2, 4.3, 7.2; decisions 9 to 11).

use super::super::stats::{ConnectionStats, Traffic};
use super::*;

#[test]
fn a_client_that_cancels_its_request_as_mcp_does_and_leaves_causes_no_warning() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
    bench.write(client, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
    for id in 1..=2 {
        bench.write(
            client,
            &format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#),
        );
    }
    bench.ends(client);
    bench.gone(client);
    bench.write(worker, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    bench.pass(seconds(60));
    let loud: Vec<_> = bench.reports.iter().filter(|report| report.level >= Level::Warn).collect();
    assert!(loud.is_empty(), "{loud:?}");
    assert_eq!((bench.count(Reason::Cancelled), bench.count(Reason::RequestDiscarded)), (2, 0));
}

#[test]
fn a_worker_gets_an_error_when_the_client_it_asked_half_closes() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.ends(client);
    assert_eq!(bench.read_json(worker)["id"], 7);
    assert_eq!(bench.count(Reason::ClientLeft), 1);
    bench.write(worker, r#"{"id":8,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read_json(worker)["error"]["data"]["reason"], "unknown_session");
    assert_eq!(bench.bus.view().stats().pending, 1, "its own request is still pending");
}

#[test]
fn a_half_closed_client_whose_answer_never_comes_gets_an_error_and_is_closed() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"id":"two","method":"x"}"#);
    bench.ends(client);
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.how_closed(client), None);
    bench.pass(milliseconds(1));
    let errors = bench.read(client);
    assert!(errors[0].contains(r#""id":1,"#) && errors[1].contains(r#""id":"two","#), "{errors:?}");
    assert!(errors.iter().all(|error| error.contains(r#""code":-32015"#)));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_half_closed_client_stays_as_long_as_its_answers_come() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..5 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.ends(client);
    for id in 0..5 {
        bench.pass(Duration::from_secs(20));
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        assert!(bench.read_json(client)["result"].is_number());
    }
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_half_closed_client_that_reads_steadily_gets_the_rest_however_long_that_takes() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.ends(client);
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(900_000)));
    for _ in 0..15 {
        bench.pass(Duration::from_secs(25));
        bench.takes(client, 60_000);
        assert_eq!(bench.how_closed(client), Some(Close::Flush));
    }
    // A client that takes a byte now and then counts as not reading.
    bench.pass(Duration::from_secs(25));
    bench.takes(client, 1);
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    assert_eq!(bench.count(Reason::ClientOverdue), 1);
}

#[test]
fn a_client_that_is_being_closed_and_ends_its_input_still_gets_its_queue() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.stalls(client);
    bench.write(client, "no JSON");
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    bench.ends(client);
    assert_eq!(bench.how_closed(client), Some(Close::Flush), "the error is still to be sent");
    bench.takes(client, usize::MAX);
    bench.ends(client);
    assert_eq!(bench.how_closed(client), Some(Close::Now));
}

#[test]
fn a_client_that_announces_its_end_is_closed_at_once_and_its_requests_end() {
    let mut cancelling = settings(vec![pool(1, Assignment::RoundRobin)]);
    cancelling.pools[0].cancel_on_disconnect = true;
    let mut bench = Bench::new(cancelling);
    let (client, worker) = (bench.client(), bench.worker(0));
    let Peer::Client(key) = client else { panic!("it is a client") };
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.read_one(worker);
    bench.handle(Input::ClientLeft(key));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    assert!(bench.read_one(worker).contains("session/cancel"), "the answer is not wanted any more");
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read(client), Vec::<String>::new());
    bench.handle(Input::ClientLeft(key));
    assert_eq!((bench.count(Reason::RequestDiscarded), bench.count(Reason::ClientBroken)), (1, 0));
}

#[test]
fn a_client_with_invalid_frames_is_closed_and_counted() {
    for (is_too_long, reason) in [(false, Reason::ClientMalformed), (true, Reason::ClientLineTooLong)] {
        let mut bench = bench(1);
        let client = bench.client();
        let Peer::Client(key) = client else { panic!("it is a client") };
        let why = || "no mask".to_owned();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        bench.handle(Input::FramingViolated { client: key, why: why(), is_too_long });
        bench.handle(Input::FramingViolated { client: key, why: why(), is_too_long });
        assert_eq!(bench.how_closed(client), Some(Close::Flush));
        assert_eq!(
            (bench.count(reason), bench.read_error(client).0),
            (1, "request_discarded".into()),
            "a frame says why"
        );
    }
}

#[test]
fn a_client_that_half_closes_still_gets_its_answers() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s"}"#);
    bench.ends(client);
    bench.write(worker, r#"{"method":"update","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":2,"result":2}"#);
    assert_eq!(bench.how_closed(client), None);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read(client).len(), 3);
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_client_that_ends_with_nothing_pending_is_closed() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.ends(client);
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    bench.gone(client);
    assert_eq!(bench.bus.view().stats().clients, 0);
}

#[test]
fn a_last_line_without_its_newline_is_not_a_message() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write_bytes(client, br#"{"id":1,"method":"x"}"#);
    bench.ends(client);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::PartialLine), 1);
    let report = bench.reports.iter().find(|report| report.reason == Reason::PartialLine).unwrap();
    assert!(report.text.contains("21 bytes"), "{}", report.text);
}

#[test]
fn a_client_that_leaves_takes_its_sessions_and_requests_with_it() {
    let mut bench = bench(1);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(other, r#"{"id":2,"method":"x","sessionId":"t"}"#);
    bench.breaks(client);
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    bench.gone(client);
    assert_eq!((bench.bus.view().stats().sessions, bench.bus.view().stats().clients), (1, 1));
    assert_eq!(bench.count(Reason::RequestDiscarded), 1);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.write(worker, r#"{"method":"update","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":2,"result":2}"#);
    assert_eq!(bench.read(other).len(), 1);
    assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownSession)), (1, 1));
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn a_request_to_a_client_that_leaves_gets_an_error() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"x","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":"q","method":"ask","sessionId":"s"}"#);
    bench.read(worker);
    bench.breaks(client);
    let value = bench.read_json(worker);
    assert_eq!((&value["id"], &value["error"]["data"]["reason"]), (&"q".into(), &"client_left".into()));
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn workers_are_asked_to_cancel_the_requests_of_a_client_that_leaves() {
    let mut frugal = settings(vec![pool(1, Assignment::RoundRobin)]);
    frugal.pools[0].cancel_on_disconnect = true;
    let mut bench = Bench::new(frugal);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"bu\"sy"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"idle"}}"#);
    bench.write(worker, r#"{"id":2,"result":1}"#);
    bench.read(worker);
    bench.breaks(client);
    let cancel = r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"bu\"sy"}}"#;
    assert_eq!(bench.read(worker), [cancel]);
}

#[test]
fn workers_are_asked_to_cancel_the_requests_of_a_client_that_the_daemon_closes() {
    let malformed: fn(&mut Bench, ClientKey) = |bench, client| bench.write(client.into(), "no JSON");
    let killed: fn(&mut Bench, ClientKey) = |bench, client| bench.handle(Input::CloseClient(client));
    let token_removed: fn(&mut Bench, ClientKey) = |bench, client| bench.handle(Input::TokenRemoved(client));
    // A peer that was killed looks like one that has sent all and waits for its answers.
    let overdue: fn(&mut Bench, ClientKey) = |bench, client| {
        bench.ends(client.into());
        bench.pass(seconds(30));
    };
    for close in [malformed, killed, token_removed, overdue] {
        let mut frugal = settings(vec![pool(1, Assignment::RoundRobin)]);
        frugal.pools[0].cancel_on_disconnect = true;
        let mut bench = Bench::new(frugal);
        let (client, worker) = (bench.client(), bench.worker(0));
        let Peer::Client(key) = client else { panic!("it is a client") };
        bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"busy"}}"#);
        bench.read(worker);
        close(&mut bench, key);
        assert_eq!(
            bench.read(worker),
            [r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"busy"}}"#]
        );
        assert!(bench.read(client)[0].contains(r#""id":1,"error""#), "the client is notified, too");
    }
}

#[test]
fn without_cancel_on_disconnect_no_cancellation_is_sent() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.breaks(client);
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_rejected_client_that_does_not_leave_is_closed_for_good() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, "hello");
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    bench.pass(seconds(1));
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    let stuck = bench.client();
    bench.stalls(stuck);
    bench.write(stuck, "hello");
    bench.pass(seconds(29));
    assert_eq!(bench.how_closed(stuck), Some(Close::Flush));
    bench.pass(seconds(1));
    assert_eq!(bench.how_closed(stuck), Some(Close::Now));
    assert_eq!(bench.count(Reason::ClientOverdue), 1);
}

#[test]
fn a_client_may_have_several_sessions_and_so_may_others() {
    let mut bench = bench(1);
    let (first, second) = (bench.client(), bench.client());
    for name in ["a", "b", "c"] {
        bench.write(first, &format!(r#"{{"method":"x","sessionId":"{name}"}}"#));
    }
    bench.write(second, r#"{"method":"x","sessionId":"d"}"#);
    assert_eq!((bench.bus.view().stats().sessions, bench.bus.view().stats().clients), (4, 2));
}

/// The account of a client that has left.
fn account(bench: &Bench) -> ConnectionStats {
    let report = bench.reports.iter().find(|report| report.reason == Reason::ClientClosed).expect("it has gone");
    report.account.expect("an account")
}

#[test]
fn a_client_is_reported_when_it_connects_and_when_it_leaves_with_its_account() {
    let mut bench = bench(1);
    bench.client();
    let place = Place::Address("192.0.2.7:40000".parse().expect("an address"));
    let client = Peer::Client(bench.connect(0, place).expect("there is room"));
    let worker = bench.worker(0);
    let asked = [r#"{"id":1,"method":"x"}"#, r#"{"id":2,"method":"x"}"#, r#"{"id":3,"method":"x"}"#];
    let refused = r#"{"id":4,"method":"x","pool":"none"}"#;
    let note = r#"{"method":"note"}"#;
    for line in asked.iter().chain([&refused, &note]) {
        bench.write(client, line);
    }
    bench.read(worker);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.write(worker, r#"{"id":2,"error":{"code":1,"message":"no"}}"#);
    let heard: usize = bench.read(client).iter().map(|line| line.len() + 1).sum();
    bench.pass(milliseconds(1500));
    bench.breaks(client);
    bench.gone(client);
    let bytes_in = asked.iter().chain([&refused, &note]).map(|line| line.len() as u64 + 1).sum();
    let expected = ConnectionStats {
        lasted: milliseconds(1500),
        traffic: Traffic {
            lines_in: 5,
            bytes_in,
            lines_out: 3,
            bytes_out: heard as u64,
            asked: 3,
            given_up: 1,
            refused: 1,
        },
        answered: 2,
        failed: 2,
        why: Some("client_broken"),
    };
    assert_eq!(account(&bench), expected);
    let reports: Vec<_> = bench.reports.iter().filter(|report| report.client == Some(1)).collect();
    assert_eq!(
        (reports[0].reason, reports.last().expect("several").reason),
        (Reason::ClientOpened, Reason::ClientClosed)
    );
    assert_eq!((reports[0].level, reports.last().expect("several").level), (Level::Info, Level::Info));
    assert!(
        reports.iter().all(|report| report.origin.as_ref().is_some_and(|origin| origin.place == place)),
        "{reports:?}"
    );
}

#[test]
fn requests_that_a_worker_or_a_cancellation_leaves_without_an_answer_have_failed() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.write(client, r#"{"method":"notifications/cancelled","params":{"requestId":2}}"#);
    bench.pass(seconds(10));
    bench.dies(worker);
    bench.ends(client);
    bench.gone(client);
    let ConnectionStats { answered, failed, why, .. } = account(&bench);
    assert_eq!((answered, failed, why), (0, 2, Some("client_closed")));
}

#[test]
fn the_first_reason_of_a_close_is_reported() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, "no JSON");
    bench.pass(seconds(5));
    bench.gone(client);
    assert_eq!(account(&bench).why, Some("client_malformed"));
}

#[test]
fn a_full_table_of_clients_connects_and_leaves_and_each_is_reported() {
    let mut bench = bench(1);
    let clients: Vec<Peer> = (0..1024).map(|_| bench.client()).collect();
    clients.into_iter().for_each(|client| {
        bench.ends(client);
        bench.gone(client);
    });
    let count = |reason| bench.reports.iter().filter(|report| report.reason == reason).count();
    assert_eq!((count(Reason::ClientOpened), count(Reason::ClientClosed)), (1024, 1024));
}
