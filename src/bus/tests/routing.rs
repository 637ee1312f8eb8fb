//! Where each kind of message goes (spec 3.5, 4.2, 5.1, 5.2, 6; design 2.1, 2.2, 2.5).

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
    assert_eq!(bench.bus.stats().pending, 1);
}

#[test]
fn a_worker_line_with_a_result_is_a_response_even_if_it_repeats_the_method() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","params":{}}"#);
    let answer = r#"{"id":1,"method":"x","params":{},"result":{"echo":true}}"#;
    bench.write(worker, answer);
    assert_eq!(bench.read_one(client), answer);
    assert_eq!(bench.bus.stats().pending, 0);
}
