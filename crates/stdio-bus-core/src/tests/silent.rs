//! Workers that say nothing about a request (`idle_timeout_sec`), and signs of life.

use super::*;

const IDLE: Duration = seconds(2);

fn idle(assignment: Assignment) -> Settings {
    settings(vec![Pool { idle_timeout: Some(IDLE), ..pool(1, assignment) }])
}

fn idle_bench(assignment: Assignment) -> Bench {
    Bench::new(idle(assignment))
}

/// The message of the `timeout` that a client was sent as its only line.
fn given_up(bench: &mut Bench, client: Peer) -> String {
    let error = bench.read_json(client);
    assert_eq!(error["error"]["data"]["reason"], "timeout", "{error}");
    assert_eq!(error["error"]["data"]["delivered"], true, "{error}");
    error["error"]["message"].as_str().unwrap().to_owned()
}

/// A request in a session that its worker has given out.
fn prompted(settings: Settings) -> (Bench, Peer, Peer) {
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.read(worker);
    (bench, client, worker)
}

#[test]
fn a_request_about_which_its_worker_says_nothing_is_given_up_and_the_key_is_named() {
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        let mut bench = idle_bench(assignment);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        bench.read(worker);
        bench.pass(IDLE - milliseconds(1));
        assert!(bench.read(client).is_empty());
        bench.pass(milliseconds(1));
        assert!(given_up(&mut bench, client).contains("idle_timeout_sec"));
        let line = bench.read_json(worker);
        assert_eq!((line["method"].as_str(), &line["params"]["requestId"]), (Some("$/cancel_request"), &json!(1)));
        bench.pass(seconds(6));
        assert_eq!((bench.bus.view().stats().pending, bench.count(Reason::Timeout)), (0, 1));
    }
}

#[test]
fn each_sign_of_life_about_a_request_keeps_it() {
    let signs = [
        (
            r#""id":1,"method":"x","params":{"_meta":{"progressToken":1}}"#,
            r#""method":"notifications/progress","params":{"progressToken":1}"#,
        ),
        (
            r#""id":1,"method":"x","params":{"_meta":{"progressToken":"t"}}"#,
            r#""method":"notifications/progress","params":{"progressToken":"t"}"#,
        ),
        (r#""id":1,"method":"x","sessionId":"s""#, r#""method":"session/update","sessionId":"s""#),
        (
            r#""id":1,"method":"x","params":{"sessionId":"s"}"#,
            r#""method":"session/update","params":{"sessionId":"s"}"#,
        ),
    ];
    for (at, (request, sign)) in signs.into_iter().enumerate() {
        let mut bench = idle_bench(Assignment::RoundRobin);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, &format!("{{{request}}}"));
        for _ in 0..8 {
            bench.pass(IDLE - milliseconds(1));
            bench.write(worker, &format!("{{{sign}}}"));
            assert_eq!(bench.read(client).len(), 1, "{sign}");
        }
        // A deadline that is moved on is rounded up.
        bench.pass(IDLE + milliseconds(50));
        assert!(given_up(&mut bench, client).contains("idle_timeout_sec"), "{sign}");
        assert_eq!(bench.bus.view().fast_lines() > 0, at != 1, "both ways know it");
    }
}

#[test]
fn progress_under_a_replaced_token_keeps_the_request() {
    let mut bench = idle_bench(Assignment::RoundRobin);
    let (first, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    let ask = r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1}}}"#;
    bench.write(first, ask);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.write(client, ask);
    let seen: Value = serde_json::from_str(bench.read(worker).last().unwrap()).unwrap();
    let token = &seen["params"]["_meta"]["progressToken"];
    assert_ne!(*token, 1);
    for _ in 0..4 {
        bench.pass(seconds(1));
        bench.write(worker, &format!(r#"{{"method":"notifications/progress","params":{{"progressToken":{token}}}}}"#));
    }
    assert_eq!(bench.read(client).len(), 4);
    assert_eq!(bench.count(Reason::Timeout), 0);
}

#[test]
fn what_is_said_about_another_request_keeps_none() {
    let mut bench = idle_bench(Assignment::Dedicated);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1}}}"#);
    bench.write(client, r#"{"id":2,"method":"x","params":{"_meta":{"progressToken":2}}}"#);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"method":"notifications/progress","params":{"progressToken":1}}"#);
    bench.write(worker, r#"{"method":"notifications/message","params":{"data":"a log"}}"#);
    bench.read(client);
    bench.pass(seconds(1));
    assert_eq!(bench.read_json(client)["id"], 2);
    bench.pass(milliseconds(1_050));
    assert_eq!(bench.read_json(client)["id"], 1);
}

#[test]
fn while_a_client_has_a_question_to_answer_its_worker_is_not_silent() {
    let permission = r#"{"id":"p","method":"session/request_permission","params":{"sessionId":"s"}}"#;
    let (mut bench, client, worker) = prompted(idle(Assignment::RoundRobin));
    bench.pass(seconds(1));
    bench.write(worker, permission);
    bench.read(client);
    bench.pass(seconds(3600));
    assert!(bench.read(client).is_empty() && bench.read(worker).is_empty(), "a person takes its time");
    bench.write(client, r#"{"id":"p","result":{"outcome":{"outcome":"selected"}}}"#);
    assert_eq!(bench.read(worker).len(), 1);
    bench.pass(IDLE - milliseconds(1));
    assert!(bench.read(client).is_empty(), "its time begins with the answer");
    bench.pass(milliseconds(51));
    assert!(given_up(&mut bench, client).contains("idle_timeout_sec"));
}

#[test]
fn an_open_elicitation_that_names_a_request_keeps_it_and_no_other_one() {
    let mut bench = idle_bench(Assignment::RoundRobin);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":5,"method":"tools/call"}"#);
    bench.write(client, r#"{"id":6,"method":"tools/call"}"#);
    bench.write(other, r#"{"method":"x"}"#);
    bench.write(worker, r#"{"id":0,"method":"elicitation/create","params":{"requestId":5}}"#);
    bench.read(client);
    bench.pass(seconds(60));
    assert_eq!(bench.read_json(client)["id"], 6);
    bench.write(client, r#"{"id":0,"result":{"action":"decline"}}"#);
    bench.pass(IDLE + milliseconds(50));
    assert_eq!(bench.read_json(client)["id"], 5);
}

#[test]
fn a_request_with_signs_of_life_has_its_total_time_still() {
    let mut settings = idle(Assignment::RoundRobin);
    settings.pools[0].request_timeout = Some(seconds(5));
    let (mut bench, client, worker) = prompted(settings);
    for _ in 0..4 {
        bench.pass(seconds(1));
        bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
        assert_eq!(bench.read(client).len(), 1);
    }
    bench.pass(milliseconds(999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert!(given_up(&mut bench, client).contains("request_timeout_sec"));
}

#[test]
fn a_worker_that_is_not_read_is_not_silent() {
    let mut tight = idle(Assignment::Dedicated);
    tight.limits.max_output_queue = 10;
    let mut bench = Bench::new(tight);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1}}}"#);
    bench.stalls(client);
    for _ in 0..2 {
        bench.write(worker, r#"{"method":"notifications/progress","params":{"progressToken":1}}"#);
    }
    assert!(bench.is_paused(worker));
    bench.pass(seconds(30));
    assert_eq!(bench.count(Reason::Timeout), 0);
    bench.wire(client).stalls = false;
    bench.takes(client, usize::MAX);
    assert_eq!(bench.read(client).len(), 2);
    bench.pass(IDLE - milliseconds(1));
    assert_eq!(bench.count(Reason::Timeout), 0, "its time begins when it is read again");
    bench.pass(milliseconds(51));
    assert_eq!(bench.count(Reason::Timeout), 1);
}

#[test]
fn the_time_of_silence_begins_when_the_worker_is_sent_the_request() {
    let mut spares = idle(Assignment::Dedicated);
    spares.pools[0].max_instances = 3;
    let mut bench = Bench::starting(spares);
    let (first, client) = (bench.client(), bench.client());
    bench.write(first, r#"{"method":"x"}"#);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(10));
    assert!(bench.read(client).is_empty() && bench.is_paused(client));
    bench.spawns = true;
    bench.spawn_all();
    assert!(!bench.is_paused(client));
    bench.pass(IDLE - milliseconds(1));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert!(given_up(&mut bench, client).contains("idle_timeout_sec"));
}

#[test]
fn a_subscription_may_be_silent_for_ever() {
    let mut bench = idle_bench(Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"subscriptions/listen"}"#);
    bench.pass(seconds(3600));
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.bus.view().stats().pending, 1);
}

#[test]
fn a_reload_that_removes_the_limit_removes_it_for_requests_under_way() {
    let mut settings = idle(Assignment::RoundRobin);
    let mut bench = Bench::new(settings.clone());
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(1));
    settings.pools[0].idle_timeout = None;
    bench.reload(&settings);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.pass(seconds(60));
    assert!(bench.read(client).is_empty());
    settings.pools[0].idle_timeout = Some(IDLE);
    bench.reload(&settings);
    bench.write(client, r#"{"id":3,"method":"x"}"#);
    bench.pass(IDLE);
    assert_eq!(bench.read_json(client)["id"], 3, "a new one holds for new requests");
}

#[test]
fn what_a_worker_says_while_a_reload_had_removed_the_limit_counts_when_the_limit_is_back() {
    let mut settings = idle(Assignment::RoundRobin);
    let (mut bench, client, worker) = prompted(settings.clone());
    settings.pools[0].idle_timeout = None;
    bench.reload(&settings);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    bench.read(client);
    settings.pools[0].idle_timeout = Some(IDLE);
    bench.reload(&settings);
    bench.pass(IDLE - milliseconds(1));
    assert!(bench.read(client).is_empty(), "it has said something less than two seconds ago");
    bench.pass(milliseconds(51));
    assert!(given_up(&mut bench, client).contains("idle_timeout_sec"));
}

#[test]
fn a_worker_that_is_silent_about_three_requests_is_restarted_unless_it_waits_for_a_client() {
    for asks in [false, true] {
        let (mut bench, client, worker) = prompted(idle(Assignment::RoundRobin));
        if asks {
            bench.write(worker, r#"{"id":"p","method":"session/request_permission","params":{"sessionId":"s"}}"#);
        } else {
            bench.write(worker, r#"{"id":2,"result":{}}"#);
        }
        bench.pass(IDLE);
        for id in 10..13 {
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        }
        bench.pass(IDLE);
        assert_eq!(bench.count(Reason::Timeout), 3);
        assert_eq!(bench.signals_to(worker).is_empty(), asks);
    }
}

#[test]
fn an_operator_is_shown_who_waits_for_whom_and_for_how_long_a_worker_is_silent() {
    let (mut bench, client, worker) = prompted(idle(Assignment::RoundRobin));
    bench.pass(milliseconds(500));
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    bench.pass(milliseconds(500));
    let row = |bench: &Bench, slot| bench.request_row(slot).expect("it waits");
    let prompt = row(&bench, 0);
    assert_eq!((prompt.silent, prompt.expires), (Some(milliseconds(500)), Some(milliseconds(1500))));
    bench.write(worker, r#"{"id":"p","method":"session/request_permission","params":{"sessionId":"s"}}"#);
    let (prompt, question) = (row(&bench, 0), row(&bench, 1));
    assert_eq!((prompt.silent, prompt.expires, prompt.method), (None, None, None), "it is not the worker's turn");
    assert_eq!((question.asker, question.answerer), (prompt.answerer, prompt.asker));
    assert_eq!((question.method.as_deref(), &question.id[..]), (Some("session/request_permission"), "\"p\""));
    bench.read(client);
}

#[test]
fn the_rows_of_one_moment_look_for_what_clients_have_to_answer_once() {
    let (mut bench, _, worker) = prompted(idle(Assignment::RoundRobin));
    bench.pass(milliseconds(500));
    let shown = |bench: &Bench, questions: &Questions| {
        bench.bus.view().request_row(bench.now, 0, questions).expect("it waits").silent
    };
    let questions = Questions::default();
    assert_eq!(shown(&bench, &questions), Some(milliseconds(500)));
    bench.write(worker, r#"{"id":"p","method":"session/request_permission","params":{"sessionId":"s"}}"#);
    assert_eq!(shown(&bench, &questions), Some(Duration::ZERO), "it is not looked for again");
    assert_eq!(shown(&bench, &Questions::default()), None);
}

#[test]
fn a_cancelled_request_has_its_five_seconds_however_short_the_limit_of_silence_is() {
    let mut bench = idle_bench(Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"method":"$/cancel_request","params":{"requestId":1}}"#);
    bench.pass(milliseconds(4_999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(101));
    assert_eq!(bench.read_error(client).0, "cancelled");
}

#[test]
fn a_worker_is_reported_as_silent_by_what_somebody_waits_for() {
    let mut bench = bench(1);
    let (leaving, client) = (bench.client(), bench.client());
    bench.write(leaving, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(20));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.breaks(leaving);
    bench.gone(leaving);
    bench.pass(seconds(29));
    assert_eq!(bench.count(Reason::WorkerSilent), 0, "nobody has waited for so long");
    bench.pass(seconds(1));
    assert_eq!(bench.count(Reason::WorkerSilent), 1);
}

#[test]
fn a_worker_that_is_silent_about_a_request_of_a_client_that_has_left_is_reported_for_the_next_one() {
    let mut bench = bench(1);
    let (leaving, client) = (bench.client(), bench.client());
    bench.write(leaving, r#"{"id":1,"method":"x"}"#);
    bench.breaks(leaving);
    bench.gone(leaving);
    bench.pass(seconds(40));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.pass(seconds(31));
    assert_eq!(bench.count(Reason::WorkerSilent), 1);
}
