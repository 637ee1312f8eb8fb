//! Which clients are held back and which are closed when memory runs short.

use super::*;

const MOST: usize = 16 << 20;
const SHORT: usize = MOST / 4 * 3 + 1;
const OVER: usize = MOST + 1;

fn small_memory() -> Settings {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_memory = MOST;
    settings.limits.max_output_queue = 100;
    settings
}

fn crowded() -> Bench {
    Bench::new(small_memory())
}

impl Bench {
    /// Memory is short: `used` bytes, of which these peers hold the given amounts.
    fn crowd(&mut self, used: usize, held: &[(Peer, usize)]) {
        self.handle(Input::MemoryMeasured { used, held: held.to_vec(), waiting: Vec::new() });
    }

    fn relieve(&mut self) {
        self.handle(Input::MemoryMeasured { used: 0, held: Vec::new(), waiting: Vec::new() });
    }

    fn refuse(&mut self, client: Option<Peer>, held: &[(Peer, usize)]) {
        let client = client.map(|peer| match peer {
            Peer::Client(client) => client,
            Peer::Worker(_) => panic!("{peer:?} is no client"),
        });
        self.handle(Input::MemoryRefused { client, held: held.to_vec() });
    }
}

const REQUEST: &str = r#"{"id":1,"method":"x"}"#;
const RESULT: &str = r#"{"id":1,"result":1}"#;

#[test]
fn a_client_that_holds_much_is_not_read_until_there_is_room_again() {
    let mut bench = crowded();
    let (large, small, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.crowd(SHORT, &[(large, 4 << 20), (small, 10 << 10), (worker, 7 << 20)]);
    assert!(bench.is_paused(large));
    assert!(!bench.is_paused(small) && !bench.is_paused(worker));
    bench.write(large, REQUEST);
    assert_eq!(bench.read(worker), [""; 0]);
    bench.relieve();
    assert!(!bench.is_paused(large));
    assert_eq!(bench.read_one(worker), REQUEST);
    assert_eq!(bench.closed, []);
}

#[test]
fn a_client_held_back_is_not_read_although_its_bytes_have_arrived() {
    let mut bench = crowded();
    let (large, worker) = (bench.client(), bench.worker(0));
    bench.crowd(SHORT, &[(large, 12 << 20)]);
    // Bytes in transit are presented before the pause is known.
    bench.wire(large).paused = false;
    bench.write(large, REQUEST);
    assert_eq!(bench.wire(large).kept.len(), REQUEST.len() + 1, "nothing is consumed");
    assert_eq!(bench.read(worker), [""; 0]);
    bench.wire(large).paused = true;
    bench.relieve();
    assert_eq!(bench.read_one(worker), REQUEST);
}

#[test]
fn a_client_that_has_freed_its_memory_is_read_again_although_memory_is_still_short() {
    let mut bench = crowded();
    let (one, other) = (bench.client(), bench.client());
    bench.crowd(SHORT, &[(one, 6 << 20), (other, 6 << 20)]);
    bench.crowd(SHORT, &[(one, 12 << 20), (other, 1 << 10)]);
    assert!(bench.is_paused(one) && !bench.is_paused(other));
}

#[test]
fn a_client_that_also_waits_for_a_worker_is_read_again_only_when_both_reasons_are_gone() {
    for worker_first in [true, false] {
        let mut bench = crowded();
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.stalls(worker);
        bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "x".repeat(100)));
        bench.write(client, REQUEST);
        assert!(bench.is_paused(client));
        bench.crowd(SHORT, &[(client, 12 << 20)]);
        if worker_first {
            bench.takes(worker, usize::MAX);
            assert!(bench.is_paused(client), "memory is short");
            bench.relieve();
        } else {
            bench.relieve();
            assert!(bench.is_paused(client), "the worker is full");
            bench.takes(worker, usize::MAX);
        }
        assert!(!bench.is_paused(client));
        assert!(bench.read(worker).contains(&REQUEST.to_owned()));
    }
}

#[test]
fn above_the_limit_the_largest_is_closed_with_a_reason_and_the_others_stay() {
    let mut bench = crowded();
    let (large, larger, small, worker) = (bench.client(), bench.client(), bench.client(), bench.worker(0));
    bench.pass(seconds(2));
    bench.crowd(OVER, &[(large, 5 << 20), (larger, 8 << 20), (small, 20 << 10), (worker, 3 << 20)]);
    assert_eq!(bench.how_closed(larger), Some(Close::Refuse));
    assert_eq!(bench.read_error(larger), ("memory_limit".into(), -32027, Value::Null));
    assert_eq!(bench.how_closed(large), None, "seven eighths are enough");
    assert_eq!(bench.how_closed(small), None);
    let report = bench.reports.iter().find(|report| report.reason == Reason::MemoryLimit).expect("it is reported");
    assert_eq!(report.level, crate::report::Level::Warn);
    assert!(report.text.contains(&(8 << 20).to_string()) && report.text.contains("limits.max_memory"));
    assert!(report.client.is_some());
    bench.write(small, REQUEST);
    bench.write(worker, RESULT);
    assert_eq!(bench.read_one(small), RESULT);
}

#[test]
fn above_the_limit_clients_without_progress_are_closed_first() {
    let mut bench = crowded();
    let (stuck, busy) = (bench.client(), bench.client());
    bench.pass(seconds(2));
    bench.write(busy, r#"{"method":"x"}"#);
    bench.crowd(OVER, &[(stuck, 4 << 20), (busy, 12 << 20)]);
    assert_eq!(bench.how_closed(stuck), Some(Close::Refuse));
    assert_eq!(bench.how_closed(busy), None);
}

#[test]
fn memory_of_clients_that_are_being_closed_counts_as_freed() {
    let mut bench = crowded();
    let (stuck, busy, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.stalls(stuck);
    bench.write(stuck, REQUEST);
    bench.write(worker, &very_long_line());
    bench.pass(seconds(2));
    bench.write(busy, r#"{"method":"x"}"#);
    for _ in 0..3 {
        bench.crowd(OVER, &[(stuck, 3 << 20), (busy, 13 << 20)]);
    }
    assert_eq!(bench.how_closed(stuck), Some(Close::Now));
    assert_eq!(bench.how_closed(busy), None);
}

fn very_long_line() -> String {
    format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(900_000))
}

fn long_line() -> String {
    format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(50))
}

#[test]
fn a_client_that_does_not_read_is_closed_without_a_word_and_one_that_only_sends_gets_the_reason() {
    let mut settings = small_memory();
    settings.limits.max_output_queue = 1 << 20;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(client);
    bench.write(client, REQUEST);
    bench.write(worker, &format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(60_000)));
    bench.read(client);
    bench.crowd(OVER, &[(client, 128 << 10)]);
    assert_eq!(bench.how_closed(client), None, "it holds less than its share");
    bench.crowd(OVER, &[(client, 5 << 20)]);
    // Sixty kilobytes of five megabytes: the rest is a line of its own.
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
    assert_eq!(bench.read_error(client).0, "memory_limit");

    let mut bench = crowded();
    let (client, _other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.stalls(client);
    bench.write(client, REQUEST);
    bench.write(worker, &very_long_line());
    bench.read(client);
    bench.crowd(OVER, &[(client, 3 << 20)]);
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    assert_eq!(bench.read(client), [""; 0]);
}

#[test]
fn clients_without_progress_do_not_hold_up_the_others_forever() {
    let mut bench = crowded();
    let (first, second, third) = (bench.client(), bench.client(), bench.client());
    let mut held = vec![(first, 3 << 20), (second, 5 << 20), (third, 4 << 20)];
    let mut closed = Vec::new();
    for _ in 0..99 {
        bench.crowd(SHORT, &held);
        bench.pass(milliseconds(10));
    }
    assert_eq!(bench.closed, [], "it may pass within a second");
    for _ in 0..20 {
        bench.crowd(SHORT, &held);
        bench.pass(milliseconds(10));
        if let Some(at) = held.iter().position(|(peer, _)| bench.how_closed(*peer).is_some()) {
            closed.push((bench.now.0 / 1_000_000, held.remove(at).0));
        }
    }
    assert_eq!(closed.first().map(|(_, peer)| *peer), Some(second), "the largest holder is evicted first");
    assert_eq!(closed.len(), 3, "and those that send nothing when read again: {closed:?}");
}

#[test]
fn clients_held_back_are_read_in_turn_while_memory_stays_short() {
    let mut bench = crowded();
    let clients: Vec<Peer> = (0..40).map(|_| bench.client()).collect();
    let held: Vec<(Peer, usize)> = clients.iter().map(|client| (*client, SHORT / 40)).collect();
    let mut seen = vec![false; clients.len()];
    for _ in 0..150 {
        bench.crowd(SHORT, &held);
        for (client, seen) in clients.iter().zip(&mut seen) {
            if !bench.is_paused(*client) {
                *seen = true;
                bench.write_bytes(*client, b" ");
            }
        }
        assert!(bench.closed.len() < 10, "clients that send are not closed at once");
        bench.pass(milliseconds(10));
    }
    for (client, seen) in clients.iter().zip(seen) {
        assert!(seen || bench.how_closed(*client).is_some(), "each has its turn, or is the largest that moves nothing");
    }
}

#[test]
fn while_memory_stays_short_so_many_go_at_once_that_the_others_can_finish_their_lines() {
    let mut bench = crowded();
    let clients: Vec<Peer> = (0..100).map(|_| bench.client()).collect();
    let each = MOST / 100;
    let held: Vec<(Peer, usize)> = clients.iter().map(|client| (*client, each)).collect();
    bench.pass(milliseconds(1));
    bench.write_bytes(clients[0], b" ");
    while bench.closed.is_empty() {
        bench.crowd(MOST, &held);
        bench.pass(milliseconds(10));
    }
    let left = (100 - bench.closed.len()) * each;
    assert!((MOST / 4 * 3..=MOST / 8 * 7).contains(&left), "{} have gone", bench.closed.len());
    assert_eq!(bench.how_closed(clients[0]), None, "the clients that were silent for longest go");
}

#[test]
fn a_client_that_waits_for_memory_does_not_count_as_silent() {
    for is_waiting in [true, false] {
        let mut bench = crowded();
        let (patient, silent) = (bench.client(), bench.client());
        let held = [(patient, 5 << 20), (silent, 6 << 20)];
        // A second until a client is closed, and then as long as a chance lasts.
        for _ in 0..107 {
            let waiting = if is_waiting { vec![patient] } else { Vec::new() };
            bench.handle(Input::MemoryMeasured { used: SHORT, held: held.to_vec(), waiting });
            bench.pass(milliseconds(10));
        }
        assert!(bench.how_closed(silent).is_some());
        assert_eq!(bench.how_closed(patient).is_none(), is_waiting);
    }
}

#[test]
fn a_client_that_reads_or_writes_is_not_closed_while_there_is_memory_left() {
    let mut bench = crowded();
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(client);
    bench.write(client, REQUEST);
    bench.write(worker, &long_line());
    for _ in 0..50 {
        bench.takes(client, 1);
        bench.crowd(SHORT, &[(client, 12 << 20)]);
        bench.pass(milliseconds(100));
    }
    assert_eq!(bench.closed, []);
}

#[test]
fn many_clients_that_hold_little_are_never_touched() {
    let mut bench = crowded();
    let clients: Vec<Peer> = (0..1023).map(|_| bench.client()).collect();
    let held: Vec<_> = clients.iter().map(|client| (*client, 20 << 10)).collect();
    for _ in 0..30 {
        bench.crowd(2 * MOST, &held);
        bench.pass(milliseconds(100));
    }
    assert_eq!(bench.closed, []);
    assert!(clients.iter().all(|client| !bench.is_paused(*client)));
}

#[test]
fn a_worker_is_never_closed_for_it() {
    let mut bench = crowded();
    let worker = bench.worker(0);
    for _ in 0..30 {
        bench.crowd(OVER, &[(worker, OVER)]);
        bench.pass(milliseconds(100));
    }
    assert_eq!(bench.signals_to(worker), []);
    assert!(!bench.is_paused(worker));
}

#[test]
fn a_client_without_memory_is_closed_and_so_are_the_largest_when_none_is_left() {
    let mut bench = crowded();
    let (lost, large, middle, small) = (bench.client(), bench.client(), bench.client(), bench.client());
    bench.refuse(Some(lost), &[(lost, 1 << 10)]);
    assert_eq!(bench.how_closed(lost), Some(Close::Refuse));
    assert_eq!(bench.read_error(lost).0, "memory_limit");
    bench.refuse(None, &[(middle, 1 << 16), (large, 1 << 20), (small, 1 << 10)]);
    assert_eq!(bench.how_closed(large), Some(Close::Refuse));
    assert_eq!((bench.how_closed(middle), bench.how_closed(small)), (None, None), "what is freed is enough");
    let report =
        bench.reports.iter().rev().find(|report| report.reason == Reason::MemoryLimit).expect("it is reported");
    assert!(report.text.contains("the system has no memory left"), "{}", report.text);
}

#[test]
fn a_client_that_waits_for_a_worker_to_start_counts_as_making_progress() {
    let mut settings = small_memory();
    settings.limits.hold = seconds(60);
    let mut bench = Bench::new(settings);
    let (patient, silent, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.ends(worker);
    bench.write(patient, REQUEST);
    let held = [(patient, 6 << 20), (silent, 5 << 20)];
    for _ in 0..120 {
        bench.crowd(SHORT, &held);
        bench.pass(milliseconds(10));
    }
    assert_eq!([patient, silent].map(|client| bench.how_closed(client).is_some()), [false, true]);
}
