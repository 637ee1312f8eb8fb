//! The operator's view of the tables.

use super::*;
use crate::overview::{FillLevel, PeerName};
use crate::worker::WorkerState;

const FIRST: WorkerName = WorkerName { pool: PoolId::at(0), place: 0, incarnation: 0 };

#[test]
fn the_age_of_a_request_is_right_to_the_microsecond_for_years() {
    for pending in [0, 1023, 1 << 40, 9 * 365 * 86_400 * 1_000_000_000] {
        let mut bench = Bench::new(settings(vec![pool(1, Assignment::RoundRobin)]));
        let client = bench.client();
        bench.now = Moment(pending);
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        let row = bench.request_row(0).expect("it is there");
        assert!(row.age < Duration::from_nanos(1024), "{pending}: {row:?}");
    }
}

#[test]
fn the_rows_of_a_client_and_a_worker_have_their_requests_and_sessions() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.pass(seconds(2));
    bench.stalls(worker);
    bench.write(client, r#"{"id":"a","method":"m","sessionId":"s"}"#);
    bench.pass(seconds(1));
    let row = bench.bus.view().client_row(bench.now, 0).expect("it is there");
    assert_eq!((row.number, row.listener, row.state, row.account.lasted), (0, ListenerId::at(0), "open", seconds(3)));
    assert_eq!((row.link.asked, row.link.sessions, row.link.queued, row.link.waits_for), (1, 1, 0, None));
    assert_eq!(row.link.idle, seconds(1));
    let row = bench.bus.view().worker_row(bench.now, 0).expect("it is there");
    assert_eq!((row.name, row.pid, row.state, row.owner), (FIRST, 100, WorkerState::Running, None));
    assert_eq!((row.link.to_answer, row.link.sessions, row.link.queued), (1, 1, 40));
    assert!(bench.bus.view().client_row(bench.now, 1).is_none() && bench.bus.view().worker_row(bench.now, 7).is_none());
}

#[test]
fn sessions_and_requests_are_shown_by_their_names() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":"a","method":"m","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":9,"method":"ask","sessionId":"s"}"#);
    bench.pass(seconds(4));
    let session = bench.bus.view().session_row(bench.now, 0).expect("it is there");
    assert_eq!((session.name, session.client, session.rank), (&b"s"[..], Some(0), "claimed"));
    assert_eq!((session.worker, session.pending), (Some(PeerName::Worker(FIRST)), 2), "one in each direction");
    let request = bench.request_row(0).expect("it is there");
    assert_eq!((request.asker, request.answerer), (Some(PeerName::Client(0)), Some(PeerName::Worker(FIRST))));
    assert!(request.id.contains('a') && request.age.abs_diff(seconds(4)) < milliseconds(1), "{request:?}");
    assert_eq!(bench.bus.view().request_age(bench.now, 0).map(|(pool, _)| pool.index()), Some(0));
    let request = bench.request_row(1).expect("it is there");
    assert_eq!((request.asker, request.answerer), (Some(PeerName::Worker(FIRST)), Some(PeerName::Client(0))));
    bench.breaks(client);
    assert_eq!(bench.request_row(0).and_then(|request| request.asker), None);
    assert_eq!(bench.bus.view().request_age(bench.now, 0), None, "its asker does not wait");
}

#[test]
fn every_entry_of_a_table_is_in_one_of_its_slots() {
    let mut bench = bench(3);
    let clients: Vec<Peer> = (0..20).map(|_| bench.client()).collect();
    for (id, client) in clients.iter().enumerate() {
        bench.write(*client, &format!(r#"{{"id":{id},"method":"m","sessionId":"s{id}"}}"#));
    }
    let (bus, now) = (&bench.bus, bench.now);
    assert_eq!((0..bus.view().client_slots()).filter_map(|slot| bus.view().client_row(now, slot)).count(), 20);
    assert_eq!((0..bus.view().worker_slots()).filter_map(|slot| bus.view().worker_row(now, slot)).count(), 3);
    assert_eq!((0..bus.view().session_slots()).filter_map(|slot| bus.view().session_row(now, slot)).count(), 20);
    let slots = 0..bus.view().request_slots();
    assert_eq!(slots.filter_map(|slot| bench.request_row(slot)).count(), 20);
    let levels = bus.view().levels();
    assert_eq!((levels.clients, levels.sessions.used), (FillLevel { used: 20, most: 1024 }, 20));
    assert_eq!((levels.requests, levels.worker_requests.used), (FillLevel { used: 20, most: 4096 }, 0));
    assert!(bus.view().client_numbered(19).is_some() && bus.view().client_numbered(20).is_none());
    assert!(bus.view().worker_at(0, 2).is_some() && bus.view().worker_at(0, 3).is_none());
}

#[test]
fn idle_time_never_exceeds_connection_time() {
    let mut bench = bench(1);
    bench.pass(seconds(1000));
    bench.client();
    let worker = bench.worker(0);
    bench.dies(worker);
    bench.pass(seconds(1));
    let (client, worker) = (bench.bus.view().client_row(bench.now, 0), bench.bus.view().worker_row(bench.now, 0));
    let (client, worker) = (client.expect("it is there"), worker.expect("it runs again"));
    assert!(client.link.idle <= client.account.lasted, "{client:?}");
    assert!(worker.link.idle <= worker.age, "{worker:?}");
}

#[test]
fn a_reserved_name_is_not_a_session_of_its_worker() {
    let mut bench = bench(1);
    let (owner, gone, worker) = (bench.client(), bench.client(), bench.worker(0));
    for (client, id) in [(owner, 1), (gone, 2)] {
        bench.write(client, &format!(r#"{{"id":{id},"method":"session/new"}}"#));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"s{id}"}}}}"#));
    }
    bench.breaks(gone);
    bench.gone(gone);
    let levels = bench.bus.view().levels();
    let at_worker = bench.bus.view().worker_row(bench.now, 0).expect("it lives").link.sessions;
    let at_client = bench.bus.view().client_row(bench.now, 0).expect("it is there").link.sessions;
    assert_eq!((levels.sessions.used, levels.held, at_worker, at_client), (1, 1, 1, 1));
}
