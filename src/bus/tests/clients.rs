//! Clients that come, half-close, leave and break (spec 4.1.2, 4.3, 7.2; design 2.9 to 2.11).

use super::*;

#[test]
fn a_client_that_half_closes_answers_no_more_so_the_worker_that_asked_is_told() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.ends(client);
    assert_eq!(bench.read_json(worker)["id"], 7);
    assert_eq!(bench.count(Reason::RequestDiscarded), 1);
    bench.write(worker, r#"{"id":8,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read_json(worker)["error"]["data"]["reason"], "unknown_session");
    assert_eq!(bench.bus.stats().pending, 1, "its own request is still pending");
}

#[test]
fn a_half_closed_client_whose_answer_never_comes_is_told_so_and_closed() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"id":"two","method":"x"}"#);
    bench.ends(client);
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.how_closed(client), None);
    bench.pass(milliseconds(1));
    let errors = bench.read(client);
    assert!(errors[0].contains(r#""id":1,"#) && errors[1].contains(r#""id":"two","#), "{errors:?}");
    assert!(errors.iter().all(|error| error.contains(r#""code":-32015"#)));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}
