//! `deny_methods`, `deny_tools`, `allow_tools`: what is denied reaches none of the pool's workers, by any route.

use super::*;

/// Two pools, of which the first denies two methods.
fn denying(assignment: Assignment) -> Bench {
    let first =
        Pool { max_instances: 3, deny_methods: vec!["session/list".into(), "é\"".into()], ..pool(1, assignment) };
    let second = Pool { id: "open".into(), ..pool(1, Assignment::RoundRobin) };
    Bench::new(settings(vec![first, second]))
}

#[test]
fn a_denied_request_is_answered_as_a_method_that_is_not_there() {
    let mut bench = denying(Assignment::RoundRobin);
    let (client, worker) = (bench.client(), bench.worker(0));
    for method in ["session/list", r"session\u002flist", r"session\/list", r#"\u00e9\""#] {
        bench.write(client, &format!(r#"{{"id":7,"method":"{method}","pool":"agents","sessionId":"s"}}"#));
        let message = bench.read_json(client);
        assert_eq!((&message["id"], &message["error"]["code"]), (&Value::from(7), &Value::from(-32601)), "{method}");
        assert_eq!(message["error"]["data"]["reason"], "method_denied");
        assert!(message["error"]["message"].as_str().expect("text").starts_with("Method not found"), "{message}");
    }
    assert_eq!((bench.bus.view().stats().sessions, bench.bus.view().stats().pending), (0, 0), "nothing is left behind");
    for method in ["session/lis", "session/list/", "Session/list"] {
        bench.write(client, &format!(r#"{{"id":7,"method":"{method}","pool":"agents"}}"#));
        assert_eq!(bench.read(worker).len(), 1, "{method}");
    }
    assert_eq!(bench.count(Reason::MethodDenied), 4);
}

#[test]
fn a_denied_notification_is_dropped_and_reported() {
    let mut bench = denying(Assignment::RoundRobin);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"session/list","pool":"agents"}"#);
    assert!(bench.read(client).is_empty() && bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::MethodDenied), 1);
}

#[test]
fn a_method_is_denied_in_a_session_and_as_a_cancellation_too() {
    let mut bench = denying(Assignment::RoundRobin);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s","pool":"agents"}"#);
    bench.read_one(worker);
    bench.write(client, r#"{"id":2,"method":"session/list","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read_error(client), ("method_denied".into(), -32601, Value::from(2)));
    bench.write(client, r#"{"method":"session/list","params":{"requestId":1}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::MethodDenied), 2);
}

#[test]
fn an_envelope_in_an_envelope_hides_no_method_and_no_session_of_another_client() {
    let mut bench = denying(Assignment::RoundRobin);
    let (owner, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"x","sessionId":"s","pool":"agents"}"#);
    bench.read_one(worker);
    for inner in [r#"{"method":"session/list"}"#, r#"{"method":"session/prompt","params":{"sessionId":"s"}}"#] {
        let nested = format!(r#"{{"method":"proxy/success\u006fr","params":{inner}}}"#);
        bench.write(client, &format!(r#"{{"id":2,"method":"_proxy/successor","params":{nested},"pool":"agents"}}"#));
        assert_eq!(bench.read_error(client), ("method_denied".into(), -32601, Value::from(2)));
        bench.write(client, &format!(r#"{{"method":"_proxy/successor","params":{nested},"pool":"agents"}}"#));
    }
    assert!(bench.read(worker).is_empty() && bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::MethodDenied), 4);
}

#[test]
fn another_pool_and_the_workers_themselves_may_use_the_method() {
    let mut bench = denying(Assignment::RoundRobin);
    let (client, worker, open) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"session/list","pool":"open"}"#);
    bench.read_one(open);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s","pool":"agents"}"#);
    bench.write(worker, r#"{"id":3,"method":"session/list","sessionId":"s"}"#);
    bench.read_one(client);
    bench.write(client, r#"{"id":3,"result":{}}"#);
    assert_eq!(bench.read(worker).len(), 2);
    assert_eq!(bench.count(Reason::MethodDenied), 0);
}

#[test]
fn a_method_is_denied_where_the_pool_is_known_by_its_worker_alone() {
    let mut bench = denying(Assignment::RoundRobin);
    let (client, open) = (bench.client(), bench.worker(1));
    for id in 0..4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"session/list"}}"#));
    }
    assert_eq!((bench.read(client).len(), bench.read(open).len()), (2, 2), "the turns go on over both pools");
}

#[test]
fn a_new_name_for_a_session_of_another_pool_leaves_the_method_to_that_pool() {
    let mut both = settings(vec![
        Pool { deny_methods: vec!["session/list".into()], ..pool(1, Assignment::RoundRobin) },
        Pool { id: "open".into(), ..pool(1, Assignment::RoundRobin) },
    ]);
    both.listeners[0].pool = Some(PoolId::at(0));
    let mut bench = Bench::new(both);
    let (client, worker, open) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","pool":"open","params":{"sessionId":"s"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/list","sessionId":"new","params":{"sessionId":"s"}}"#);
    assert_eq!((bench.read(open).len(), bench.read(client).len()), (2, 0));
    bench.write(client, r#"{"id":3,"method":"session/list","sessionId":"another","params":{"sessionId":"none"}}"#);
    assert_eq!(bench.read_error(client).0, "method_denied");
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_denied_request_takes_no_turn() {
    let first = Pool { deny_methods: vec!["x".into()], ..pool(2, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![first]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.read_one(client);
    bench.write(client, r#"{"method":"y"}"#);
    bench.read_one(worker);
}

#[test]
fn a_denied_request_starts_no_dedicated_worker() {
    let mut bench = denying(Assignment::Dedicated);
    let client = bench.client();
    for line in [
        r#"{"id":1,"method":"session/list","pool":"agents"}"#,
        r#"{"id":2,"method":"session/list","pool":"agents","sessionId":"s"}"#,
    ] {
        bench.write(client, line);
        assert_eq!(bench.read_error(client).0, "method_denied");
    }
    assert_eq!(bench.workers.len(), 2, "the spare is where it was");
    bench.write(client, r#"{"id":3,"method":"x","pool":"agents"}"#);
    assert_eq!(bench.workers.len(), 3);
    bench.write(client, r#"{"id":4,"method":"session/list","pool":"agents"}"#);
    assert_eq!(bench.read_error(client).0, "method_denied");
}

/// A pool with these rules for tools.
fn of_tools(allow: Option<&[&str]>, deny: &[&str]) -> Bench {
    let owned = |patterns: &[&str]| patterns.iter().map(|pattern| pattern.to_string()).collect::<Vec<_>>();
    let tools = ToolRules { allow: allow.map(owned), deny: owned(deny) };
    Bench::new(settings(vec![Pool { tools, ..pool(1, Assignment::RoundRobin) }]))
}

fn call(id: u32, tool: &str) -> String {
    format!(r#"{{"id":{id},"method":"tools/call","params":{{"arguments":{{"name":"delete_x"}},"name":{tool}}}}}"#)
}

#[test]
fn a_denied_tool_is_answered_as_one_that_is_not_there_and_others_are_called() {
    let mut bench = of_tools(None, &["delete_*", "shell"]);
    let (client, worker) = (bench.client(), bench.worker(0));
    for tool in [r#""shell""#, r#""delete_""#, r#""delete_all""#, r#""\u0064elete_all""#] {
        bench.write(client, &call(7, tool));
        let message = bench.read_json(client);
        assert_eq!((&message["id"], &message["error"]["code"]), (&Value::from(7), &Value::from(-32602)), "{tool}");
        assert_eq!(message["error"]["data"]["reason"], "tool_denied");
        assert!(message["error"]["message"].as_str().expect("text").starts_with("Unknown tool"), "{message}");
    }
    for tool in [r#""shells""#, r#""delete""#, r#""Shell""#, r#""*""#] {
        bench.write(client, &call(7, tool));
        assert_eq!(bench.read(worker).len(), 1, "{tool}");
    }
    bench.write(client, r#"{"id":8,"method":"tools/list","params":{"name":"shell"}}"#);
    assert_eq!(bench.read(worker).len(), 1, "another method");
    bench.write(client, r#"{"method":"tools/call","params":{"name":"shell"}}"#);
    assert!(bench.read(client).is_empty() && bench.read(worker).is_empty(), "a notification is dropped and counted");
    assert_eq!(bench.count(Reason::ToolDenied), 5);
    let counts: Vec<_> = bench.bus.view().denied_tools().map(|(_, rule, count)| (rule.to_owned(), count)).collect();
    assert_eq!(counts, [("delete_*".to_owned(), 3), ("shell".to_owned(), 2)]);
}

#[test]
fn where_tools_are_allowed_by_name_no_other_is_called_and_a_denied_one_stays_denied() {
    let mut bench = of_tools(Some(&["read_*", "list"]), &["read_secret"]);
    let (client, worker) = (bench.client(), bench.worker(0));
    for (tool, reaches) in [("read_x", 1), ("list", 1), ("read_secret", 0), ("write", 0), ("", 0)] {
        bench.write(client, &call(1, &format!("{tool:?}")));
        assert_eq!(bench.read(worker).len(), reaches, "{tool}");
        assert_eq!(bench.read(client).len(), 1 - reaches, "{tool}");
    }
    let mut none = of_tools(Some(&[]), &[]);
    let client = none.client();
    none.write(client, &call(1, r#""list""#));
    assert_eq!(none.read_error(client), ("tool_denied".into(), -32602, Value::from(1)));
}

#[test]
fn a_call_that_servers_may_read_in_different_ways_reaches_none_with_rules() {
    let mut bench = of_tools(None, &["shell"]);
    let (client, worker) = (bench.client(), bench.worker(0));
    for line in [
        r#"{"id":1,"method":"tools/call","params":{"name":"x","name":"shell"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","Name":"shell"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x"},"Params":{"name":"shell"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x"},"param\u017f":{"name":"shell"}}"#,
        r#"{"id":1,"method":"ping","METHOD":"tools/call","params":{"name":"shell"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":["shell"]}}"#,
        r#"{"id":1,"method":"tools/call","params":["shell"]}"#,
        r#"{"id":1,"method":"tools/call"}"#,
        r#"{"id":1,"method":"proxy/successor","params":{"method":"tools/call","params":{"name":"shell"}}}"#,
        r#"{"id":1,"method":"proxy/successor","params":{"method":"m","Method":"tools/call","params":{"name":"shell"}}}"#,
    ] {
        bench.write(client, line);
        assert_eq!(bench.read_error(client), ("tool_denied".into(), -32602, Value::from(1)), "{line}");
    }
    assert!(bench.read(worker).is_empty());
    bench.write(client, r#"{"id":1,"method":"tools/call","params":{"arguments":{"Name":"shell"},"name":"x"},"Id":2}"#);
    assert_eq!(bench.read(worker).len(), 1, "what is in the arguments is the tool's");
}

#[test]
fn a_denied_method_is_not_let_through_for_servers_that_ignore_case() {
    let mut bench = denying(Assignment::RoundRobin);
    let (client, worker, open) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","Method":"session/list","pool":"agents"}"#);
    assert_eq!(bench.read_error(client), ("method_denied".into(), -32601, Value::from(1)));
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.bus.view().denied_tools().count(), 0, "it is no call of a tool");
    bench.write(client, r#"{"id":1,"method":"x","Method":"session/list","pool":"open"}"#);
    assert_eq!(bench.read(open).len(), 1, "where nothing is denied this is the server's");
}

#[test]
fn an_answer_that_a_server_may_take_for_a_call_fails_the_servers_request() {
    let mut bench = of_tools(None, &["shell"]);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.read_one(worker);
    for (at, answer) in [r#""result":{},"METHOD":"tools/call","params":{"name":"shell"}"#, r#""result":{"Method":"m"}"#]
        .into_iter()
        .enumerate()
    {
        bench.write(worker, r#"{"id":"w","method":"roots/list"}"#);
        let id = bench.read_json(client)["id"].clone();
        bench.write(client, &format!(r#"{{"id":{id},{answer}}}"#));
        let line = bench.read_json(worker);
        assert_eq!((&line["id"], line["error"].is_object()), (&Value::from("w"), at == 0), "{line}");
    }
    assert_eq!(bench.count(Reason::ToolDenied), 1);
}

#[test]
fn what_params_of_other_methods_are_called_is_up_to_them() {
    let mut bench = of_tools(None, &["shell"]);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"_ext/foo","params":{"Name":"x","name":"y","name":"z"}}"#);
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn denied_calls_of_a_pool_that_was_removed_do_not_count_for_the_next_one() {
    let mut bench = of_tools(None, &["shell"]);
    let client = bench.client();
    bench.write(client, &call(1, r#""shell""#));
    bench.read_one(client);
    assert_eq!(bench.bus.view().denied_tools().count(), 1);
    bench.reload(&settings(vec![Pool { id: "another".into(), ..pool(1, Assignment::RoundRobin) }]));
    assert_eq!(bench.bus.view().denied_tools().count(), 0);
}
