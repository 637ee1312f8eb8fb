//! The route of each kind of message (spec 3.5, 4.2, 5.1, 5.2, 6; decisions 1, 2, 5).

use super::*;

#[test]
fn an_answer_for_a_worker_that_does_not_listen_any_more_is_dropped_and_counted() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":0,"method":"ask","sessionId":"s"}"#);
    bench.shutdown();
    bench.read(worker);
    bench.write(client, r#"{"id":0,"result":1}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::LateAnswer), 1);
    assert_eq!(bench.bus.view().stats().pending, 1);
}

#[test]
fn a_worker_line_with_a_result_is_a_response_even_if_it_repeats_the_method() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","params":{}}"#);
    let answer = r#"{"id":1,"method":"x","params":{},"result":{"echo":true}}"#;
    bench.write(worker, answer);
    assert_eq!(bench.read_one(client), answer);
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn a_request_is_sent_to_a_worker_and_its_answer_back_both_unchanged_to_the_byte() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    let request = "  {\"id\" : \"\\u0061\\n\",\t\"method\":\"m\u{e9}\", \"x\":[1.0,{}] }\r";
    bench.write(client, request);
    assert_eq!(bench.wire(worker).read, format!("{request}\n").into_bytes());
    bench.read(worker);
    let answer = r#"{"result":null,"id":"\u0061\n","sessionId":"never heard of"} "#;
    bench.write(worker, answer);
    assert_eq!(bench.read_one(client), answer);
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn the_pool_that_a_line_names_does_not_reach_the_worker_and_all_other_bytes_do() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for (sent, received) in [
        (r#"{"pool":"agents","id":1,"method":"x"}"#, r#"{"id":1,"method":"x"}"#),
        (r#"{"id":2,"method":"x","pool":"agents"}"#, r#"{"id":2,"method":"x"}"#),
        (r#"{"method":"x" , "po\u006fl":"\u0061gents" , "id":3}"#, r#"{"method":"x" ,  "id":3}"#),
        (r#"{"pool":"agents"}"#, "{}"),
        (
            r#"{"method":"n","params":{"pool":"a","x":[{"pool":1}]},"pool":"agents"}"#,
            r#"{"method":"n","params":{"pool":"a","x":[{"pool":1}]}}"#,
        ),
        // No name of a pool, but no member that a worker knows either.
        (r#"{"pool":{"pool":["a",",\"pool\":1"]},"method":"n"}"#, r#"{"method":"n"}"#),
        (r#"{"method":"n","pool":null}"#, r#"{"method":"n"}"#),
        (
            r#"{"method":"proxy/successor","params":{"method":"n","pool":"a"},"pool":"agents"}"#,
            r#"{"method":"proxy/successor","params":{"method":"n","pool":"a"}}"#,
        ),
        // Replaced, since 2 is pending.
        (r#"{"method":"x","id":2.0,"pool":"agents"}"#, r#"{"method":"x","id":MADE}"#),
        (r#"{"pool":"agents","id":2.0,"method":"x"}"#, r#"{"id":MADE,"method":"x"}"#),
    ] {
        bench.write(client, sent);
        let line = bench.read_one(worker);
        let made = line.split("\"id\":").nth(1).map(|rest| rest.split([',', '}']).next().unwrap()).unwrap_or_default();
        assert_eq!(line, received.replace("MADE", made), "{sent}");
    }
    bench.write(worker, r#"{"id":9,"method":"ask","pool":"kept"}"#);
    assert_eq!(bench.read_one(client), r#"{"id":9,"method":"ask","pool":"kept"}"#, "a worker's members are its own");
    bench.write(client, r#"{"id":9,"pool":"agents","result":{"pool":1}}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":9,"result":{"pool":1}}"#);
    bench.write(client, r#"{"pool":"agents","id":4,"pool":"agents"}"#);
    assert_eq!(bench.count(Reason::ClientMalformed), 1);
}

#[test]
fn a_carriage_return_between_tokens_reaches_a_worker_as_a_blank_but_not_before_the_newline() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for (sent, received) in [
        ("{\r\"id\":1,\r\r\"method\":\"a\\r\"\r}\r", "{ \"id\":1,  \"method\":\"a\\r\" }\r"),
        ("\r{\"id\":1.0,\"pool\":\"agents\",\r\"method\":\"a\"}\r\r", " {\"id\":MADE, \"method\":\"a\"} \r"),
    ] {
        bench.write(client, sent);
        let line = String::from_utf8(std::mem::take(&mut bench.wire(worker).read)).unwrap();
        let made = line.split("\"id\":").nth(1).map(|rest| rest.split([',', '}']).next().unwrap()).unwrap_or_default();
        assert_eq!(line, format!("{}\n", received.replace("MADE", made)), "{sent:?}");
    }
    // A client gets a worker's line as it is.
    let answer = "{\"id\":1,\r\"result\":1}\r";
    bench.write(worker, answer);
    assert_eq!(bench.wire(client).read, format!("{answer}\n").into_bytes());
}

#[test]
fn a_worker_that_echoes_a_line_without_its_pool_answers_it() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"pool":"agents","method":"x"}"#);
    let line = bench.read_one(worker);
    bench.write(worker, &line);
    assert_eq!(bench.read_one(client), line);
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn a_message_may_arrive_byte_by_byte_or_many_at_once() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    let lines: Vec<String> = (0..200).map(|id| format!(r#"{{"id":{id},"method":"x"}}"#)).collect();
    let bytes = lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes();
    bench.write_bytes(client, &bytes);
    assert_eq!(bench.read(worker), lines);
    let mut other = super::bench(1);
    let (client, worker) = (other.client(), other.worker(0));
    bytes.iter().for_each(|byte| other.write_bytes(client, &[*byte]));
    assert_eq!(other.read(worker), lines);
}

#[test]
fn blank_lines_are_ignored_from_both_sides() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write_bytes(client, b"\n \r\n\t\n");
    bench.write_bytes(worker, b"\n\r\n");
    assert!(bench.read(worker).is_empty() && bench.read(client).is_empty());
    assert_eq!(bench.how_closed(client), None);
    assert!(bench.stop_actions.is_empty());
}

#[test]
fn json_rpc_itself_is_not_validated() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for line in
        [r#"{}"#, r#"{"id":1}"#, r#"{"jsonrpc":"1.0","method":7}"#, r#"{"method":"no such","params":3,"id":null}"#]
    {
        bench.write(client, line);
        assert_eq!(bench.read_one(worker), line);
    }
    assert_eq!(bench.bus.view().stats().pending, 1, "what has an id is a request (spec 6.2)");
}

#[test]
fn messages_without_a_session_take_turns_and_make_no_session() {
    let mut bench = bench(3);
    let client = bench.client();
    for round in 0..2 {
        for at in 0..3 {
            bench.write(client, &format!(r#"{{"id":{},"method":"x"}}"#, 3 * round + at));
            let worker = bench.worker(at);
            bench.read_one(worker);
        }
    }
    assert_eq!((bench.bus.view().stats().sessions, bench.bus.view().stats().pending), (0, 6));
}

#[test]
fn a_response_is_sent_to_the_client_that_asked_and_is_forgotten() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":1,"method":"x"}"#);
    bench.write(second, r#"{"id":2,"method":"x"}"#);
    bench.write(worker, r#"{"id":2,"error":{"code":1,"message":"no"}}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read_one(first), r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read_one(second), r#"{"id":2,"error":{"code":1,"message":"no"}}"#);
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn a_response_that_answers_nothing_is_discarded_with_a_warning() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.read(client);
    for line in [r#"{"id":1,"result":1}"#, r#"{"id":"1","result":1}"#, r#"{"id":null,"error":{}}"#, r#"{"result":1}"#] {
        bench.write(worker, line);
    }
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::UnknownId), 4);
    let warning = bench.reports.iter().find(|report| report.reason == Reason::UnknownId).unwrap();
    assert_eq!(
        (warning.level, warning.worker),
        (crate::report::Level::Warn, Some(WorkerName { pool: PoolId::at(0), place: 0, incarnation: 0 }))
    );
    assert_eq!(warning.id.as_deref(), Some("1"));
}

#[test]
fn a_notification_of_a_worker_is_sent_to_the_owner_of_its_session() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":1,"method":"x","sessionId":"a"}"#);
    bench.write(second, r#"{"id":1,"method":"x","params":{"sessionId":"b"}}"#);
    for line in [r#"{"method":"update","sessionId":"a"}"#, r#"{"method":"update","params":{"sessionId":"a"}}"#] {
        bench.write(worker, line);
        assert_eq!(bench.read_one(first), line);
    }
    bench.write(worker, r#"{"sessionId":"b"}"#);
    assert_eq!(bench.read_one(second), r#"{"sessionId":"b"}"#);
}

#[test]
fn a_notification_in_an_unknown_session_is_discarded_with_a_warning() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(worker, r#"{"method":"update","sessionId":"nobody's"}"#);
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::UnknownSession), 1);
}

#[test]
fn a_worker_message_without_an_addressee_is_discarded_with_a_warning() {
    let mut bench = bench(1);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(worker, r#"{"method":"hello"}"#);
    assert_eq!(bench.count(Reason::Unroutable), 1);
    bench.write(worker, r#"{"id":3,"method":"hello"}"#);
    assert_eq!(bench.read_json(worker)["id"], 3, "one that asks is answered");
    assert!(bench.read(client).is_empty() && bench.read(other).is_empty());
    assert_eq!(bench.count(Reason::Unroutable), 2);
}

#[test]
fn routing_keys_are_read_decoded() {
    let mut bench = bench(2);
    let (client, first) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(client, r#"{"\u0069d":2,"method":"x","s\u0065ssionId":"\u0073"}"#);
    assert_eq!(bench.read(first).len(), 2);
    bench.write(first, r#"{"i\u0064":2,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"i\u0064":2,"result":1}"#);
}

#[test]
fn a_duplicate_routing_key_is_malformed() {
    for line in
        [r#"{"id":1,"id":2,"method":"x"}"#, r#"{"id":1,"method":"x","params":{"sessionId":"a","sessionId":"b"}}"#]
    {
        let mut bench = bench(1);
        let client = bench.client();
        bench.write(client, line);
        assert_eq!(bench.read_error(client).0, "client_malformed");
    }
}

#[test]
fn a_workers_request_reaches_the_owner_and_the_answer_that_worker() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":0,"method":"session/prompt","params":{"sessionId":"a"}}"#);
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"b"}}"#);
    bench.read(first);
    bench.read_one(second);
    bench.write(second, r#"{"id":0,"method":"session/request_permission","params":{"sessionId":"b"}}"#);
    bench.write(first, r#"{"id":1,"method":"fs/read_text_file","params":{"sessionId":"a"}}"#);
    assert_eq!(bench.read(client).len(), 2);
    bench.write(client, r#"{"id":0,"result":{"outcome":"b"}}"#);
    bench.write(client, r#"{"id":1,"result":{"content":"a"}}"#);
    assert_eq!(bench.read_one(second), r#"{"id":0,"result":{"outcome":"b"}}"#);
    assert_eq!(bench.read_one(first), r#"{"id":1,"result":{"content":"a"}}"#);
    assert_eq!(bench.bus.view().stats().pending, 2, "the prompts");
}

#[test]
fn the_two_directions_of_one_conversation_have_ids_of_their_own() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.write(worker, r#"{"id":0,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.write(client, r#"{"id":0,"result":"allowed"}"#);
    bench.write(worker, r#"{"id":0,"result":"done"}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":0,"result":"allowed"}"#);
    assert_eq!(bench.read_one(client), r#"{"id":0,"result":"done"}"#);
}

#[test]
fn an_unsolicited_answer_of_a_client_is_discarded_with_a_warning() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"result":1}"#);
    assert!(bench.read(worker).is_empty() && bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::UnknownId), 1);
}

#[test]
fn every_line_from_a_worker_that_asks_without_a_session_is_answered_with_an_error() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":"q","method":"ask","params":{"sessionId":"gone"}}"#);
    let (reason, code, id) = bench.read_error(worker);
    assert_eq!((reason.as_str(), code, id), ("unknown_session", -32603, Value::from("q")));
}
