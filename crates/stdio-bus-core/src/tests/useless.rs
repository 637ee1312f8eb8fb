//! Workers that write without end what has no receiver.

use super::*;

/// Writes `line` again and again, as fast as it is read, for ten seconds in which the bus does nothing else. Returns how
/// many lines were taken, and the longest time for which the worker was not read.
fn flood(bench: &mut Bench, worker: Peer, line: &str) -> (usize, Duration) {
    let text = format!("{line}\n").repeat(16);
    let (end, mut taken, mut longest) = (bench.now.after(seconds(10)), 0, Duration::ZERO);
    while bench.now < end {
        let paused_at = bench.now;
        while bench.is_paused(worker) {
            bench.pass(milliseconds(1));
        }
        longest = longest.max(bench.now.since(paused_at));
        bench.write_bytes(worker, text.as_bytes());
        taken += 16;
        bench.now = bench.now.after(Duration::from_micros(16));
    }
    (taken, longest)
}

#[test]
fn a_worker_that_floods_what_has_no_receiver_is_read_with_short_pauses() {
    for clients in 0..3 {
        for line in [
            r#"{"method":"notifications/message","params":{}}"#,
            r#"{"id":77,"result":{}}"#,
            r#"{"method":"session/update","params":{"sessionId":"nobody's"}}"#,
        ] {
            let mut bench = bench(1);
            let worker = bench.worker(0);
            for _ in 0..clients {
                let client = bench.client();
                bench.write(client, r#"{"method":"hello"}"#);
            }
            if clients == 1 && line.contains("notifications/message") {
                continue; // It is for the only client.
            }
            let (taken, longest) = flood(&mut bench, worker, line);
            // At 1 us for each of them, less than five per cent of the time.
            assert!((10_000..500_000).contains(&taken), "{taken} lines {line}");
            assert!(longest <= milliseconds(51), "{longest:?}");
            assert_eq!(bench.count(Reason::WorkerFloods), 1, "it is reported once");
            assert!(bench.signals_to(worker).is_empty());
        }
    }
}

#[test]
fn blank_lines_are_read_with_pauses_too() {
    for honest in ["", "{\"method\":\"hello\"}\n"] {
        let mut bench = bench(1);
        let worker = bench.worker(0);
        bench.client();
        let blank = format!("{}{honest}", "\n".repeat(64 * 1024));
        for _ in 0..41 {
            bench.write_bytes(worker, blank.as_bytes());
        }
        assert!(bench.is_paused(worker), "{honest:?}");
        bench.pass(milliseconds(50));
        assert!(!bench.is_paused(worker) || bench.wire(worker).kept.len() < 40 * blank.len(), "{honest:?}");
    }
}

#[test]
fn the_honest_lines_of_a_flooding_worker_arrive_in_order() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.client();
    let useless = "{\"id\":\"nobody's\",\"result\":{}}\n".repeat(2_000);
    for id in 0..20 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        bench.write_bytes(worker, format!("{useless}{{\"id\":{id},\"result\":{id}}}\n").as_bytes());
    }
    bench.pass(seconds(10));
    let expected: Vec<_> = (0..20).map(|id| format!(r#"{{"id":{id},"result":{id}}}"#)).collect();
    assert_eq!(bench.read(client), expected);
}

#[test]
fn the_last_lines_of_a_flooding_worker_are_read_when_it_has_ended() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write_bytes(worker, "{\"id\":\"nobody's\",\"result\":{}}\n".repeat(20_000).as_bytes());
    bench.write(worker, r#"{"id":1,"result":"last"}"#);
    assert!(bench.is_paused(worker));
    bench.exits(worker, Exit::Code(0));
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":"last"}"#);
}

#[test]
fn a_burst_without_a_receiver_pauses_nothing() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    for _ in 0..900 {
        bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"nobody's"}}"#);
        bench.now = bench.now.after(milliseconds(1));
        assert!(!bench.is_paused(worker));
    }
    assert_eq!(bench.count(Reason::WorkerFloods), 0);
}

#[test]
fn an_answer_under_a_misspelled_id_has_a_receiver() {
    let asked = || {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        (bench, client, worker)
    };
    let useless = r#"{"id":"nobody's","result":{}}"#;
    let (mut bench, _, worker) = asked();
    let too_many = (1..).find(|_| {
        bench.write(worker, useless);
        bench.is_paused(worker)
    });
    let (mut bench, client, worker) = asked();
    (1..too_many.unwrap()).for_each(|_| bench.write(worker, useless));
    assert!(!bench.is_paused(worker));
    bench.write(worker, r#"{"id":"1","result":"it"}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":"it"}"#);
    assert!(!bench.is_paused(worker));
}
