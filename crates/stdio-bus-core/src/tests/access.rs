//! What a client may do in sessions and with requests that are not its own, or not only its own.

use super::*;

fn named(bench: &mut Bench, name: &str) -> Peer {
    let names = crate::origin::Names { token: Some(name.into()), ..Default::default() };
    let origin = Origin { names: names.into(), ..Place::Inherited.into() };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

fn ask(id: usize, method: &str, session: &str) -> String {
    format!(r#"{{"id":{id},"method":"{method}","params":{{"sessionId":"{session}"}}}}"#)
}

/// The worker makes a session of this name for a client.
fn makes(bench: &mut Bench, client: Peer, worker: Peer, session: &str) {
    bench.write(client, r#"{"id":"new","method":"session/new"}"#);
    let asked = bench.read_json(worker);
    bench.write(worker, &json!({"id": asked["id"], "result": {"sessionId": session}}).to_string());
    bench.read_one(client);
}

/// One worker that clients share.
fn one() -> Settings {
    settings(vec![pool(1, Assignment::Client)])
}

fn shared(mut settings: Settings) -> Settings {
    settings.routing.session_access = SessionAccess::Shared;
    settings
}

fn leaves(bench: &mut Bench, client: Peer) {
    bench.breaks(client);
    bench.gone(client);
}

#[test]
fn with_shared_access_each_user_may_use_the_session_of_another_one_and_names_that_no_worker_has_given_out() {
    let mut bench = Bench::new(shared(one()));
    let (alice, bob, worker) = (named(&mut bench, "alice"), named(&mut bench, "bob"), bench.worker(0));
    makes(&mut bench, alice, worker, "s");
    for (id, session) in [(2, "s"), (3, "not given out")] {
        let line = ask(id, "session/prompt", session);
        bench.write(bob, &line);
        assert_eq!((bench.read(worker), bench.read(bob)), (vec![line], vec![]), "{session}");
    }
}

#[test]
fn a_session_that_a_user_has_loaded_while_access_was_shared_stays_usable_when_it_is_not_shared_any_more() {
    let mut settings = shared(one());
    let mut bench = Bench::new(settings.clone());
    let (alice, bob, worker) = (named(&mut bench, "alice"), named(&mut bench, "bob"), bench.worker(0));
    makes(&mut bench, alice, worker, "s");
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    bench.write(bob, &ask(2, "session/load", "s"));
    bench.read_one(worker);
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    bench.read_one(bob);
    settings.routing.session_access = SessionAccess::Owner;
    bench.reload(&settings);
    bench.write(bob, &ask(3, "session/prompt", "s"));
    assert_eq!((bench.read(worker), bench.read(bob)), (vec![ask(3, "session/prompt", "s")], vec![]));
}

#[test]
fn with_shared_access_a_task_is_every_users() {
    for is_shared in [false, true] {
        let settings = settings(vec![pool(2, Assignment::RoundRobin)]);
        let mut bench = Bench::new(if is_shared { shared(settings) } else { settings });
        let (alice, bob) = (named(&mut bench, "alice"), named(&mut bench, "bob"));
        bench.write(alice, r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#);
        let worker = bench.busy_worker();
        bench.write(worker, r#"{"id":1,"result":{"resultType":"task","taskId":"t","status":"working"}}"#);
        bench.write(bob, r#"{"id":2,"method":"tasks/get","params":{"taskId":"t"}}"#);
        assert_eq!((bench.read(worker).len(), bench.read(bob).len()), if is_shared { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn a_user_of_the_same_name_on_another_listener_has_no_access_to_a_task() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners.push(Listener::default());
    let mut bench = Bench::new(settings);
    let (alice, worker) = (named(&mut bench, "alice"), bench.worker(0));
    let names = crate::origin::Names { token: Some("alice".into()), ..Default::default() };
    let other = Origin { names: names.into(), ..Origin::default() };
    let other = Peer::Client(bench.connect(1, other).expect("there is room"));
    bench.write(alice, r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#);
    bench.read_one(worker);
    bench.write(worker, r#"{"id":1,"result":{"resultType":"task","taskId":"t","status":"working"}}"#);
    bench.write(other, r#"{"id":2,"method":"tasks/get","params":{"taskId":"t"}}"#);
    assert_eq!((bench.read_error(other).0.as_str(), bench.read(worker).len()), ("session_denied", 0));
}

#[test]
fn a_request_for_a_task_whose_worker_is_ending_gets_an_error_and_is_sent_to_no_other_one() {
    let mut bench = bench(2);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#);
    let worker = bench.busy_worker();
    bench.write(worker, r#"{"id":1,"result":{"resultType":"task","taskId":"t","status":"working"}}"#);
    bench.read(client);
    bench.breaks(worker);
    for id in 2..4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"tasks/get","params":{{"taskId":"t"}}}}"#));
        assert_eq!(bench.read_error(client).0, "worker_exited");
    }
    let all = bench.workers.clone();
    assert!(all.into_iter().all(|worker| bench.read(Peer::Worker(worker)).is_empty()));
}

#[test]
fn a_session_whose_owner_has_left_may_be_forked() {
    let mut bench = Bench::new(one());
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    makes(&mut bench, owner, worker, "s");
    makes(&mut bench, other, worker, "mine");
    leaves(&mut bench, owner);
    bench.write(other, &ask(2, "session/fork", "s"));
    assert_eq!((bench.read(worker), bench.read(other)), (vec![ask(2, "session/fork", "s")], vec![]));
    // The one that is forked is the one in the params.
    bench.write(other, r#"{"id":3,"method":"session/fork","sessionId":"s","params":{"sessionId":"mine"}}"#);
    assert_eq!((bench.read_error(other).0.as_str(), bench.read(worker).len()), ("session_denied", 0));
}

#[test]
fn a_fork_or_a_message_that_another_session_leads_or_a_cancellation_takes_no_session_over() {
    let fork = ask(3, "session/fork", "s");
    let led = r#"{"id":3,"method":"x","sessionId":"t","params":{"sessionId":"s"}}"#;
    let cancels = r#"{"method":"notifications/cancelled","params":{"requestId":2,"sessionId":"s"}}"#;
    for line in [&*fork, led, cancels] {
        let mut bench = Bench::new(one());
        let (old, new, worker) = (named(&mut bench, "alice"), named(&mut bench, "alice"), bench.worker(0));
        makes(&mut bench, old, worker, "s");
        makes(&mut bench, new, worker, "t");
        bench.write(new, r#"{"id":2,"method":"y"}"#);
        bench.read_one(worker);
        bench.write(new, line);
        assert_eq!((bench.count(Reason::SessionDenied), bench.count(Reason::SessionTaken)), (1, 0), "{line}");
        assert!(bench.read(worker).is_empty(), "{line}");
        bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
        assert_eq!(bench.read(old).len(), 1, "{line}");
    }
}

#[test]
fn a_session_that_is_taken_over_leaves_the_elicitations_of_others_where_they_are() {
    let mut bench = Bench::new(one());
    let (old, other, worker) = (named(&mut bench, "alice"), named(&mut bench, "bob"), bench.worker(0));
    makes(&mut bench, old, worker, "s");
    makes(&mut bench, other, worker, "t");
    bench.write(worker, r#"{"id":7,"method":"elicitation/create","params":{"sessionId":"t","elicitationId":"e"}}"#);
    bench.write(other, r#"{"id":7,"result":{"action":"accept"}}"#);
    let new = named(&mut bench, "alice");
    bench.write(new, &ask(5, "session/load", "s"));
    assert_eq!(bench.count(Reason::SessionTaken), 1);
    bench.read(other);
    let complete = r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#;
    bench.write(worker, complete);
    assert_eq!((bench.read(other), bench.read(new).len()), (vec![complete.to_owned()], 0));
}

#[test]
fn a_worker_that_asks_the_same_client_again_under_the_same_elicitation_completes_it_there() {
    let mut bench = Bench::new(one());
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    makes(&mut bench, client, worker, "s");
    makes(&mut bench, other, worker, "t");
    for id in [7, 8] {
        bench.write(
            worker,
            &format!(r#"{{"id":{id},"method":"elicitation/create","params":{{"sessionId":"s","elicitationId":"e"}}}}"#),
        );
        bench.write(client, &format!(r#"{{"id":{id},"result":{{"action":"accept"}}}}"#));
    }
    bench.read(client);
    let complete = r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#;
    bench.write(worker, complete);
    assert_eq!((bench.read(client), bench.read(other).len()), (vec![complete.to_owned()], 0));
}

#[test]
fn a_session_outside_of_the_clients_pool_is_not_opened_by_an_own_one_beside_it() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut both = settings(vec![of("a"), of("b")]);
    both.listeners[0].pool = Some(PoolId::at(0));
    let mut bench = Bench::new(both);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(1));
    bench.write(owner, r#"{"method":"x","pool":"b","sessionId":"theirs"}"#);
    bench.write(other, r#"{"method":"x","pool":"b","sessionId":"mine"}"#);
    assert_eq!(bench.read(worker).len(), 2);
    bench.write(other, r#"{"id":1,"method":"x","sessionId":"theirs","params":{"sessionId":"mine"}}"#);
    assert_eq!((bench.read_error(other).0.as_str(), bench.read(worker).len()), ("session_denied", 0));
}

#[test]
fn a_claim_that_was_not_used_for_long_can_be_made_again() {
    let mut settings = one();
    settings.limits.session_idle = Some(seconds(8));
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 1..3 {
        let line = format!(r#"{{"id":{id},"method":"x","sessionId":"s"}}"#);
        bench.write(client, &line);
        assert_eq!((bench.read(worker), bench.read(client)), (vec![line], vec![]));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
        bench.read_one(client);
        bench.pass(seconds(20));
        assert_eq!(bench.count(Reason::SessionIdle), id);
    }
}

#[test]
fn a_request_that_is_refused_takes_no_claim_from_its_client() {
    let mut bench = Bench::new(one());
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"x","sessionId":"s"}"#);
    bench.fills_pending(client);
    bench.write(client, r#"{"id":"more","method":"x","sessionId":"s"}"#);
    assert_eq!(bench.read_error(client).0, "pending_limit");
    bench.write(other, r#"{"method":"x","sessionId":"s"}"#);
    assert_eq!(bench.count(Reason::SessionDenied), 1);
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read(client).len(), 1);
}

#[test]
fn a_message_about_a_request_names_it_as_the_worker_does_and_never_anothers() {
    let mut bench = bench(1);
    let (first, second, third, worker) = (bench.client(), bench.client(), bench.client(), bench.worker(0));
    let about = |id: &Value| format!(r#"{{"method":"x/about","params":{{"requestId":{id}}}}}"#);
    for client in [first, second] {
        bench.write(client, r#"{"id":5,"method":"x"}"#);
    }
    let sent: Vec<Value> = bench.read(worker).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_ne!(sent[0]["id"], sent[1]["id"]);
    for (client, sent) in [first, second].into_iter().zip(&sent) {
        bench.write(client, &about(&Value::from(5)));
        assert_eq!(bench.read_one(worker), about(&sent["id"]));
    }
    for anothers in [Value::from(5), sent[1]["id"].clone()] {
        bench.write(third, &format!(r#"{{"id":"a","method":"x/about","params":{{"requestId":{anothers}}}}}"#));
        assert_eq!((bench.read_error(third).0.as_str(), bench.read(worker).len()), ("unknown_request", 0));
    }
    bench.write(third, r#"{"method":"x/about","params":{"requestId":5.0}}"#);
    assert!(bench.read(worker).is_empty(), "some parsers take it for the first one's");
    bench.write(third, &about(&Value::from(77)));
    assert_eq!(bench.read_one(worker), about(&Value::from(77)));
}

#[test]
fn a_session_whose_load_was_only_echoed_is_free_when_its_client_has_left() {
    let mut bench = Bench::new(one());
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    let load = ask(1, "session/load", "s");
    bench.write(client, &load);
    bench.write(worker, &load);
    assert_eq!((bench.read(worker).len(), bench.read_one(client)), (1, load));
    leaves(&mut bench, client);
    bench.write(other, &ask(2, "session/prompt", "s"));
    assert_eq!((bench.read(worker).len(), bench.read(other).len()), (1, 0));
}

#[test]
fn a_pool_in_the_place_of_a_removed_one_knows_nothing_of_the_users_of_its_sessions() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::Client) };
    let mut settings = settings(vec![of("old"), of("new")]);
    let mut bench = Bench::new(settings.clone());
    let (alice, old) = (named(&mut bench, "alice"), bench.worker(0));
    makes(&mut bench, alice, old, "s");
    let new = bench.worker(1);
    bench.write(alice, r#"{"id":"new","method":"session/new","pool":"new"}"#);
    bench.write(new, r#"{"id":"new","result":{"sessionId":"bound, too"}}"#);
    bench.read(new);
    leaves(&mut bench, alice);
    settings.pools[0].is_gone = true;
    bench.reload(&settings);
    bench.pass(seconds(1));
    bench.dies(old);
    assert!(!bench.bus.view().pool_in_use(0));
    settings.pools[0] = of("third");
    bench.reload(&settings);
    bench.pass(seconds(1));
    let bob = named(&mut bench, "bob");
    for (id, pool) in [(1, "new"), (2, "third")] {
        bench.write(
            bob,
            &format!(r#"{{"id":{id},"method":"session/load","pool":"{pool}","params":{{"sessionId":"s"}}}}"#),
        );
        bench.busy_worker();
        assert!(bench.read(bob).is_empty(), "{pool}");
    }
}

#[test]
fn a_client_that_asked_for_a_session_just_made_for_a_client_that_left_does_not_free_its_name() {
    let mut bench = Bench::new(one());
    let (left, guesses, other, worker) = (bench.client(), bench.client(), bench.client(), bench.worker(0));
    bench.write(left, r#"{"id":1,"method":"session/new"}"#);
    bench.write(guesses, &ask(2, "session/load", "n"));
    assert_eq!(bench.read(worker).len(), 2);
    leaves(&mut bench, left);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"n"}}"#);
    bench.write(worker, r#"{"id":2,"error":{"code":-32002,"message":"no"}}"#);
    bench.read_one(guesses);
    bench.write(other, r#"{"id":3,"method":"x","sessionId":"n"}"#);
    assert_eq!((bench.read_error(other).0.as_str(), bench.read(worker).len()), ("session_denied", 0));
}

#[test]
fn an_answer_to_a_session_request_that_is_nested_too_deeply_ends_what_waits_for_that_session() {
    let mut bench = Bench::new(one());
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"n"}}"#);
    assert!(bench.bus.view().bytes_waiting() > 0);
    let deep = format!("{}{}", "[".repeat(1_100), "]".repeat(1_100));
    bench.write(worker, &format!(r#"{{"id":1,"result":{{"sessionId":"n","x":{deep}}}}}"#));
    assert_eq!(bench.read_error(client).0, "too_deep");
    assert_eq!((bench.bus.view().bytes_waiting(), bench.count(Reason::UnknownSession)), (0, 1));
}

#[test]
fn a_result_without_an_id_answers_no_request_and_a_rounded_id_none_if_it_may_mean_two() {
    for (ids, answer) in [
        (&[1_234_567][..], r#"{"result":{}}"#),
        (&[1_234_567, 1_234_568], r#"{"id":1.23457e6,"result":{}}"#),
        (&[1_234_567], r#"{"id":9.87654e6,"result":{}}"#),
    ] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        for id in ids {
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        }
        bench.write(worker, answer);
        assert_eq!((bench.read(client).len(), bench.count(Reason::UnknownId)), (0, 1), "{answer}");
        for id in ids {
            bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
        }
        assert_eq!(bench.read(client).len(), ids.len(), "each still gets its answer");
    }
}

#[test]
fn a_client_that_loads_a_session_while_the_table_is_full_has_room_made_and_its_children_wait() {
    let mut bench = Bench::new(one());
    let (owner, heavy, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(
        owner,
        r#"{"id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"subagents":{}}}}"#,
    );
    bench.read(worker);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.read(owner);
    makes(&mut bench, owner, worker, "a");
    let announced = r#"{"method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"subagent_update","sessionId":"c"}}}"#;
    bench.write(worker, announced);
    leaves(&mut bench, owner);
    for number in 0..1_024 {
        bench.write(heavy, &format!(r#"{{"method":"x","sessionId":"s{number}"}}"#));
        bench.read(worker);
    }
    assert_eq!(bench.bus.view().stats().sessions, 1_024);
    let next = bench.client();
    bench.write(next, &ask(9, "session/load", "a"));
    assert_eq!((bench.read(worker).len(), bench.count(Reason::SessionEvicted)), (1, 1));
    bench.write(worker, r#"{"id":9,"result":{}}"#);
    bench.read_one(next);
    assert_eq!(bench.bus.view().stats().sessions, 1_024);
    let update = r#"{"method":"session/update","params":{"sessionId":"c"}}"#;
    bench.write(worker, update);
    assert!(bench.read(next).is_empty(), "it had no room");
    bench.write(worker, announced);
    assert_eq!(bench.read(next), [announced, update]);
}

#[test]
fn a_session_that_is_loaded_after_its_owner_has_left_is_not_idle_at_once_but_in_its_time() {
    let mut settings = one();
    settings.limits.session_idle = Some(seconds(8));
    let mut bench = Bench::new(settings);
    let (owner, worker) = (bench.client(), bench.worker(0));
    makes(&mut bench, owner, worker, "s");
    leaves(&mut bench, owner);
    bench.pass(seconds(100));
    let next = bench.client();
    bench.write(next, &ask(2, "session/load", "s"));
    bench.read_one(worker);
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    bench.read_one(next);
    bench.pass(seconds(4));
    assert_eq!(bench.count(Reason::SessionIdle), 0);
    bench.pass(seconds(10));
    assert_eq!(bench.count(Reason::SessionIdle), 1);
}

#[test]
fn a_session_that_a_worker_makes_anew_under_a_lost_name_is_not_lost_where_the_pool_is_named() {
    let mut bench = Bench::new(one());
    let (client, worker) = (bench.client(), bench.worker(0));
    makes(&mut bench, client, worker, "s");
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    makes(&mut bench, client, worker, "s");
    bench.write(client, r#"{"id":2,"method":"session/prompt","pool":"agents","params":{"sessionId":"s"}}"#);
    assert_eq!((bench.read(worker).len(), bench.read(client).len()), (1, 0));
}

#[test]
fn a_session_that_was_lost_in_one_pool_does_not_hide_the_one_of_that_name_in_another_pool() {
    let pools = ["a", "b"].map(|id| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) });
    let mut bench = Bench::new(settings(pools.to_vec()));
    let (client, [a, b]) = (bench.client(), [bench.worker(0), bench.worker(1)]);
    for (id, (pool, worker)) in [("a", a), ("b", b)].into_iter().enumerate() {
        bench.write(client, &format!(r#"{{"id":{id},"method":"session/new","pool":"{pool}"}}"#));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"1"}}}}"#));
        bench.read(worker);
    }
    bench.dies(a);
    bench.pass(seconds(1));
    bench.read(client);
    bench.write(client, r#"{"id":9,"method":"session/prompt","pool":"b","params":{"sessionId":"1"}}"#);
    assert_eq!((bench.read(b).len(), bench.read(client).len()), (1, 0));
    bench.write(client, r#"{"id":10,"method":"session/prompt","pool":"a","params":{"sessionId":"1"}}"#);
    assert_eq!(bench.read_error(client).0, "session_lost");
}

#[test]
fn a_session_that_was_made_for_one_user_meanwhile_is_not_given_to_another_one_who_asked_for_its_name() {
    // One that the worker makes for a client is its own, though, whoever has one of that name elsewhere.
    for is_made in [false, true] {
        let mut bench = Bench::new(settings(vec![pool(2, Assignment::Client)]));
        let (alice, bob) = (named(&mut bench, "alice"), named(&mut bench, "bob"));
        bench.write(alice, r#"{"id":1,"method":"session/new"}"#);
        let alices = bench.busy_worker();
        let (line, answer) = match is_made {
            true => (r#"{"method":"x","sessionId":"x"}"#.to_owned(), r#"{"id":3,"result":{"sessionId":"x"}}"#),
            false => (ask(2, "session/load", "x"), r#"{"id":2,"result":{}}"#),
        };
        bench.write(bob, &line);
        let bobs = bench.busy_worker();
        assert_ne!(alices, bobs);
        bench.write(alices, r#"{"id":1,"result":{"sessionId":"x"}}"#);
        if is_made {
            bench.write(bob, r#"{"id":3,"method":"session/new"}"#);
            bench.read_one(bobs);
        }
        bench.write(bobs, answer);
        bench.read_one(bob);
        bench.write(bob, &ask(4, "session/prompt", "x"));
        assert_eq!((bench.read(bobs).len(), bench.read(bob).len()), if is_made { (1, 0) } else { (0, 1) });
        bench.write(alice, &ask(5, "session/prompt", "x"));
        assert_eq!(bench.read(alices).len(), 1);
    }
}

#[test]
fn a_newer_connection_takes_a_claim_over_where_workers_make_no_names_but_not_what_is_still_asked_for() {
    let mut bench = Bench::new(one());
    let (old, new, worker) = (named(&mut bench, "alice"), named(&mut bench, "alice"), bench.worker(0));
    bench.write(old, r#"{"method":"x","sessionId":"claimed"}"#);
    bench.write(old, &ask(1, "session/load", "asked for"));
    assert_eq!(bench.read(worker).len(), 2);
    bench.write(new, r#"{"id":2,"method":"x","sessionId":"asked for"}"#);
    assert_eq!((bench.read_error(new).0.as_str(), bench.count(Reason::SessionTaken)), ("session_denied", 0));
    bench.write(new, r#"{"id":3,"method":"x","sessionId":"claimed"}"#);
    assert_eq!((bench.read(worker).len(), bench.count(Reason::SessionTaken)), (1, 1));
}

#[test]
fn a_session_that_is_taken_over_ends_only_the_requests_in_it() {
    let mut bench = Bench::new(one());
    let (old, worker) = (named(&mut bench, "alice"), bench.worker(0));
    makes(&mut bench, old, worker, "s");
    makes(&mut bench, old, worker, "t");
    bench.write(old, r#"{"id":"free","method":"x"}"#);
    bench.write(old, &ask(2, "session/prompt", "t"));
    bench.write(old, &ask(3, "session/prompt", "s"));
    bench.read(worker);
    let new = named(&mut bench, "alice");
    bench.write(new, &ask(4, "session/load", "s"));
    assert_eq!(bench.read_error(old), ("session_taken".to_owned(), -32014, 3.into()));
    for id in [r#""free""#, "2"] {
        let answer = format!(r#"{{"id":{id},"result":{{}}}}"#);
        bench.write(worker, &answer);
        assert_eq!(bench.read_one(old), answer);
    }
}

#[test]
fn a_client_whose_token_is_good_for_some_pools_uses_the_first_of_them_that_its_listener_offers() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut three = settings(vec![of("a"), of("b"), of("c")]);
    three.listeners[0].pools = Some(places(&[1, 2]));
    for (pools, reader) in [(&[0, 2][..], 2), (&[0, 1], 1)] {
        let mut bench = Bench::new(three.clone());
        let origin = Origin { pools: Some(places(pools).into()), ..Origin::default() };
        let client = Peer::Client(bench.connect(0, origin).expect("there is room"));
        for _ in 0..2 {
            bench.write(client, r#"{"method":"x"}"#);
        }
        let read: Vec<usize> = (0..3).map(|at| bench.read(bench.worker(at)).len()).collect();
        assert_eq!((read[reader], read.iter().sum::<usize>()), (2, 2), "{pools:?}");
    }
}
