//! Who is let in: connections are counted by listener and by source, and one too many is told so and closed.

use super::super::settings::MaxConnections;
use super::*;

const HOME: Source = Source::Address([1; 16]);
const AWAY: Source = Source::Address([2; 16]);

/// A bus whose listener 0 takes so many connections; listener 1 takes all.
fn counting(total: Option<usize>, per_source: Option<usize>) -> Bench {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners[0].max_connections = MaxConnections { total, per_source };
    settings.listeners.push(Listener::default());
    Bench::new(settings)
}

fn comes(bench: &mut Bench, listener: usize, source: Source) -> Peer {
    Peer::Client(bench.connect(listener, source).expect("it is taken"))
}

/// Checks that a client is served.
fn is_served(bench: &mut Bench, client: Peer) {
    bench.write(client, r#"{"method":"x"}"#);
    let worker = bench.worker(0);
    bench.read_one(worker);
    assert_eq!(bench.read(client), Vec::<String>::new());
}

/// Checks that a client is refused. Returns what it is told.
fn is_refused(bench: &mut Bench, client: Peer) -> String {
    let message = bench.read_json(client);
    assert_eq!((&message["id"], &message["error"]["code"]), (&Value::Null, &Value::from(-32019)));
    assert_eq!(message["error"]["data"]["reason"], "connection_limit");
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).is_empty(), "it is not listened to");
    message["error"]["message"].as_str().expect("a message").to_owned()
}

#[test]
fn one_source_has_its_connections_and_leaves_the_others_theirs() {
    let mut bench = counting(None, Some(2));
    for source in [HOME, HOME, AWAY] {
        let client = comes(&mut bench, 0, source);
        is_served(&mut bench, client);
    }
    let third = comes(&mut bench, 0, HOME);
    let text = is_refused(&mut bench, third);
    assert_eq!(
        text,
        "this listener takes 2 connections from one source (listeners[].max_connections); close one of yours first"
    );
    let elsewhere = comes(&mut bench, 1, HOME);
    is_served(&mut bench, elsewhere);
    let second = comes(&mut bench, 0, AWAY);
    is_served(&mut bench, second);
}

#[test]
fn a_listener_takes_its_connections_from_all_sources_together() {
    let mut bench = counting(Some(1), None);
    let first = comes(&mut bench, 0, HOME);
    let second = comes(&mut bench, 0, AWAY);
    let text = is_refused(&mut bench, second);
    assert_eq!(text, "this listener takes 1 connection (listeners[].max_connections); try again when one has left");
    is_served(&mut bench, first);
}

#[test]
fn a_place_is_free_again_when_its_connection_is_closed_and_a_refused_client_takes_none() {
    let mut bench = counting(Some(2), Some(1));
    let first = comes(&mut bench, 0, HOME);
    let refused = comes(&mut bench, 0, HOME);
    is_refused(&mut bench, refused);
    let other = comes(&mut bench, 0, AWAY);
    is_served(&mut bench, other);
    bench.breaks(first);
    let early = comes(&mut bench, 0, HOME);
    is_refused(&mut bench, early);
    bench.gone(first);
    let second = comes(&mut bench, 0, HOME);
    is_served(&mut bench, second);
}

#[test]
fn a_refused_client_is_reported_with_its_source_and_closed_if_it_stays() {
    let mut bench = counting(Some(1), None);
    comes(&mut bench, 0, HOME);
    let refused = comes(&mut bench, 0, Source::User(1000));
    assert_eq!(bench.count(Reason::ConnectionLimit), 1);
    let report = bench.reports.iter().find(|report| report.reason == Reason::ConnectionLimit).expect("a report");
    assert!(report.text.starts_with("a client from user 1000 is turned away: this listener takes 1"), "{report:?}");
    assert_eq!(report.client, Some(1));
    bench.pass(seconds(1));
    assert_eq!(bench.how_closed(refused), Some(Close::Now));
}

#[test]
fn a_flood_of_refused_clients_takes_no_slots_from_others() {
    let mut bench = counting(Some(1), None);
    comes(&mut bench, 0, HOME);
    let taken = (0..2000).filter(|_| bench.connect(0, HOME).is_some()).count();
    assert_eq!((taken, bench.bus.stats().clients), (16, 17), "the others are closed without a word");
    assert_eq!(bench.count(Reason::ConnectionLimit), 2000);
    assert!(bench.accepting);
    let elsewhere = comes(&mut bench, 1, HOME);
    is_served(&mut bench, elsewhere);
}

#[test]
fn without_error_replies_a_client_too_many_is_closed_without_a_word() {
    let mut silent = settings(vec![pool(1, Assignment::RoundRobin)]);
    silent.routing.error_replies = false;
    silent.listeners[0].max_connections.total = Some(1);
    let mut bench = Bench::new(silent);
    bench.client();
    assert!(bench.connect(0, HOME).is_none());
    assert_eq!(bench.count(Reason::ConnectionLimit), 1);
}
