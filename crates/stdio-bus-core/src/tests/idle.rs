//! Clients that hold their slots and do nothing.

use super::*;
use crate::settings::MAX_CONNECTIONS;

#[test]
fn an_idle_client_is_closed_unless_it_has_a_request_or_a_session() {
    {
        let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
        settings.listeners[0].idle_timeout = Some(seconds(60));
        let mut bench = Bench::new(settings);
        let (idle, busy, owner, worker) = (bench.client(), bench.client(), bench.client(), bench.worker(0));
        bench.write(busy, r#"{"id":1,"method":"x"}"#);
        bench.write(owner, r#"{"id":2,"method":"session/new"}"#);
        bench.write(worker, r#"{"id":2,"result":{"sessionId":"s"}}"#);
        bench.read(owner);
        bench.pass(seconds(30));
        bench.write(idle, r#"{"method":"x"}"#);
        bench.pass(milliseconds(59_999));
        assert_eq!(bench.how_closed(idle), None, "it has sent something");
        bench.pass(seconds(10));
        let closed = [idle, busy, owner].map(|client| bench.how_closed(client).is_some());
        assert_eq!(closed, [true, false, false]);
        bench.write(worker, r#"{"id":1,"result":1}"#);
        bench.read(busy);
        bench.pass(seconds(68));
        assert!(bench.how_closed(busy).is_some(), "it has its answer");
    }
}

#[test]
fn when_all_slots_are_taken_a_client_that_has_sent_nothing_makes_room() {
    let mut bench = bench(1);
    let first = bench.client();
    bench.write(first, r#"{"id":1,"method":"x"}"#);
    bench.pass(milliseconds(10));
    let silent: Vec<Peer> = (1..MAX_CONNECTIONS).map(|_| bench.client()).collect();
    assert!(!bench.listeners.accepting);
    bench.handle(Input::ConnectionQueued);
    bench.pass(milliseconds(499));
    assert!(silent.iter().all(|client| bench.how_closed(*client).is_none()));
    bench.pass(milliseconds(1));
    let closed = silent.iter().filter(|client| bench.how_closed(**client) == Some(Close::Now)).count();
    assert_eq!((closed, bench.how_closed(silent[0]), bench.how_closed(first)), (1, Some(Close::Now), None));
    bench.gone(silent[0]);
    assert!(bench.listeners.accepting);
    let late = bench.client();
    bench.write(late, r#"{"id":1,"method":"x"}"#);
    let worker = bench.worker(0);
    assert_eq!(bench.read(worker).len(), 2);
    bench.pass(seconds(1));
    assert_eq!(bench.how_closed(silent[1]), None, "nobody waits for a slot");
    bench.handle(Input::ConnectionQueued);
    assert_eq!(bench.how_closed(silent[1]), Some(Close::Now));
}

#[test]
fn when_all_slots_are_taken_a_client_with_a_stalled_first_line_makes_room() {
    let mut bench = bench(1);
    let clients: Vec<Peer> = (0..MAX_CONNECTIONS).map(|_| bench.client()).collect();
    clients.iter().for_each(|client| bench.write_bytes(*client, b"{"));
    bench.handle(Input::ConnectionQueued);
    bench.pass(milliseconds(499));
    assert!(clients.iter().all(|client| bench.how_closed(*client).is_none()));
    bench.write_bytes(clients[0], b" ");
    bench.pass(milliseconds(1));
    let closed: Vec<_> = clients.iter().filter(|client| bench.how_closed(**client).is_some()).collect();
    assert_eq!(closed, [&clients[1]], "the first one continues with its line");
    bench.gone(clients[1]);
    let late = bench.client();
    bench.handle(Input::ConnectionQueued);
    for _ in 0..24 {
        let others = clients.iter().filter(|client| **client != clients[1]);
        others.chain([&late]).for_each(|client| bench.write_bytes(*client, b" "));
        assert_eq!(bench.how_closed(clients[0]), None);
        bench.pass(milliseconds(400));
    }
    assert!(bench.how_closed(clients[0]).is_some(), "but not for ever");
}

#[test]
fn when_all_slots_are_taken_idle_clients_stay_unless_one_source_has_most_of_the_slots() {
    for (mine, is_closed) in [(MAX_CONNECTIONS / 2, false), (MAX_CONNECTIONS / 2 + 1, true)] {
        let mut bench = bench(1);
        let clients: Vec<Peer> = (0..MAX_CONNECTIONS)
            .map(|at| bench.connect(0, Source::User(if at < mine { 0 } else { at as u32 })).expect("room").into())
            .collect();
        let (waits, owns, others) = (clients[0], clients[1], &clients[2..]);
        bench.write(waits, r#"{"id":1,"method":"x"}"#);
        bench.write(owns, r#"{"id":2,"method":"session/new"}"#);
        let worker = bench.worker(0);
        bench.write(worker, r#"{"id":2,"result":{"sessionId":"s"}}"#);
        bench.read_one(owns);
        for client in others {
            bench.write(*client, r#"{"method":"x"}"#);
        }
        bench.handle(Input::ConnectionQueued);
        bench.pass(milliseconds(9_999));
        assert!(clients.iter().all(|client| bench.how_closed(*client).is_none()));
        bench.pass(milliseconds(1));
        let closed: Vec<usize> = (0..clients.len()).filter(|at| bench.how_closed(clients[*at]).is_some()).collect();
        assert_eq!(closed, if is_closed { vec![2] } else { vec![] }, "a client with a request or a session stays");
    }
}

#[test]
fn a_client_whose_first_line_waits_for_a_worker_does_not_count_as_silent() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.hold = seconds(10);
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    // It closes its stdout and does not end yet.
    bench.ends(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let silent: Vec<Peer> = (1..MAX_CONNECTIONS).map(|_| bench.client()).collect();
    bench.handle(Input::ConnectionQueued);
    bench.pass(seconds(5));
    assert_eq!([client, silent[0]].map(|client| bench.how_closed(client).is_some()), [false, true]);
    bench.pass(seconds(5));
    assert_eq!(bench.read_error(client).0, "no_worker");
}

#[test]
fn when_all_slots_are_taken_the_client_on_stdin_stays_although_it_does_nothing() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.most_clients = 3;
    settings.listeners.push(Listener { stdio: true, ..Listener::default() });
    let mut bench = Bench::new(settings);
    let stdin = bench.client_of(1);
    bench.pass(milliseconds(10));
    let (first, second) = (bench.client(), bench.client());
    bench.handle(Input::ConnectionQueued);
    bench.pass(milliseconds(600));
    let closed = [stdin, first, second].map(|client| bench.how_closed(client).is_some());
    assert_eq!(closed, [false, true, false]);
}
