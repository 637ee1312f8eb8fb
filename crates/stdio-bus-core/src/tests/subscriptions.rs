//! A client of MCP 2026-07-28 that listens: its other requests go to the process that it listens to, since no other one
//! knows what they change.

use super::eras::MODERN;
use super::*;
use crate::settings::Era;

const LISTEN: &str =
    r#"{"id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}"#;

fn call(id: usize) -> String {
    format!(r#"{{"id":{id},"method":"tools/call","params":{{"name":"x"}}}}"#)
}

fn named(bench: &mut Bench, name: &str) -> Peer {
    let names = crate::origin::Names { token: Some(name.into()), ..Default::default() };
    let origin = Origin { names: names.into(), ..Place::Inherited.into() };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

/// The worker that got this line.
fn takes(bench: &mut Bench, client: Peer, line: &str) -> Peer {
    bench.write(client, line);
    let workers: Vec<Peer> = bench.workers.iter().copied().map(Peer::Worker).collect();
    let mut readers: Vec<Peer> = workers.into_iter().filter(|worker| !bench.read(*worker).is_empty()).collect();
    assert_eq!(readers.len(), 1, "{line} went to {readers:?}");
    readers.remove(0)
}

#[test]
fn requests_go_to_the_worker_that_their_client_listens_to() {
    for assignment in [Assignment::RoundRobin, Assignment::Client] {
        let mut bench = Bench::new(settings(vec![pool(3, assignment)]));
        let (alice, again, bob) = (named(&mut bench, "alice"), named(&mut bench, "alice"), named(&mut bench, "bob"));
        let (one, two) = (bench.client(), bench.client());
        let heard = [takes(&mut bench, alice, LISTEN), takes(&mut bench, one, LISTEN)];
        for id in 0..4 {
            assert_eq!(takes(&mut bench, again, &call(id)), heard[0], "{assignment:?}: the other connection");
            assert_eq!(takes(&mut bench, alice, &call(id)), heard[0], "{assignment:?}");
            assert_eq!(takes(&mut bench, one, &call(id)), heard[1], "{assignment:?}");
        }
        assert_eq!(takes(&mut bench, again, LISTEN), heard[0], "so that both are notified of everything");
        // Others take turns, or have their own.
        let others: Vec<Peer> = (0..6)
            .map(|id| {
                let client = if assignment == Assignment::Client { bench.client() } else { [bob, two][id % 2] };
                takes(&mut bench, client, &call(id))
            })
            .collect();
        assert!(others.iter().any(|worker| *worker != others[0]), "{assignment:?}: {others:?}");
    }
}

#[test]
fn a_reload_leaves_requests_at_the_worker_that_their_client_listens_to() {
    let settings = settings(vec![pool(3, Assignment::RoundRobin)]);
    let mut bench = Bench::new(settings.clone());
    let client = bench.client();
    let heard = takes(&mut bench, client, LISTEN);
    bench.reload(&settings);
    for id in 0..4 {
        assert_eq!(takes(&mut bench, client, &call(id)), heard);
    }
}

#[test]
fn a_subscription_that_has_ended_binds_nobody() {
    for end in ["answered", "cancelled", "left", "worker ended"] {
        let mut bench = bench(3);
        let (alice, again) = (named(&mut bench, "alice"), named(&mut bench, "alice"));
        let worker = takes(&mut bench, alice, LISTEN);
        match end {
            "answered" => bench.write(worker, r#"{"id":"l","result":{}}"#),
            "cancelled" => {
                bench.write(alice, r#"{"method":"notifications/cancelled","params":{"requestId":"l"}}"#);
                bench.read(worker);
            }
            "left" => {
                bench.breaks(alice);
                bench.gone(alice);
                bench.read(worker);
            }
            _ => bench.dies(worker),
        }
        let readers: Vec<Peer> = (0..6).map(|id| takes(&mut bench, again, &call(id))).collect();
        assert!(readers.iter().any(|reader| *reader != readers[0]), "{end}: {readers:?}");
    }
}

#[test]
fn in_a_dedicated_pool_the_requests_of_a_name_go_to_the_worker_that_it_has_borrowed_to_listen() {
    let mut bench = Bench::asked(Pool { max_instances: 3, ..pool(3, Assignment::Dedicated) }, MODERN);
    let mut connect = |name: Option<&str>| {
        let names = crate::origin::Names { token: name.map(Into::into), ..Default::default() };
        let origin = Origin { names: names.into(), ..Place::Inherited.into() };
        let (client, effects) = bench.bus.connect_mcp(bench.now, 1, origin, 0, Era::Modern);
        let effects = effects.collect();
        bench.effects(&[], effects);
        Peer::Client(client.expect("there is room"))
    };
    let (listens, calls, other) = (connect(Some("alice")), connect(Some("alice")), connect(None));
    let worker = takes(&mut bench, listens, LISTEN);
    for id in 0..3 {
        assert_eq!(takes(&mut bench, calls, &call(id)), worker);
    }
    assert_ne!(takes(&mut bench, other, &call(7)), worker);
    // What names no request may be about that of the other connection.
    bench.write(worker, r#"{"method":"notifications/message","params":{"level":"info","data":"x"}}"#);
    assert!(bench.read(listens).is_empty());
    let changed = r#"{"method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}"#;
    bench.write(worker, changed);
    assert_eq!(bench.read(listens), [changed]);
    for id in 0..3 {
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert_eq!(bench.read(calls).len(), 3);
}

#[test]
fn what_continues_a_request_goes_where_that_was_begun() {
    let mut bench = Bench::asked(pool(2, Assignment::RoundRobin), MODERN);
    let client = bench.mcp(Era::Modern);
    let Peer::Client(key) = client else { unreachable!() };
    let worker = takes(&mut bench, client, LISTEN);
    let begun = *bench.workers.iter().rfind(|it| Peer::Worker(**it) != worker).unwrap();
    bench.bus.prefer_worker(key, Some(begun));
    assert_eq!(takes(&mut bench, client, &call(1)), Peer::Worker(begun));
    bench.bus.prefer_worker(key, None);
    assert_eq!(takes(&mut bench, client, &call(2)), worker);
}
