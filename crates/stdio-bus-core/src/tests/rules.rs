//! `listeners[].rules`: what clients may not use because of their names and groups, beside what their pools deny.

use std::sync::Arc;

use super::*;
use crate::origin::Names;
use crate::settings::{RuleScope, Rules, Start};

/// No rules.
fn none(whom: RuleScope) -> Rules {
    Rules { whom, deny_methods: Vec::new(), tools: ToolRules::default() }
}

fn denied(whom: RuleScope, tools: &[&str]) -> Rules {
    Rules { tools: ToolRules { deny: owned(tools), ..ToolRules::default() }, ..none(whom) }
}

fn allowed(whom: RuleScope, tools: &[&str]) -> Rules {
    Rules { tools: ToolRules { allow: Some(owned(tools)), ..ToolRules::default() }, ..none(whom) }
}

fn without(whom: RuleScope, method: &str) -> Rules {
    Rules { deny_methods: owned(&[method]), ..none(whom) }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

fn name(name: &str) -> RuleScope {
    RuleScope::Name(name.into())
}

fn group(group: &str) -> RuleScope {
    RuleScope::Group(group.into())
}

/// One worker, behind a listener with these rules and one without any.
fn ruled(rules: Vec<Rules>) -> Settings {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners = vec![Listener { rules, ..Listener::default() }, Listener::default()];
    settings
}

/// A client with a token of this name, in these groups.
fn client(bench: &mut Bench, name: &str, groups: &str) -> Peer {
    let names = Names { token: Some(name.into()), ..Names::default() };
    connected(bench, names, groups)
}

fn connected(bench: &mut Bench, names: Names, groups: &str) -> Peer {
    let groups = (!groups.is_empty()).then(|| groups.into());
    let origin = Origin { names: names.into(), groups, ..Origin::default() };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

fn call(tool: &str) -> String {
    format!(r#"{{"id":1,"method":"tools/call","params":{{"name":"{tool}"}}}}"#)
}

/// Whether the worker gets a line of a client; else that is answered with an error.
fn passes(bench: &mut Bench, client: Peer, line: &str) -> bool {
    let worker = bench.worker(0);
    bench.write(client, line);
    let passed = !bench.read(worker).is_empty();
    assert_eq!(bench.read(client).is_empty(), passed, "{line} gets an error, or reaches the worker");
    passed
}

/// The text of the error that a line of a client gets.
fn refusal(bench: &mut Bench, client: Peer, line: &str) -> String {
    bench.write(client, line);
    bench.read_json(client)["error"]["message"].as_str().expect("it is refused").to_owned()
}

#[test]
fn a_rule_for_a_name_is_for_all_clients_that_somebody_has_verified_by_it_and_for_no_others() {
    let mut bench = Bench::new(ruled(vec![denied(name("alice"), &["delete_*"])]));
    let alice = || Some(Arc::from("alice"));
    for names in [
        Names { token: alice(), ..Names::default() },
        Names { user: alice(), ..Names::default() },
        Names { common_name: Some("alice".into()), ..Names::default() },
        Names { token: alice(), common_name: Some("bob".into()), ..Names::default() },
        Names { token: Some("bob".into()), common_name: Some("alice".into()), ..Names::default() },
    ] {
        let client = connected(&mut bench, names, "");
        assert!(!passes(&mut bench, client, &call("delete_all")));
        assert!(passes(&mut bench, client, &call("read")));
    }
    for names in [
        Names { token: Some("alicf".into()), ..Names::default() },
        Names { server_name: Some("alice".into()), ..Names::default() },
        Names::default(),
    ] {
        let client = connected(&mut bench, names, "alice");
        assert!(passes(&mut bench, client, &call("delete_all")));
    }
    assert_eq!(bench.count(Reason::ToolDenied), 5);
    let counts: Vec<_> = bench.bus.view().denied_tools().map(|(_, rule, count)| (rule.to_owned(), count)).collect();
    assert_eq!(counts, [("delete_*".to_owned(), 5)]);
}

#[test]
fn a_rule_for_a_group_is_for_those_who_are_in_it_and_that_of_the_star_for_everybody() {
    let mut bench = Bench::new(ruled(vec![denied(group("interns"), &["delete"]), denied(group("*"), &["format"])]));
    for (groups, is_in) in [
        ("interns", true),
        ("staff, interns ,ops", true),
        ("interns,", true),
        ("internship", false),
        ("Interns", false),
        ("staff interns", false),
        ("", false),
    ] {
        let client = client(&mut bench, "alice", groups);
        assert_eq!(passes(&mut bench, client, &call("delete")), !is_in, "{groups}");
        assert!(!passes(&mut bench, client, &call("format")), "{groups}");
        assert!(passes(&mut bench, client, &call("read")), "{groups}");
    }
    let elsewhere = bench.client_of(1);
    assert!(passes(&mut bench, elsewhere, &call("format")), "the listener has no rules");
    let nobody = bench.client_of(0);
    assert!(!passes(&mut bench, nobody, &call("format")), "nobody is somebody");
}

#[test]
fn a_call_has_to_pass_the_rules_of_its_pool_its_name_and_each_of_its_groups() {
    let mut settings = ruled(vec![
        allowed(name("alice"), &["read_*", "write_*"]),
        allowed(group("staff"), &["read_*", "list", "write_x"]),
        denied(group("interns"), &["read_secret"]),
    ]);
    settings.pools[0].tools.deny = owned(&["read_pool"]);
    let mut bench = Bench::new(settings);
    let both = client(&mut bench, "alice", "staff,interns");
    for (tool, passed) in [
        ("read_a", true),
        ("write_x", true),
        ("read_pool", false),
        ("read_secret", false),
        ("list", false),
        ("write_y", false),
        ("other", false),
    ] {
        assert_eq!(passes(&mut bench, both, &call(tool)), passed, "{tool}");
    }
    let bob = client(&mut bench, "bob", "interns");
    assert!(passes(&mut bench, bob, &call("other")) && !passes(&mut bench, bob, &call("read_pool")));
}

#[test]
fn a_refusal_names_the_key_with_the_rule_and_no_group_that_the_client_is_not_in() {
    let mut bench = Bench::new(ruled(vec![
        denied(name("alice"), &["a"]),
        denied(group("interns"), &["b"]),
        allowed(group("*"), &["a", "b", "c"]),
        without(group("interns"), "session/list"),
    ]));
    let alice = client(&mut bench, "alice", "interns");
    for (line, key) in [
        (call("a"), "listeners[].rules.names"),
        (call("b"), "the group \"interns\" (deny_tools, listeners[].rules.groups)"),
        (call("d"), "allow_tools of \"*\", listeners[].rules.groups"),
        (
            r#"{"id":1,"method":"session/list"}"#.into(),
            "the group \"interns\" (deny_methods, listeners[].rules.groups)",
        ),
    ] {
        let text = refusal(&mut bench, alice, &line);
        assert!(text.contains(key), "{text}");
    }
    let bob = client(&mut bench, "bob", "");
    assert!(!refusal(&mut bench, bob, &call("d")).contains("interns"));
}

#[test]
fn a_method_is_denied_to_a_group_also_in_a_session_as_a_notification_and_in_an_envelope() {
    let mut bench = Bench::new(ruled(vec![without(group("interns"), "session/list")]));
    let (intern, other, worker) =
        (client(&mut bench, "a", "interns"), client(&mut bench, "b", "staff"), bench.worker(0));
    for line in [
        r#"{"id":1,"method":"session/list"}"#,
        r#"{"id":1,"method":"session\/list","sessionId":"s"}"#,
        r#"{"id":1,"method":"proxy/successor","params":{"method":"session/list"}}"#,
    ] {
        bench.write(intern, line);
        assert_eq!(bench.read_error(intern), ("method_denied".into(), -32601, Value::from(1)), "{line}");
    }
    bench.write(intern, r#"{"method":"session/list"}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::MethodDenied), 4);
    assert!(passes(&mut bench, other, r#"{"id":1,"method":"session/list"}"#));
}

#[test]
fn a_call_that_servers_may_read_in_different_ways_is_denied_to_those_with_rules_alone() {
    let mut bench = Bench::new(ruled(vec![denied(group("interns"), &["shell"])]));
    let (intern, other, worker) = (client(&mut bench, "a", "interns"), client(&mut bench, "b", ""), bench.worker(0));
    let line = r#"{"id":1,"method":"tools/call","params":{"name":"x","Name":"shell"}}"#;
    assert!(passes(&mut bench, other, line) && !passes(&mut bench, intern, line));
    for (client, session, is_refused) in [(other, "b", false), (intern, "a", true)] {
        assert!(passes(&mut bench, client, &format!(r#"{{"id":2,"method":"x","sessionId":"{session}"}}"#)));
        bench.write(worker, &format!(r#"{{"id":"w","method":"roots/list","sessionId":"{session}"}}"#));
        let id = bench.read_json(client)["id"].clone();
        bench.write(client, &format!(r#"{{"id":{id},"result":{{}},"METHOD":"tools/call"}}"#));
        assert_eq!(bench.read_json(worker)["error"].is_object(), is_refused);
    }
}

#[test]
fn a_denied_call_starts_no_worker() {
    let mut settings = ruled(vec![denied(group("interns"), &["shell"])]);
    settings.pools[0] = Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) };
    let mut bench = Bench::new(settings);
    let intern = client(&mut bench, "a", "interns");
    bench.write(intern, &call("shell"));
    assert_eq!(bench.read_error(intern).0, "tool_denied");
    assert_eq!(bench.workers.len(), 1, "the spare is where it was");
    bench.write(intern, &call("read"));
    assert_eq!(bench.workers.len(), 2);
}

#[test]
fn each_line_has_the_rules_of_the_groups_that_its_sender_is_in() {
    let mut bench = Bench::new(ruled(vec![denied(group("interns"), &["shell"])]));
    let client = client(&mut bench, "alice", "staff");
    let Peer::Client(key) = client else { unreachable!("it is one") };
    for (groups, passed) in [("interns", false), ("", true), ("staff,interns", false), ("staff", true)] {
        bench.bus.note_groups(key, Some(&groups.into()));
        for _ in 0..2 {
            assert_eq!(passes(&mut bench, client, &call("shell")), passed, "{groups}");
        }
    }
    bench.bus.note_groups(key, Some(&"interns".into()));
    bench.bus.note_groups(key, None);
    assert!(passes(&mut bench, client, &call("shell")), "who says no groups is in none");
}

#[test]
fn changed_rules_hold_for_the_next_line_of_clients_that_are_connected() {
    let mut bench = Bench::new(ruled(Vec::new()));
    let (alice, intern) = (client(&mut bench, "alice", ""), client(&mut bench, "b", "interns"));
    let after = |rules: Vec<Rules>| {
        let mut settings = ruled(rules);
        settings.pools[0].generation = 0;
        settings
    };
    for (rules, passed) in [
        (vec![], [true, true]),
        (vec![denied(name("alice"), &["x"])], [false, true]),
        (vec![denied(group("interns"), &["x"]), denied(name("alice"), &["y"])], [true, false]),
        (vec![denied(name("bob"), &["x"]), denied(group("*"), &["x"])], [false, false]),
        (vec![], [true, true]),
    ] {
        bench.reload(&after(rules.clone()));
        assert_eq!([alice, intern].map(|client| passes(&mut bench, client, &call("x"))), passed, "{rules:?}");
    }
}

#[test]
fn a_call_that_waits_is_denied_by_rules_that_came_meanwhile() {
    let mut bench = Bench::new(ruled(Vec::new()));
    let (alice, worker) = (client(&mut bench, "alice", ""), bench.worker(0));
    bench.handle(Input::PausePool(PoolId::at(0)));
    bench.write(alice, &call("x"));
    assert!(bench.read(worker).is_empty() && bench.read(alice).is_empty());
    bench.reload(&ruled(vec![denied(name("alice"), &["x"])]));
    bench.handle(Input::ResumePool(PoolId::at(0)));
    assert_eq!(bench.read_error(alice).0, "tool_denied");
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_call_that_several_pools_deny_wakes_none_of_them_and_takes_no_turn() {
    let on_demand = |id: &str| Pool { id: id.into(), start: Start::OnDemand, ..pool(1, Assignment::RoundRobin) };
    let mut settings = settings(vec![on_demand("a"), on_demand("b")]);
    settings.listeners = vec![Listener { rules: vec![denied(name("alice"), &["x"])], ..Listener::default() }];
    let mut bench = Bench::new(settings);
    let alice = client(&mut bench, "alice", "");
    bench.write(alice, &call("x"));
    assert_eq!(bench.read_error(alice).0, "tool_denied");
    assert_eq!((bench.workers.len(), bench.count(Reason::PoolWoken)), (0, 0));
    let counted: Vec<u64> = bench.bus.view().denied_tools().map(|(_, _, count)| count).collect();
    assert_eq!(counted, [1], "it is counted once");
    bench.write(alice, &call("y"));
    assert_eq!((bench.workers.len(), bench.count(Reason::PoolWoken)), (1, 1));
}

#[test]
fn a_pool_that_denies_a_call_is_not_woken_for_it_while_another_one_sleeps_that_does_not() {
    let on_demand = |id: &str, deny: &[&str]| {
        let tools = ToolRules { deny: owned(deny), ..ToolRules::default() };
        Pool { id: id.into(), start: Start::OnDemand, tools, ..pool(1, Assignment::RoundRobin) }
    };
    let mut bench = Bench::new(settings(vec![on_demand("a", &["x"]), on_demand("b", &[])]));
    let alice = client(&mut bench, "alice", "");
    bench.write(alice, &call("x"));
    assert_eq!([0, 1].map(|pool| bench.bus.view().is_asleep(pool)), [true, false]);
}

#[test]
fn lines_of_clients_to_whom_no_rule_denies_anything_take_the_fast_path() {
    for (rules, is_fast) in [
        (vec![], [true, true]),
        (vec![none(name("alice")), none(group("*"))], [true, true]),
        (vec![denied(name("alice"), &["y"])], [false, true]),
        (vec![without(group("*"), "y")], [false, false]),
    ] {
        let mut bench = Bench::new(ruled(rules.clone()));
        let (alice, bob, worker) = (client(&mut bench, "alice", ""), client(&mut bench, "bob", ""), bench.worker(0));
        let fast = [alice, bob].map(|client| {
            // The first line of a client to a worker does not.
            bench.write(client, r#"{"method":"hello"}"#);
            let before = bench.bus.view().fast_lines();
            bench.write(client, r#"{"method":"x"}"#);
            assert_eq!(bench.read(worker).len(), 2);
            bench.bus.view().fast_lines() > before
        });
        assert_eq!(fast, is_fast, "{rules:?}");
    }
}
