//! Admission: by address, by user, through which proxy. Connections are counted by listener and by source, and a client
//! above a limit is notified and closed.

use super::super::networks::Network;
use super::super::settings::{Entry, MaxConnections, Proxies};
use super::*;

const HOME: Source = Source::Address([1; 16]);
const AWAY: Source = Source::Address([2; 16]);

/// A bus whose listener 0 has these limits of connections; listener 1 has none.
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

/// Checks that a client is rejected. Returns the error.
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
fn the_limit_per_source_leaves_other_sources_their_connections() {
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
fn the_total_limit_of_a_listener_counts_all_sources() {
    let mut bench = counting(Some(1), None);
    let first = comes(&mut bench, 0, HOME);
    let second = comes(&mut bench, 0, AWAY);
    let text = is_refused(&mut bench, second);
    assert_eq!(text, "this listener takes 1 connection (listeners[].max_connections); try again when one has left");
    is_served(&mut bench, first);
}

#[test]
fn a_closed_connection_frees_its_place_and_a_rejected_client_takes_none() {
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
    assert!(report.text.starts_with("a client from user 1000 is rejected: this listener takes 1"), "{report:?}");
    assert_eq!(report.client, Some(1));
    bench.pass(seconds(1));
    assert_eq!(bench.how_closed(refused), Some(Close::Now));
}

#[test]
fn a_flood_of_refused_clients_takes_no_slots_from_others() {
    let mut bench = counting(Some(1), None);
    comes(&mut bench, 0, HOME);
    let taken = (0..2000).filter(|_| bench.connect(0, HOME).is_some()).count();
    assert_eq!((taken, bench.bus.view().stats().clients), (16, 17), "the others are closed without a word");
    assert_eq!(bench.count(Reason::ConnectionLimit), 2000);
    assert!(bench.listeners.accepting);
    let elsewhere = comes(&mut bench, 1, HOME);
    is_served(&mut bench, elsewhere);
}

fn place(address: &str) -> Place {
    Place::Address(address.parse().expect("an address and a port"))
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|text| Network::parse(text).expect("a network")).collect()
}

/// A bus with one listener that admits these clients.
fn guarded(entry: Entry) -> Bench {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners[0].entry = entry;
    Bench::new(settings)
}

fn through(proxy: &str, client: &str) -> Origin {
    Origin { place: place(client), via: Some(place(proxy).into()), ..Origin::default() }
}

fn texts_of(bench: &Bench, reason: Reason) -> Vec<&str> {
    bench.reports.iter().filter(|report| report.reason == reason).map(|report| report.text.as_str()).collect()
}

#[test]
fn a_client_from_a_network_that_is_not_allowed_is_closed_without_a_slot_or_a_word() {
    let mut bench = guarded(Entry { allow: Some(networks(&["10.0.0.0/8", "2001:db8::/32"])), ..Entry::default() });
    for allowed in ["10.1.2.3:4", "[::ffff:10.1.2.3]:4", "[2001:db8::1]:4"] {
        assert!(bench.connect(0, place(allowed)).is_some(), "{allowed}");
    }
    for stranger in ["11.1.2.3:4", "[2001:db9::1]:4", "127.0.0.1:4"] {
        assert!(bench.connect(0, place(stranger)).is_none(), "{stranger}");
    }
    assert_eq!((bench.bus.view().stats().clients, bench.count(Reason::NotAllowed)), (3, 3));
    let text = "a client is rejected: 11.1.2.3:4 is not in listeners[].allow";
    assert_eq!(texts_of(&bench, Reason::NotAllowed)[0], text);
}

#[test]
fn rejected_connections_are_reported_at_a_limited_rate() {
    let mut bench = guarded(Entry { allow: Some(networks(&["10.0.0.0/8"])), ..Entry::default() });
    (0..1000).for_each(|_| assert!(bench.connect(0, place("192.0.2.7:4")).is_none()));
    assert_eq!((bench.count(Reason::NotAllowed), texts_of(&bench, Reason::NotAllowed).len()), (1000, 10));
}

#[test]
fn a_peer_that_left_before_its_address_was_read_is_allowed_by_no_list_and_not_reported() {
    let mut bench = guarded(Entry { allow: Some(networks(&["0.0.0.0/0", "::/0"])), ..Entry::default() });
    assert!(bench.connect(0, Place::Inherited).is_none());
    let report = bench.reports.iter().find(|report| report.reason == Reason::NotAllowed).expect("it is counted");
    assert_eq!(report.level, Level::Debug);
}

#[test]
fn a_process_may_connect_if_its_user_is_allowed() {
    let mut bench = guarded(Entry { peer_uids: Some(vec![0, 1000]), ..Entry::default() });
    let process = |user| Place::Process { pid: 77, user };
    assert!(bench.connect(0, process(1000)).is_some() && bench.connect(0, process(0)).is_some());
    assert!(bench.connect(0, process(1001)).is_none());
    let text = "a client is rejected: process 77 of user 1001 is not in listeners[].peer_uids";
    assert_eq!(texts_of(&bench, Reason::NotAllowed), [text]);
}

#[test]
fn a_header_is_awaited_from_proxies_alone() {
    let bench = guarded(Entry { proxy: Some(Proxies::Networks(networks(&["10.0.0.5"]))), ..Entry::default() });
    assert!(bench.bus.view().awaits_header(0, place("10.0.0.5:1")));
    assert!(bench.bus.view().awaits_header(0, place("[::ffff:10.0.0.5]:1")));
    for other in [place("10.0.0.6:1"), Place::Process { pid: 1, user: 0 }, Place::Inherited] {
        assert!(!bench.bus.view().awaits_header(0, other), "{other:?}");
    }
    let users = Some(vec![99]);
    let bench = guarded(Entry { peer_uids: users, proxy: Some(Proxies::Unix), ..Entry::default() });
    assert!(bench.bus.view().awaits_header(0, Place::Process { pid: 1, user: 99 }));
    assert!(!bench.bus.view().awaits_header(0, Place::Process { pid: 1, user: 98 }), "it is rejected first");
}

#[test]
fn through_a_proxy_the_clients_own_address_is_allowed_and_counted() {
    let entry = Entry { allow: Some(networks(&["192.0.2.0/24"])), ..Entry::default() };
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners[0] = Listener {
        entry: Entry { proxy: Some(Proxies::Networks(networks(&["10.0.0.5"]))), ..entry },
        max_connections: MaxConnections { total: None, per_source: Some(1) },
        ..Listener::default()
    };
    let mut bench = Bench::new(settings);
    let first = Peer::Client(bench.connect(0, through("10.0.0.5:1", "192.0.2.7:1")).expect("it is allowed"));
    is_served(&mut bench, first);
    let second = Peer::Client(bench.connect(0, through("10.0.0.5:2", "192.0.2.8:1")).expect("another source"));
    is_served(&mut bench, second);
    let third =
        Peer::Client(bench.connect(0, through("10.0.0.5:3", "192.0.2.7:2")).expect("it is admitted to be rejected"));
    is_refused(&mut bench, third);
    assert!(bench.connect(0, through("10.0.0.5:4", "198.51.100.7:1")).is_none(), "its proxy does not matter");
    let text = "a client is rejected: 198.51.100.7:1 is not in listeners[].allow";
    assert_eq!(texts_of(&bench, Reason::NotAllowed), [text]);
}

#[test]
fn a_health_check_of_a_proxy_is_always_allowed_and_not_reported() {
    let proxy = Some(Proxies::Networks(networks(&["10.0.0.5"])));
    let mut bench = guarded(Entry { allow: Some(networks(&["192.0.2.0/24"])), proxy, ..Entry::default() });
    let check = Origin { place: place("10.0.0.5:1"), is_proxy: true, ..Origin::default() };
    let check = Peer::Client(bench.connect(0, check).expect("it is let in"));
    bench.ends(check);
    bench.gone(check);
    assert_eq!((bench.count(Reason::ClientOpened), bench.count(Reason::ClientClosed)), (1, 1));
    assert!(bench.reports.iter().all(|report| report.client.is_none() || report.level == Level::Debug));
}

#[test]
fn a_connection_without_its_required_header_is_reported_with_its_place() {
    let mut bench = bench(1);
    bench.handle(Input::ConnectionRejected {
        place: place("10.0.0.5:1"),
        reason: Reason::ProxyHeader,
        text: "a connection is closed: on tcp://x it says nothing".into(),
    });
    assert_eq!(texts_of(&bench, Reason::ProxyHeader), ["a connection is closed: on tcp://x it says nothing"]);
    let report = bench.reports.iter().find(|report| report.reason == Reason::ProxyHeader).expect("a report");
    assert_eq!(report.origin.as_ref().map(|origin| origin.place), Some(place("10.0.0.5:1")));
}

#[test]
fn a_header_of_an_untrusted_peer_is_recognised_with_any_cut() {
    let text = &b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n"[..];
    let binary = &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\0\x01\0\x02"[..];
    let proxy = Some(Proxies::Networks(networks(&["10.0.0.5"])));
    for (proxy, words) in [
        (None, "listeners[].proxy.from of its listener does not contain 10.0.0.6:1"),
        (proxy, "10.0.0.6:1 is not in listeners[].proxy.from"),
    ] {
        for header in [text, binary] {
            for cut in 1..header.len() {
                let mut bench = guarded(Entry { proxy: proxy.clone(), ..Entry::default() });
                let client = Peer::Client(bench.connect(0, place("10.0.0.6:1")).expect("it is taken"));
                bench.write_bytes(client, &header[..cut]);
                bench.write_bytes(client, &header[cut..]);
                let message = bench.read_json(client);
                let error = &message["error"];
                assert_eq!((&error["code"], &error["data"]["reason"]), (&(-32600).into(), &"proxy_header".into()));
                let expected = format!("Invalid Request: it begins like a PROXY header, and {words}");
                assert_eq!(error["message"], expected, "cut at {cut}");
                assert_eq!(bench.how_closed(client), Some(Close::Flush));
                assert_eq!(bench.count(Reason::ClientMalformed), 0);
            }
        }
    }
}

#[test]
fn a_malformed_line_after_others_is_not_taken_for_a_header() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, r#"{"method":"x"}"#);
    bench.write(client, "PROXY UNKNOWN");
    assert_eq!(bench.read_error(client).0, "client_malformed");
}

#[test]
fn a_client_learns_before_its_handshake_whether_it_has_more_than_its_share_of_a_full_listener() {
    use super::super::admission::Rejection;
    let mut bench = counting(Some(4), None);
    assert_eq!(bench.bus.view().full_listener(0), None);
    for source in [HOME, AWAY, AWAY, AWAY] {
        comes(&mut bench, 0, source);
    }
    // What a source has at another listener is not counted here.
    for _ in 0..8 {
        comes(&mut bench, 1, HOME);
    }
    let asks = |bench: &Bench, listener: usize, source: Source| {
        bench.bus.view().would_take(listener, &Place::from(source).into())
    };
    assert!(matches!(asks(&bench, 0, HOME), Err(Rejection::NoRoom(_))), "{:?}", asks(&bench, 0, HOME));
    assert!(matches!(asks(&bench, 0, AWAY), Err(Rejection::TooMany(_))), "{:?}", asks(&bench, 0, AWAY));
    assert_eq!((asks(&bench, 1, HOME), bench.bus.view().full_listener(0)), (Ok(()), Some(4)));
    assert_eq!(bench.bus.view().full_listener(1), None);
}

#[test]
fn a_client_learns_before_its_handshake_that_its_listener_is_removed_or_that_the_daemon_shuts_down() {
    use super::super::admission::Rejection;
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners.push(Listener::default());
    let mut bench = Bench::new(settings.clone());
    settings.listeners[1].is_gone = true;
    bench.reload(&settings);
    let asks = |bench: &Bench, listener: usize| bench.bus.view().would_take(listener, &Place::from(HOME).into());
    assert_eq!((asks(&bench, 0), asks(&bench, 1)), (Ok(()), Err(Rejection::Removed)));
    bench.shutdown();
    bench.pass(seconds(60));
    assert_eq!(asks(&bench, 0), Err(Rejection::Draining));
}

#[test]
fn a_client_of_a_removed_listener_continues_although_its_pools_are_removed_as_well() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut settings = settings(vec![of("a"), of("b")]);
    settings.listeners.push(Listener { pools: Some(places(&[1])), ..Listener::default() });
    let mut bench = Bench::new(settings.clone());
    settings.listeners[1].is_gone = true;
    settings.pools[1].is_gone = true;
    bench.reload(&settings);
    let of_one = Origin { pools: Some(places(&[1]).into()), ..Origin::default() };
    let asks = |listener: usize, origin: &Origin| bench.bus.view().may_ask(listener, origin);
    assert_eq!((asks(1, &Origin::default()), asks(1, &of_one)), (Ok(()), Ok(())));
    assert!(asks(0, &of_one).is_err(), "at another listener its token is good for nothing now");
}
