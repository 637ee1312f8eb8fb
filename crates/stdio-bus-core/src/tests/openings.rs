//! `initialize` on workers that clients share: it is sent again to a worker that has not seen it, and a worker that
//! takes one only serves all clients that ask for the same.

use super::*;

const ONE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"terminal":true},"clientInfo":{"name":"one"}}}"#;
const NEW: &str = r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const ALREADY: &str = r#""error":{"code":-32600,"message":"Already initialized"}"#;

/// The `initialize` of a client that asks for the same under this id.
fn alike(id: &str) -> String {
    ONE.replace(r#""id":0"#, &format!(r#""id":{id}"#)).replace("one", "another")
}

/// One that asks for something else.
fn other(id: u32) -> String {
    alike(&id.to_string()).replace("true", "false")
}

fn result(id: &Value, name: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"agentInfo":"{name}"}}}}"#)
}

fn error(id: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},{ALREADY}}}"#)
}

impl Bench {
    fn of_one(assignment: Assignment) -> Self {
        Self::new(settings(vec![pool(1, assignment)]))
    }

    /// A worker reads one line and accepts it.
    fn accepts(&mut self, worker: Peer) -> Value {
        let line = self.read_json(worker);
        assert_eq!(line["method"], "initialize", "{line}");
        self.write(worker, &result(&line["id"], "it"));
        line
    }

    /// The first worker ends, and the next one runs.
    fn is_replaced(&mut self) -> Peer {
        self.dies(self.worker(0));
        self.pass(seconds(1));
        self.worker(0)
    }
}

/// A client that has begun with the only worker.
fn begun(assignment: Assignment) -> (Bench, Peer) {
    let mut bench = Bench::of_one(assignment);
    let client = bench.client();
    bench.write(client, ONE);
    bench.accepts(bench.worker(0));
    assert_eq!(bench.read_json(client)["id"], 0);
    (bench, client)
}

#[test]
fn a_client_continues_with_the_worker_that_replaces_one_that_has_ended() {
    for assignment in [Assignment::Client, Assignment::RoundRobin] {
        let (mut bench, client) = begun(assignment);
        bench.write(client, NEW);
        bench.read(bench.worker(0));
        bench.write(bench.worker(0), r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}"#);
        bench.read(client);
        let worker = bench.is_replaced();
        let load = r#"{"jsonrpc":"2.0","id":2,"method":"session/load","params":{"sessionId":"s"}}"#;
        bench.write(client, load);
        let line = bench.read_one(worker);
        let id = serde_json::from_str::<Value>(&line).expect("JSON")["id"].clone();
        assert_eq!(line, ONE.replace(r#""id":0"#, &format!(r#""id":{id}"#)), "it is as the client has sent it");
        assert!(bench.is_paused(client), "some agents work on several lines at once");
        bench.write(worker, &result(&id, "it"));
        assert_eq!((bench.read_one(worker), bench.is_paused(client)), (load.to_owned(), false));
        assert!(bench.read(client).is_empty(), "the client does not get the answer");
        bench.write(worker, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
        assert_eq!(bench.read_json(client)["id"], 2);
        let dropped = [Reason::UnknownId, Reason::LateAnswer, Reason::WorkerAnswersTwice];
        assert_eq!(dropped.map(|reason| bench.count(reason)), [0; 3]);
    }
}

#[test]
fn an_initialize_that_is_sent_again_has_an_id_of_its_type_and_no_progress_token_of_the_client() {
    let mut bench = Bench::of_one(Assignment::Client);
    let client = bench.client();
    let line = r#"{"id":"a","method":"initialize","pool":"agents","params":{"_meta":{"progressToken":7},"x":1}}"#;
    bench.write(client, line);
    bench.accepts(bench.worker(0));
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    let again = bench.read_json(worker);
    assert!(again["id"].is_string() && again["id"] != "a" && again["pool"].is_null(), "{again}");
    assert_eq!(again["params"], json!({"_meta": {"progressToken": again["id"]}, "x": 1}));
}

#[test]
fn one_initialize_is_enough_for_all_clients_that_ask_for_the_same() {
    let (mut bench, one) = begun(Assignment::Client);
    let old = bench.worker(0);
    let [two, three] = [alike("5000"), other(9000)].map(|line| {
        let client = bench.client();
        bench.write(client, &line);
        bench.accepts(old);
        bench.read(client);
        client
    });
    let worker = bench.is_replaced();
    bench.write(one, NEW);
    bench.write(two, r#"{"id":5001,"method":"x"}"#);
    let again = bench.read_json(worker);
    assert!(bench.is_paused(two), "it waits for the same answer");
    bench.write(worker, &result(&again["id"], "it"));
    assert_eq!(bench.read(worker).len(), 2);
    bench.write(three, r#"{"id":9001,"method":"x"}"#);
    assert_eq!(bench.accepts(worker)["params"]["clientCapabilities"]["terminal"], false);
    assert_eq!(bench.read_one(worker), r#"{"id":9001,"method":"x"}"#);
}

#[test]
fn the_notification_behind_an_initialize_is_sent_again_once_its_client_has_sent_it() {
    let (mut bench, client) = begun(Assignment::Client);
    let worker = bench.is_replaced();
    bench.write(client, INITIALIZED);
    bench.accepts(worker);
    assert_eq!(bench.read(worker), [INITIALIZED], "its own");
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    bench.accepts(worker);
    assert_eq!(bench.read(worker), [INITIALIZED, NEW]);
}

#[test]
fn each_worker_of_a_round_gets_an_initialize_and_what_follows_it() {
    let mut bench = bench(3);
    let client = bench.client();
    bench.write(client, ONE);
    let first = bench.worker(0);
    bench.accepts(first);
    bench.write(client, INITIALIZED);
    for worker in [1, 2] {
        bench.accepts(bench.worker(worker));
    }
    for id in 1..7 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    for worker in [0, 1, 2] {
        let lines = bench.read(bench.worker(worker));
        let begins: Vec<usize> = (0..lines.len()).filter(|at| lines[*at] == INITIALIZED).collect();
        assert_eq!((begins, lines.len()), (vec![0], 3), "{lines:?}");
    }
}

#[test]
fn a_line_waits_for_the_answer_to_an_initialize_for_half_a_minute_at_most() {
    let (mut bench, client) = begun(Assignment::Client);
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    let id = bench.read_json(worker)["id"].clone();
    bench.pass(seconds(29));
    assert!(bench.is_paused(client) && bench.read(worker).is_empty());
    bench.pass(seconds(1));
    assert_eq!((bench.read_one(worker), bench.is_paused(client)), (NEW.to_owned(), false));
    bench.write(worker, &result(&id, "it"));
    assert!(bench.read(client).is_empty() && bench.count(Reason::UnknownId) == 0, "late, it is still discarded");
}

#[test]
fn a_request_that_waits_for_an_initialize_times_out() {
    let pool = Pool { request_timeout: Some(seconds(5)), ..pool(1, Assignment::Client) };
    let mut bench = Bench::new(settings(vec![pool]));
    let client = bench.client();
    bench.write(client, ONE);
    bench.accepts(bench.worker(0));
    bench.read(client);
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    bench.read(worker);
    bench.pass(seconds(6));
    assert_eq!(bench.read_error(client).0, "timeout");
}

#[test]
fn lines_behind_the_own_initialize_do_not_wait() {
    let mut bench = Bench::of_one(Assignment::Client);
    let client = bench.client();
    bench.write_bytes(client, format!("{ONE}\n{NEW}\n").as_bytes());
    assert_eq!(bench.read(bench.worker(0)), [ONE, NEW]);
}

#[test]
fn a_line_continues_if_a_worker_refuses_the_initialize_that_is_sent_again() {
    let (mut bench, client) = begun(Assignment::Client);
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    let id = bench.read_json(worker)["id"].clone();
    bench.write(worker, &error(&id));
    assert_eq!(bench.read_one(worker), NEW);
    let report = bench.reports.iter().find(|report| report.reason == Reason::InitializeRefused).expect("it is logged");
    assert!(report.text.contains("-32600 Already initialized") && report.client.is_some(), "{report:?}");
}

#[test]
fn a_worker_that_takes_many_gets_every_initialize() {
    let (mut bench, _) = begun(Assignment::Client);
    let (worker, two) = (bench.worker(0), bench.client());
    bench.write(two, &alike("5000"));
    assert_eq!(bench.read_one(worker), alike("5000"));
    let answer = result(&json!(5000), "for two");
    bench.write(worker, &answer);
    assert_eq!(bench.read_one(two), answer, "and its own answer is passed on");
    bench.write(two, INITIALIZED);
    assert_eq!(bench.read(worker), [INITIALIZED]);
}

#[test]
fn a_worker_that_takes_one_initialize_serves_all_clients_that_ask_for_the_same() {
    let (mut bench, one) = begun(Assignment::Client);
    let worker = bench.worker(0);
    bench.write(one, INITIALIZED);
    for (client, id) in [json!(5000), json!("x-1"), json!(9000)].into_iter().enumerate() {
        let next = bench.client();
        bench.read(worker);
        bench.write(next, &alike(&id.to_string()));
        let seen = bench.read_json(worker)["id"].clone();
        bench.write(worker, &error(&seen));
        assert_eq!(bench.read_one(next), result(&id, "it"), "of client {client}");
        bench.write(next, INITIALIZED);
        assert!(bench.read(worker).is_empty(), "it has had that");
        bench.write(next, &format!(r#"{{"id":{id},"method":"x"}}"#));
        assert_eq!(bench.read(worker).len(), 1);
    }
    let reports: Vec<&Report> = bench.reports.iter().filter(|it| it.reason == Reason::InitializeRefused).collect();
    assert_eq!(reports.len(), 1, "once for a worker");
    assert!(reports[0].text.contains("\"dedicated\""), "{:?}", reports[0]);
}

#[test]
fn a_worker_that_takes_one_initialize_refuses_a_client_that_asks_for_something_else() {
    let (mut bench, _) = begun(Assignment::Client);
    let (worker, two) = (bench.worker(0), bench.client());
    bench.write(two, &other(5000));
    bench.read(worker);
    bench.write(worker, &error(&json!(5000)));
    assert_eq!(bench.read_one(two), error(&json!(5000)));
    let report = bench.reports.iter().find(|report| report.reason == Reason::InitializeRefused).expect("it is logged");
    assert!(report.text.contains("\"dedicated\"") && report.id.as_deref() == Some("5000"), "{report:?}");
}

#[test]
fn a_refusal_ahead_of_the_first_answer_waits_for_it() {
    for is_accepted in [true, false] {
        let mut bench = Bench::of_one(Assignment::Client);
        let (worker, one, two) = (bench.worker(0), bench.client(), bench.client());
        bench.write(one, ONE);
        bench.write(two, &alike("5000"));
        bench.read(worker);
        bench.write(worker, &error(&json!(5000)));
        assert!(bench.read(two).is_empty());
        if is_accepted {
            bench.write(worker, &result(&json!(0), "it"));
            assert_eq!(
                (bench.read_one(one), bench.read_one(two)),
                (result(&json!(0), "it"), result(&json!(5000), "it"))
            );
        } else {
            bench.write(worker, r#"{"id":0,"error":{"code":-32000,"message":"no key"}}"#);
            assert_eq!((bench.read(one).len(), bench.read_one(two)), (1, error(&json!(5000))), "each gets its own");
        }
        assert_eq!(bench.bus.view().stats().pending, 0);
    }
}

/// Two clients that ask for the same; the second one is refused before the first one has its answer.
fn refused_before_the_first_answer() -> (Bench, Peer, Peer, Peer) {
    let mut bench = Bench::of_one(Assignment::Client);
    let (worker, one, two) = (bench.worker(0), bench.client(), bench.client());
    bench.write(one, ONE);
    bench.write(two, &alike("5000"));
    bench.write(worker, &error(&json!(5000)));
    (bench, worker, one, two)
}

#[test]
fn a_refusal_does_not_wait_longer_than_half_a_minute() {
    let (mut bench, _, _, two) = refused_before_the_first_answer();
    bench.pass(milliseconds(29_999));
    assert!(bench.read(two).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(bench.read_one(two), error(&json!(5000)));
}

#[test]
fn a_refused_initialize_fails_with_a_worker_that_ends_before_its_first_answer() {
    let (mut bench, worker, one, two) = refused_before_the_first_answer();
    bench.dies(worker);
    assert_eq!([bench.read_error(one).0, bench.read_error(two).0], ["worker_exited", "worker_exited"]);
}

#[test]
fn the_answer_to_an_initialize_that_was_sent_again_serves_later_clients() {
    let (mut bench, one) = begun(Assignment::Client);
    let worker = bench.is_replaced();
    bench.write(one, NEW);
    bench.accepts(worker);
    bench.read(worker);
    let two = bench.client();
    bench.write(two, &alike("5000"));
    bench.read(worker);
    bench.write(worker, &error(&json!(5000)));
    assert_eq!(bench.read_one(two), result(&json!(5000), "it"));
}

#[test]
fn an_initialize_that_is_too_large_to_be_kept_is_asked_for_again() {
    let mut bench = Bench::of_one(Assignment::Client);
    let client = bench.client();
    let large = ONE.replace("one", &"x".repeat(20_000));
    bench.write(client, &large);
    bench.accepts(bench.worker(0));
    bench.read(client);
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    let (reason, code, id) = bench.read_error(client);
    assert_eq!((reason.as_str(), code, id), ("initialize_lost", -32031, json!(1)));
    assert!(bench.read(worker).is_empty() && bench.how_closed(client).is_none());
    bench.write(client, &large);
    bench.accepts(worker);
    bench.read(client);
    bench.write(client, NEW);
    assert_eq!(bench.read_one(worker), NEW);
}

#[test]
fn an_initialize_that_ends_workers_is_sent_again_twice() {
    let (mut bench, client) = begun(Assignment::Client);
    bench.is_replaced();
    bench.write(client, NEW);
    for _ in 0..2 {
        bench.pass(seconds(2));
        assert_eq!(bench.read_json(bench.worker(0))["method"], "initialize");
        bench.dies(bench.worker(0));
        bench.read(client);
        bench.pass(seconds(2));
        bench.write(client, NEW);
    }
    assert_eq!(bench.read_error(client).0, "initialize_lost");
    assert!(bench.read(bench.worker(0)).is_empty());
}

#[test]
fn what_is_kept_of_an_initialize_counts_until_its_client_and_worker_have_gone() {
    let (mut bench, client) = begun(Assignment::Client);
    let answer = result(&json!(0), "it").len();
    assert_eq!(bench.bus.view().bytes_of_openings(), ONE.len() + answer, "without their ids, with their newlines");
    bench.write(client, INITIALIZED);
    assert_eq!(bench.bus.view().bytes_of_openings(), ONE.len() + answer + INITIALIZED.len() + 1);
    bench.write(client, &other(1));
    bench.dies(bench.worker(0));
    assert_eq!(bench.bus.view().bytes_of_openings(), other(1).len());
    bench.breaks(client);
    bench.gone(client);
    assert_eq!(bench.bus.view().bytes_of_openings(), 0);
}

#[test]
fn a_client_of_a_dedicated_pool_gets_another_worker_for_one_that_has_answered_nothing() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 4, ..pool(2, Assignment::Dedicated) }]));
    let client = bench.client();
    bench.write(client, r#"{"id":0,"method":"server/discover"}"#);
    let worker = bench.busy_worker();
    bench.dies(worker);
    assert_eq!(bench.read_error(client), ("worker_exited".to_owned(), -32011, json!(0)));
    assert_eq!((bench.how_closed(client), bench.count(Reason::OwnWorkerReplaced)), (None, 1));
    bench.write(client, ONE);
    let next = bench.busy_worker();
    assert_ne!(next, worker);
    bench.dies(next);
    assert_eq!(bench.read_reasons(client).first().map(String::as_str), Some("worker_exited"));
    assert_eq!((bench.how_closed(client), bench.count(Reason::OwnWorkerEnded)), (Some(Close::Refuse), 1), "once");
}

#[test]
fn a_client_ends_with_its_own_worker_once_that_has_answered() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 4, ..pool(2, Assignment::Dedicated) }]));
    let client = bench.client();
    bench.write(client, ONE);
    let worker = bench.busy_worker();
    bench.write(worker, &result(&json!(0), "it"));
    bench.dies(worker);
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
}

#[test]
fn an_initialize_concerns_the_workers_of_its_pool() {
    let other = Pool { id: "tools".into(), ..pool(1, Assignment::Client) };
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client), other]));
    let client = bench.client();
    bench.write(client, &ONE.replace(r#""id":0"#, r#""id":0,"pool":"agents""#));
    bench.accepts(bench.worker(0));
    bench.read(client);
    bench.write(client, r#"{"id":1,"method":"x","pool":"tools"}"#);
    assert_eq!(bench.read_one(bench.worker(1)), r#"{"id":1,"method":"x"}"#);
    bench.dies(bench.worker(0));
    bench.pass(seconds(1));
    bench.write(client, r#"{"id":2,"method":"x","pool":"agents"}"#);
    bench.accepts(bench.worker(1));
    assert_eq!(bench.read_one(bench.worker(1)), r#"{"id":2,"method":"x"}"#);
}

#[test]
fn an_initialize_that_nobody_has_answered_is_not_sent_again() {
    let mut bench = bench(2);
    let client = bench.client();
    bench.write(client, ONE);
    bench.write(client, NEW);
    assert_eq!([0, 1].map(|at| bench.read_one(bench.worker(at))), [ONE, NEW]);
}

#[test]
fn an_answer_to_a_question_of_the_next_worker_does_not_stand_for_the_initialize() {
    let (mut bench, client) = begun(Assignment::Client);
    let worker = bench.is_replaced();
    bench.write(worker, r#"{"id":"w","method":"ping"}"#);
    assert_eq!(bench.read(client).len(), 1);
    bench.write(client, r#"{"id":"w","result":{}}"#);
    assert_eq!(bench.read(worker).len(), 1);
    bench.write(client, NEW);
    bench.accepts(worker);
    assert_eq!(bench.read_one(worker), NEW);
}

#[test]
fn a_client_gets_another_worker_for_one_whose_last_words_are_malformed() {
    for is_gone in [true, false] {
        let mut bench = Bench::new(settings(vec![Pool { max_instances: 4, ..pool(2, Assignment::Dedicated) }]));
        let client = bench.client();
        bench.write(client, r#"{"id":0,"method":"server/discover"}"#);
        let worker = bench.busy_worker();
        let exits = |bench: &mut Bench| bench.exits(worker, Exit::Code(1));
        if is_gone {
            exits(&mut bench);
        }
        bench.write(worker, "Error: ExpectedInitializeRequest");
        assert_eq!(bench.read_error(client).0, "worker_exited");
        bench.write(client, ONE);
        let next = bench.busy_worker();
        if !is_gone {
            exits(&mut bench);
        }
        assert_eq!((bench.how_closed(client), bench.count(Reason::OwnWorkerEnded)), (None, 0));
        bench.write(next, "Error: something else");
        assert_eq!(bench.read_reasons(client), ["worker_exited", "own_worker_ended"]);
        assert_eq!(bench.how_closed(client), Some(Close::Refuse), "once");
        assert_eq!([Reason::OwnWorkerReplaced, Reason::OwnWorkerEnded].map(|it| bench.count(it)), [1, 1]);
    }
}

#[test]
fn a_client_gets_another_worker_for_one_that_is_asked_to_stop_and_says_so_on_stdout() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 4, ..pool(2, Assignment::Dedicated) }]));
    let client = bench.client();
    bench.write(client, r#"{"id":0,"method":"server/discover"}"#);
    let own = bench.busy_worker();
    let Peer::Worker(worker) = own else { panic!("a worker is busy") };
    bench.handle(Input::RestartWorker { worker, at_once: true });
    bench.write(own, "shutting down");
    assert_eq!(bench.read_error(client).0, "worker_replaced");
    assert_eq!((bench.how_closed(client), bench.count(Reason::OwnWorkerReplaced)), (None, 1));
    bench.write(client, ONE);
    assert_ne!(bench.busy_worker(), own);
}

#[test]
fn each_client_notifies_a_worker_that_takes_many_that_it_is_ready() {
    let (mut bench, one) = begun(Assignment::Client);
    let (worker, two) = (bench.worker(0), bench.client());
    bench.write(two, &alike("5000"));
    bench.accepts(worker);
    for client in [one, two] {
        bench.write(client, INITIALIZED);
        assert_eq!(bench.read_one(worker), INITIALIZED);
    }
}

#[test]
fn a_worker_that_takes_one_initialize_is_notified_that_it_is_ready_by_the_first_client_that_says_so() {
    let (mut bench, one) = begun(Assignment::Client);
    let (worker, two) = (bench.worker(0), bench.client());
    bench.write(two, &alike("5000"));
    bench.read(worker);
    bench.write(worker, &error(&json!(5000)));
    assert_eq!(bench.read_one(two), result(&json!(5000), "it"));
    bench.write(two, INITIALIZED);
    assert_eq!(bench.read_one(worker), INITIALIZED, "the client that has begun first has not said it yet");
    bench.write(one, INITIALIZED);
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_worker_that_was_notified_that_it_is_ready_is_not_notified_again_for_the_next_client_that_continues_there() {
    let (mut bench, one) = begun(Assignment::Client);
    let (old, two) = (bench.worker(0), bench.client());
    bench.write(two, &alike("5000"));
    bench.accepts(old);
    [one, two].into_iter().for_each(|client| bench.write(client, INITIALIZED));
    let worker = bench.is_replaced();
    bench.write(one, NEW);
    bench.accepts(worker);
    assert_eq!(bench.read(worker), [INITIALIZED, NEW]);
    bench.write(two, r#"{"id":5001,"method":"x"}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":5001,"method":"x"}"#);
}

#[test]
fn a_long_notification_behind_an_initialize_is_sent_again_without_what_makes_it_long() {
    let (mut bench, client) = begun(Assignment::Client);
    let long = format!(r#"{{"jsonrpc":"2.0","method":"notifications/initialized","params":"{}"}}"#, "x".repeat(600));
    bench.write(client, &long);
    assert_eq!(bench.read_one(bench.worker(0)), long);
    let worker = bench.is_replaced();
    bench.write(client, NEW);
    bench.accepts(worker);
    assert_eq!(bench.read(worker), [INITIALIZED, NEW]);
}

#[test]
fn a_client_whose_initialize_is_too_large_to_be_kept_continues_where_another_one_has_begun() {
    for initialize in [alike("5000"), other(5000)] {
        let (mut bench, one) = begun(Assignment::Client);
        let two = bench.client();
        bench.write(two, &initialize.replace("another", &"x".repeat(20_000)));
        bench.accepts(bench.worker(0));
        bench.read(two);
        let worker = bench.is_replaced();
        bench.write(one, NEW);
        bench.accepts(worker);
        bench.read(worker);
        bench.write(two, r#"{"id":5001,"method":"x"}"#);
        assert_eq!((bench.read(worker).len(), bench.read(two).len()), (1, 0));
    }
}

#[test]
fn a_client_whose_initialize_is_too_large_to_be_kept_gets_the_first_answer_of_a_worker_that_takes_one() {
    let (mut bench, _) = begun(Assignment::Client);
    let (two, worker) = (bench.client(), bench.worker(0));
    bench.write(two, &alike("5000").replace("another", &"x".repeat(20_000)));
    bench.read(worker);
    bench.write(worker, &error(&json!(5000)));
    assert_eq!(bench.read_one(two), result(&json!(5000), "it"));
}

#[test]
fn a_client_continues_at_a_worker_that_takes_one_initialize_and_has_had_another_one() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::Client)]));
    let (one, two, three) = (bench.client(), bench.client(), bench.client());
    bench.write(one, ONE);
    let first = bench.busy_worker();
    bench.write(first, &result(&json!(0), "it"));
    bench.write(two, &other(5000));
    let second = bench.busy_worker();
    assert_ne!(first, second);
    bench.write(second, &result(&json!(5000), "it"));
    bench.write(three, &alike("9000"));
    assert_eq!(bench.busy_worker(), first);
    bench.write(first, &error(&json!(9000)));
    assert_eq!(bench.read_one(three), result(&json!(9000), "it"));
    bench.read(two);
    bench.ends(second);
    bench.write(two, r#"{"id":5001,"method":"x"}"#);
    assert_eq!((bench.read_one(first), bench.read(two).len()), (r#"{"id":5001,"method":"x"}"#.to_owned(), 0));
    let reports: Vec<&Report> = bench.reports.iter().filter(|it| it.reason == Reason::InitializeRefused).collect();
    assert!(reports.iter().any(|report| report.text.contains("another protocol version")), "{reports:?}");
}
