//! Request ids: unchanged unless two requests could not be told apart, and restored exactly (design 2.4).

use super::*;

#[test]
fn a_cancellation_in_a_session_cannot_hit_the_request_of_another_client() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":5,"method":"x","sessionId":"a"}"#);
    bench.write(second, r#"{"id":6,"method":"x","sessionId":"b"}"#);
    bench.read(worker);
    bench.write(second, r#"{"method":"$/cancel_request","sessionId":"b","params":{"requestId":5}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
    let own = r#"{"method":"$/cancel_request","sessionId":"b","params":{"requestId":6}}"#;
    bench.write(second, own);
    assert_eq!(bench.read_one(worker), own);
}

#[test]
fn a_cancellation_for_a_worker_that_does_not_listen_any_more_is_dropped_and_counted() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":5,"method":"x"}"#);
    bench.breaks(worker);
    bench.read(worker);
    bench.write(client, r#"{"method":"$/cancel_request","params":{"requestId":5}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
}
