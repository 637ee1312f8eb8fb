//! Sessions: who owns one, where it lives, who may use it (spec 3.4, 6.1; design 2.1, 2.3).

use super::*;

#[test]
fn a_second_session_of_the_same_name_is_found_when_the_first_one_is_closed() {
    let mut both = settings(vec![
        Pool { id: "left".into(), ..pool(1, Assignment::RoundRobin) },
        Pool { id: "right".into(), ..pool(1, Assignment::RoundRobin) },
    ]);
    both.listeners[0].pool = Some(0);
    let mut bench = Bench::new(both);
    let (client, left, right) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s","pool":"right"}"#);
    bench.write(client, r#"{"id":3,"method":"session/close","sessionId":"s"}"#);
    assert_eq!(bench.read(left).len(), 2);
    bench.read_one(right);
    bench.write(left, r#"{"id":3,"result":{}}"#);
    bench.write(client, r#"{"id":4,"method":"x","sessionId":"s"}"#);
    bench.read_one(right);
}

#[test]
fn a_message_that_waits_for_its_worker_makes_no_session_yet() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 100;
    let mut bench = Bench::new(small);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "x".repeat(100)));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    assert!(bench.is_paused(client));
    assert_eq!(bench.bus.stats().sessions, 0);
    bench.takes(worker, 1000);
    assert_eq!(bench.bus.stats().sessions, 1);
}
