//! What belongs to the user name of a token.

use super::*;

/// A client with a token of this name, valid for some pools or for all.
fn named(bench: &mut Bench, name: Option<&str>, pools: Option<&[usize]>) -> Peer {
    let names = Names { token: name.map(Into::into), ..Names::default() };
    let origin = Origin { names: names.into(), pools: pools.map(|pools| places(pools).into()), ..Origin::default() };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

#[test]
fn a_session_that_was_made_under_a_name_is_loaded_under_no_other() {
    for assignment in [Assignment::Client, Assignment::Dedicated] {
        let mut bench = Bench::new(settings(vec![Pool { max_instances: 9, ..pool(1, assignment) }]));
        let alice = named(&mut bench, Some("alice"), None);
        bench.write(alice, r#"{"id":1,"method":"session/new"}"#);
        let worker = bench.worker(0);
        bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
        bench.read(alice);
        bench.breaks(alice);
        bench.gone(alice);
        let load = r#"{"id":2,"method":"session/load","params":{"sessionId":"s"}}"#;
        for name in [Some("bob"), None] {
            let other = named(&mut bench, name, None);
            bench.write(other, load);
            assert_eq!(bench.read_error(other).0, "session_denied", "{name:?} of {assignment:?}");
            bench.write(other, r#"{"id":3,"method":"session/prompt","params":{"sessionId":"s"}}"#);
            assert_eq!(bench.read_error(other).0, "session_denied", "{name:?} of {assignment:?}");
            bench.breaks(other);
        }
        let again = named(&mut bench, Some("alice"), None);
        bench.write(again, load);
        assert_eq!(bench.read(again), Vec::<String>::new(), "its owner may ask for it");
    }
}

/// A dedicated pool that denies an unused method, or none: that decides which path messages take.
fn own_workers(denies: bool) -> Bench {
    let deny_methods = if denies { vec!["other".into()] } else { Vec::new() };
    Bench::new(settings(vec![Pool { max_instances: 9, deny_methods, ..pool(1, Assignment::Dedicated) }]))
}

#[test]
fn a_claim_on_a_dedicated_worker_opens_no_session_loaded_by_another_user() {
    for denies in [false, true] {
        let mut bench = own_workers(denies);
        let (stranger, alice) = (named(&mut bench, None, None), named(&mut bench, Some("alice"), None));
        bench.write(stranger, &prompt(1, "s"));
        let of_stranger = bench.worker(0);
        bench.read(of_stranger);
        bench.write(of_stranger, r#"{"id":1,"error":{"code":-32002,"message":"no such session"}}"#);
        bench.write(alice, &load(1, "s"));
        let of_alice = bench.worker(1);
        bench.write(of_alice, r#"{"id":1,"result":null}"#);
        bench.read(stranger);
        for line in
            [load(2, "s"), prompt(3, "s"), load(4, "s").replace(r#""params":{"#, r#""sessionId":"s","params":{"#)]
        {
            bench.write(stranger, &line);
            assert_eq!(bench.read_error(stranger).0, "session_denied", "{line}");
        }
        assert!(bench.read(of_stranger).is_empty());
        bench.read(of_alice);
        for line in [prompt(2, "s"), load(3, "s")] {
            bench.write(alice, &line);
            assert_eq!(bench.read_one(of_alice), line);
        }
    }
}

#[test]
fn a_session_created_for_a_client_is_its_own_even_if_the_name_is_used_elsewhere() {
    for denies in [false, true] {
        let mut bench = own_workers(denies);
        for (at, name) in ["alice", "bob"].into_iter().enumerate() {
            let client = named(&mut bench, Some(name), None);
            bench.write(client, r#"{"id":1,"method":"session/new"}"#);
            let worker = bench.worker(at);
            bench.read(worker);
            // It counts from one.
            bench.write(worker, r#"{"id":1,"result":{"sessionId":"session-1"}}"#);
            bench.read(client);
            bench.write(client, &prompt(2, "session-1"));
            assert_eq!(bench.read_one(worker), prompt(2, "session-1"), "{name}");
            bench.write(client, &load(3, "session-1"));
            let is_passed_on = bench.read(worker).len() == 1;
            assert_eq!(is_passed_on, name == "alice", "what is loaded may be the other one's");
        }
    }
}

#[test]
fn a_token_is_valid_for_its_pools_only_and_the_first_one_is_the_default() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![of("a"), of("b"), of("c")]));
    let (client, b, c) = (named(&mut bench, Some("alice"), Some(&[2, 1])), bench.worker(1), bench.worker(2));
    for _ in 0..3 {
        bench.write(client, r#"{"method":"x"}"#);
    }
    assert_eq!(bench.read(c).len(), 3);
    bench.write(client, r#"{"method":"x","pool":"b"}"#);
    bench.read_one(b);
    bench.write(client, r#"{"id":1,"method":"x","pool":"a"}"#);
    assert_eq!(bench.read_error(client).0, "unknown_pool");
    let nothing = Origin { pools: Some(std::sync::Arc::from([])), ..Origin::default() };
    assert!(matches!(bench.bus.view().would_take(0, &nothing), Err(Rejection::NotAllowed(_))));
}

#[test]
fn clients_of_one_name_are_one_source_wherever_they_come_from() {
    let mut one_each = settings(vec![pool(1, Assignment::RoundRobin)]);
    one_each.listeners[0].max_connections.per_source = Some(1);
    let mut bench = Bench::new(one_each);
    let origin = |name: &str, address: u8| Origin {
        names: Names { token: Some(name.into()), ..Names::default() }.into(),
        ..Source::Address([address; 16]).into()
    };
    bench.connect(0, origin("alice", 1)).expect("there is room");
    assert!(matches!(bench.bus.view().would_take(0, &origin("alice", 2)), Err(Rejection::TooMany(_))));
    assert_eq!(bench.bus.view().would_take(0, &origin("bob", 1)), Ok(()));
}
