//! Who uses how much: by source, token, user and pool.

use super::*;
use crate::origin::Names;
use crate::usage::{Consumer, UsageKind, Used, Who};

const FIRST: &str = "192.0.2.1";
const SECOND: &str = "192.0.2.2";

fn source(address: &str) -> Source {
    Place::Address(SocketAddr::new(address.parse().expect("an address"), 7)).source()
}

/// A client of this address, with a token of this name.
fn bearer(bench: &mut Bench, address: &str, token: &str) -> Peer {
    let names = Names { token: Some(token.into()), ..Names::default() };
    let origin = Origin { names: names.into(), ..Origin::from(Place::from(source(address))) };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

fn client_at(bench: &mut Bench, address: &str) -> Peer {
    Peer::Client(bench.connect(0, source(address)).expect("there is room"))
}

/// Time passes, and each ten seconds an interval begins.
fn pass(bench: &mut Bench, time: Duration) {
    for _ in 0..time.as_secs() / 10 {
        bench.pass(seconds(10));
        bench.bus.mark_usage(bench.now);
    }
    bench.pass(Duration::from_secs(time.as_secs() % 10));
}

fn consumers(bench: &Bench, kind: UsageKind, most: usize) -> Vec<Consumer> {
    bench.bus.view().consumers(bench.now, most).into_iter().filter(|row| row.kind == kind).collect()
}

/// The usage of one name, in the last minute and since the start.
fn used(bench: &Bench, who: &Who) -> (Used, Used) {
    let found = bench.bus.view().consumers(bench.now, 99).into_iter().find(|row| row.who.as_ref() == Some(who));
    found.map(|row| (row.now, row.all)).unwrap_or_default()
}

fn of_source(bench: &Bench, address: &str) -> (Used, Used) {
    used(bench, &Who::Source(source(address)))
}

/// What was used, with the time to the millisecond.
fn rounded(used: Used) -> (u64, u64, u128) {
    (used.requests, used.bytes, (used.worker_time + Duration::from_micros(500)).as_millis())
}

/// A request that is answered after this time.
fn ask(bench: &mut Bench, client: Peer, time: Duration) {
    let worker = bench.worker(0);
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    pass(bench, time);
    let answer = bench.read_json(worker);
    bench.write(worker, &json!({"id": answer["id"], "result": {}}).to_string());
    bench.read(client);
}

#[test]
fn requests_bytes_and_the_time_of_workers_are_counted_by_source_token_user_and_pool() {
    let mut bench = bench(1);
    let (one, other) = (bearer(&mut bench, FIRST, "team"), bearer(&mut bench, SECOND, "team"));
    let third = client_at(&mut bench, SECOND);
    for client in [one, other, third] {
        ask(&mut bench, client, seconds(2));
    }
    let line = r#"{"id":1,"method":"m"}"#.len() as u64 + 1;
    let (_, first) = of_source(&bench, FIRST);
    assert_eq!(rounded(first), (1, line + r#"{"id":1,"result":{}}"#.len() as u64 + 1, 2000));
    let (_, second) = of_source(&bench, SECOND);
    assert_eq!((second.requests, second.bytes), (2, 2 * first.bytes));
    let names = Names { user: Some("team".into()), ..Names::default() };
    let user = bench.connect(0, Origin { names: names.into(), ..Origin::from(Place::from(source(FIRST))) });
    ask(&mut bench, Peer::Client(user.expect("there is room")), seconds(2));
    let (_, called) = used(&bench, &Who::User("team".into()));
    assert_eq!(rounded(called).0, 1, "whom a proxy calls so is another than the bearer of a token");
    let (now, team) = used(&bench, &Who::Token("team".into()));
    assert_eq!((rounded(team), now), ((2, 2 * first.bytes, 4000), team), "all of it was in the last minute");
    let (_, agents) = used(&bench, &Who::Pool(PoolId::at(0)));
    assert_eq!((agents.requests, rounded(agents).2), (4, 8000));
    // Ids that are the same are replaced by others, which may be longer.
    assert!(agents.bytes >= 3 * first.bytes, "{agents:?}");
}

#[test]
fn whoever_has_left_keeps_what_it_has_used() {
    let mut bench = Bench::new(settings(vec![Pool { request_timeout: None, ..pool(1, Assignment::RoundRobin) }]));
    let (client, worker) = (client_at(&mut bench, FIRST), bench.worker(0));
    ask(&mut bench, client, seconds(1));
    let before = of_source(&bench, FIRST);
    bench.breaks(client);
    bench.gone(client);
    bench.dies(worker);
    assert_eq!(of_source(&bench, FIRST), before);
    assert_eq!(used(&bench, &Who::Pool(PoolId::at(0))).1.requests, 1);
    bench.pass(seconds(1));
    let again = client_at(&mut bench, FIRST);
    bench.write(again, r#"{"id":1,"method":"m"}"#);
    assert_eq!(of_source(&bench, FIRST).1.requests, 2);
}

#[test]
fn the_last_minute_forgets_what_was_before_it_and_the_total_does_not() {
    let mut bench = bench(1);
    let client = client_at(&mut bench, FIRST);
    ask(&mut bench, client, seconds(3));
    pass(&mut bench, seconds(30));
    let (now, all) = of_source(&bench, FIRST);
    assert_eq!((now, rounded(all).2), (all, 3000));
    pass(&mut bench, seconds(50));
    assert_eq!(of_source(&bench, FIRST), (Used::default(), all));
    ask(&mut bench, client, seconds(1));
    let (now, all) = of_source(&bench, FIRST);
    assert_eq!((now.requests, rounded(now).2, all.requests, rounded(all).2), (1, 1000, 2, 4000));
}

#[test]
fn a_request_that_a_worker_still_has_counts_already_and_never_for_more_than_the_minute() {
    let mut bench = Bench::new(settings(vec![Pool { request_timeout: None, ..pool(1, Assignment::RoundRobin) }]));
    let (client, worker) = (client_at(&mut bench, FIRST), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    pass(&mut bench, seconds(25));
    let agents = Who::Pool(PoolId::at(0));
    for who in [Who::Source(source(FIRST)), agents.clone()] {
        let (now, all) = used(&bench, &who);
        assert_eq!((rounded(now).2, rounded(all).2), (25_000, 25_000), "{who:?}");
    }
    pass(&mut bench, seconds(600));
    let (now, all) = of_source(&bench, FIRST);
    assert!((50_000..=60_000).contains(&rounded(now).2) && rounded(all).2 >= 620_000, "{now:?} {all:?}");
    // The end of it brings nothing anew.
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    for who in [Who::Source(source(FIRST)), agents] {
        let (then, total) = used(&bench, &who);
        assert_eq!((rounded(then).2, rounded(total).2), (rounded(now).2, rounded(all).2), "{who:?}");
    }
    pass(&mut bench, seconds(70));
    let (then, total) = of_source(&bench, FIRST);
    assert_eq!((then, rounded(total)), (Used::default(), (1, rounded(total).1, rounded(all).2)));
}

#[test]
fn the_time_of_a_request_without_an_answer_counts_until_its_client_waits_no_more() {
    let limited = Pool { request_timeout: Some(seconds(10)), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![limited]));
    let (waits, leaves) = (client_at(&mut bench, FIRST), client_at(&mut bench, SECOND));
    bench.write(waits, r#"{"id":1,"method":"m"}"#);
    bench.write(leaves, r#"{"id":2,"method":"m"}"#);
    bench.pass(seconds(4));
    bench.breaks(leaves);
    bench.pass(seconds(20));
    assert_eq!(rounded(of_source(&bench, FIRST).1).2, 10_000, "it got an error then");
    assert_eq!(rounded(of_source(&bench, SECOND).1).2, 4000);
    assert_eq!(rounded(used(&bench, &Who::Pool(PoolId::at(0))).1).2, 14_000);
}

#[test]
fn requests_of_workers_are_no_work_of_workers() {
    let mut bench = bench(1);
    let (client, worker) = (client_at(&mut bench, FIRST), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":9,"method":"ask","sessionId":"s"}"#);
    bench.pass(seconds(5));
    bench.write(client, r#"{"id":9,"result":{}}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    for who in [Who::Source(source(FIRST)), Who::Pool(PoolId::at(0))] {
        let (_, all) = used(&bench, &who);
        assert_eq!((all.requests, rounded(all).2), (1, 5000), "{who:?}");
    }
}

#[test]
fn the_heaviest_come_first_by_their_largest_share_and_the_rest_is_one_row() {
    let mut bench = bench(1);
    let address = |nth: usize| format!("192.0.2.{nth}");
    // One has most of the time, one most of the bytes, and the others have asked once.
    for nth in 1..=5 {
        let client = client_at(&mut bench, &address(nth));
        ask(&mut bench, client, if nth == 4 { seconds(30) } else { milliseconds(0) });
        if nth == 5 {
            bench.write(client, &format!(r#"{{"method":"n","params":"{}"}}"#, "x".repeat(60_000)));
            bench.read(bench.worker(0));
        }
    }
    let rows = consumers(&bench, UsageKind::Source, 2);
    let names: Vec<_> = rows.iter().map(|row| row.who.clone()).collect();
    let [with_time, with_bytes] = [4, 5].map(|nth| Some(Who::Source(source(&address(nth)))));
    assert_eq!(names, [with_time, with_bytes, None], "{rows:?}");
    assert_eq!(rows[2].all.requests, 3);
    // Who uses much now is listed before who used much once.
    pass(&mut bench, seconds(80));
    let late = client_at(&mut bench, "192.0.2.9");
    ask(&mut bench, late, milliseconds(0));
    let rows = consumers(&bench, UsageKind::Source, 2);
    assert_eq!(rows[0].who, Some(Who::Source(source("192.0.2.9"))), "{rows:?}");
}

#[test]
fn however_many_names_come_the_heavy_ones_are_kept_and_no_usage_is_lost() {
    let mut bench = bench(1);
    let heavy = client_at(&mut bench, FIRST);
    for _ in 0..3 {
        ask(&mut bench, heavy, milliseconds(0));
    }
    bench.breaks(heavy);
    bench.gone(heavy);
    let before = of_source(&bench, FIRST).1;
    const CAME: usize = 3000;
    for nth in 0..CAME {
        let client = client_at(&mut bench, &format!("198.18.{}.{}", nth / 256, nth % 256));
        ask(&mut bench, client, milliseconds(0));
        bench.breaks(client);
        bench.gone(client);
    }
    let rows = consumers(&bench, UsageKind::Source, usize::MAX);
    assert!(rows.len() <= 1024 + 1, "{}", rows.len());
    assert_eq!(of_source(&bench, FIRST).1, before);
    assert_eq!(rows.iter().map(|row| row.all.requests).sum::<u64>(), CAME as u64 + 3);
    assert!(rows.last().is_some_and(|row| row.who.is_none()), "the others are one row");
}

#[test]
fn a_pool_that_takes_the_place_of_a_removed_one_has_used_nothing_and_no_usage_is_lost() {
    let named = |id: &str| settings(vec![Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) }]);
    let mut bench = Bench::new(named("before"));
    let client = client_at(&mut bench, FIRST);
    ask(&mut bench, client, seconds(20));
    // Some of it is not in the table yet.
    ask(&mut bench, client, seconds(1));
    bench.gone(client);
    let mut gone = named("before");
    gone.pools[0].is_gone = true;
    bench.reload(&gone);
    let worker = bench.worker(0);
    bench.dies(worker);
    assert_eq!(rounded(used(&bench, &Who::Pool(PoolId::at(0))).1).0, 2, "it has its name as long as it has its place");
    bench.reload(&named("after"));
    bench.pass(seconds(1));
    let pools = |bench: &Bench| {
        let rows = consumers(bench, UsageKind::Pool, 9).into_iter();
        rows.map(|row| (row.who, row.all.requests, row.all.worker_time)).collect::<Vec<_>>()
    };
    assert_eq!(pools(&bench), [(None, 2, seconds(21))]);
    let client = client_at(&mut bench, FIRST);
    let worker = bench.newest(1)[0];
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.pass(seconds(3));
    let answer = bench.read_json(worker);
    bench.write(worker, &json!({"id": answer["id"], "result": {}}).to_string());
    let own = (Some(Who::Pool(PoolId::at(0))), 1, seconds(3));
    assert_eq!(pools(&bench), [own, (None, 2, seconds(21))]);
}
