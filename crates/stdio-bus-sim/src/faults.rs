//! The world of a seed: its configuration, and how often each action happens in it.

use std::ops::Range;
use std::time::Duration;

use super::{Draws, Random};
use crate::bus::port::PoolId;
use crate::bus::settings::{
    Assignment, BadOutput, IdCollision, Limits, Listener, MAX_CONNECTIONS, Pool, Routing, SessionAccess, Settings,
    Start,
};

/// An action of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client connects.
    Connect,
    /// A client writes some messages.
    ClientWrites,
    /// A worker answers, notifies or asks.
    WorkerWrites,
    /// Bytes that a peer wrote reach the bus.
    Arrive,
    /// Bytes that the bus queued reach a peer.
    Leave,
    /// A worker's process starts, or fails to.
    Spawn,
    /// Time passes.
    Wait,
    /// Time passes up to the next deadline.
    WaitForDeadline,
    /// A peer starts or stops reading slowly or not at all.
    ChangePace,
    /// A client ends its input.
    HalfClose,
    /// A client's connection breaks.
    Reset,
    /// A client writes a line that is malformed or too long.
    ClientBad,
    /// A worker writes a line that is malformed or too long.
    WorkerBad,
    /// A worker writes much that has no receiver.
    Flood,
    /// A worker's process exits, sometimes after half a line.
    Exit,
    /// A worker closes its stdout and stays alive.
    CloseStdout,
    /// A worker closes its stdin and stays alive.
    CloseStdin,
    /// Memory runs short, or is available again.
    Crowd,
    /// SIGTERM.
    Shutdown,
}

/// The relative frequency of each action.
pub fn weights(draws: &mut Draws<'_>) -> Vec<(Action, usize)> {
    use Action as A;
    let mut weights = vec![
        (A::Connect, draws.of("weight of Connect").range(1..6)),
        (A::ClientWrites, draws.of("weight of ClientWrites").range(10..40)),
        (A::WorkerWrites, draws.of("weight of WorkerWrites").range(10..60)),
        (A::Arrive, draws.of("weight of Arrive").range(30..100)),
        (A::Leave, draws.of("weight of Leave").range(20..100)),
        (A::Spawn, draws.of("weight of Spawn").range(3..20)),
        (A::Wait, draws.of("weight of Wait").range(1..12)),
        (A::WaitForDeadline, *draws.of("weight of WaitForDeadline").pick(&[0, 1, 3])),
        (A::ChangePace, *draws.of("weight of ChangePace").pick(&[0, 1, 4])),
    ];
    for fault in [A::HalfClose, A::Reset, A::ClientBad, A::WorkerBad, A::Exit, A::CloseStdout, A::CloseStdin, A::Crowd]
    {
        weights.push((fault, *draws.of(&format!("weight of {fault:?}")).pick(&[0, 0, 1, 2])));
    }
    // Workers that keep crashing while requests are pending, and clients that read nothing while much is sent to them.
    match draws.of("what happens most").range(0..8) {
        0 | 3 => weights.extend([(A::Exit, 20), (A::Spawn, 40), (A::Wait, 12), (A::ClientWrites, 40)]),
        1 | 2 => weights.extend([(A::WorkerWrites, 60), (A::ClientWrites, 30), (A::Wait, 12)]),
        _ => {}
    }
    weights
}

/// The configuration of a seed.
pub fn settings(draws: &mut Draws<'_>) -> Settings {
    let count = draws.of("number of pools").range(1..4);
    let pools: Vec<Pool> = (0..count).map(|number| pool(number, &mut draws.each("pool", number))).collect();
    let stdio = draws.of("stdio").one_in(8);
    let first = draws.of("first pool of the listener").range(0..count);
    let some = draws.of("listener offers some pools").one_in(6).then(|| (first..count).map(PoolId::at).collect());
    let mut listeners = vec![Listener { stdio, pools: some, ..Listener::default() }];
    if !stdio {
        for pool in 0..count {
            let draws = &mut draws.each("listener of pool", pool);
            if draws.of("exists").one_in(2) {
                let only = draws.of("offers no other").one_in(2).then(|| vec![PoolId::at(pool)]);
                listeners.push(Listener { pool: Some(PoolId::at(pool)), pools: only, ..Listener::default() });
            }
        }
    }
    for (number, listener) in listeners.iter_mut().enumerate() {
        listener.idle_timeout = sometimes(&mut draws.each("listener", number), "idle_timeout", 6, 500..20_000);
    }
    let limits = limits(draws, first == 0);
    Settings { most_clients: MAX_CONNECTIONS, limits, pools, listeners, routing: routing(draws) }
}

fn pool(number: usize, draws: &mut Draws<'_>) -> Pool {
    let instances = draws.of("instances").range(1..5);
    let assignment = *draws.of("assignment").pick(&[Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated]);
    let more = more(assignment == Assignment::Dedicated, draws);
    let personal = assignment == Assignment::Dedicated && draws.of("personal").one_in(3);
    let pool = Pool {
        id: format!("pool-{number}"),
        instances,
        max_instances: instances + more,
        concurrency: draws.of("concurrency").range(1..4),
        assignment,
        cancel_on_disconnect: draws.of("cancel_on_disconnect").one_in(2),
        request_timeout: sometimes(draws, "request_timeout", 3, 500..5000),
        on_bad_output: draws.of("on_bad_output").one_in(3).then_some(BadOutput::Skip),
        idle_timeout: sometimes(draws, "idle_timeout", 4, 500..3000),
        worker_silent: Some(sometimes(draws, "worker_silent", 4, 500..3000).unwrap_or_default()),
        deny_methods: if draws.of("deny_methods").one_in(4) { vec!["session/list".into()] } else { Vec::new() },
        start: start(draws),
        idle_stop: sometimes(draws, "idle_stop", 2, 300..4000),
        ..Pool::default()
    };
    match personal {
        // Each worker is started for its client, so there are none before.
        true => Pool { personal, instances: 0, start: Start::AtOnce, idle_stop: None, ..pool },
        false => pool,
    }
}

/// How many workers a pool may have beyond its instances.
fn more(is_dedicated: bool, draws: &mut Draws<'_>) -> usize {
    match is_dedicated {
        true => draws.of("max_instances").range(0..4),
        false if draws.of("grows").one_in(3) => draws.of("growth").range(1..4),
        false => 0,
    }
}

/// When the workers of a pool are started.
fn start(draws: &mut Draws<'_>) -> Start {
    if draws.of("start").one_in(3) { Start::OnDemand } else { Start::AtOnce }
}

fn limits(draws: &mut Draws<'_>, holds: bool) -> Limits {
    let lame_duck = sometimes(draws, "lame_duck", 4, 100..1000);
    let quiesce = sometimes(draws, "quiesce", 3, 100..3000);
    Limits {
        max_input_buffer: *draws.of("max_input_buffer").pick(&[600, 1500, 5000]),
        max_output_queue: *draws.of("max_output_queue").pick(&[100, 300, 1000, 4000, 100_000]),
        max_restarts: *draws.of("max_restarts").pick(&[0, 1, 5, 100]),
        restart_window: milliseconds(draws.of("restart_window"), 1000..60_000),
        drain_timeout: milliseconds(draws.of("drain_timeout"), 500..4000),
        backpressure_timeout: milliseconds(draws.of("backpressure_timeout"), 1000..6000),
        lame_duck: lame_duck.unwrap_or_default(),
        quiesce: quiesce.unwrap_or_default(),
        drain_grace: milliseconds(draws.of("drain_grace"), 0..300),
        hold: if holds { Duration::from_millis(300) } else { Duration::ZERO },
        session_idle: None,
        session_detached: None,
        worker_silent: Duration::ZERO,
        max_memory: 256 << 20,
        max_workers_memory: draws
            .of("max_workers_memory")
            .one_in(3)
            .then(|| draws.of("their memory").range(1..8) as u64),
        ..Limits::default()
    }
}

fn routing(draws: &mut Draws<'_>) -> Routing {
    let is_always = draws.of("id_collision").one_in(8);
    let is_shared = draws.of("session_access").one_in(8);
    Routing {
        id_collision: if is_always { IdCollision::Always } else { IdCollision::Translate },
        session_access: if is_shared { SessionAccess::Shared } else { SessionAccess::Owner },
    }
}

/// A time that is set once in `times`.
fn sometimes(draws: &mut Draws<'_>, name: &str, times: usize, range: Range<usize>) -> Option<Duration> {
    let random = draws.of(name);
    random.one_in(times).then(|| milliseconds(random, range))
}

fn milliseconds(random: &mut Random, range: Range<usize>) -> Duration {
    Duration::from_millis(random.range(range) as u64)
}

/// The settings of a reload: some of the current ones are changed. `first` holds what the listeners of the seed offer
/// while all pools exist.
pub fn reload(draws: &mut Draws<'_>, first: &Settings, now: &Settings) -> Settings {
    let mut next = now.clone();
    for number in 0..draws.of("number of changes").range(1..4) {
        change(&mut next, &mut draws.each("change", number));
    }
    let is_there = |pool: &PoolId| !next.pools[*pool].is_gone;
    for (listener, first) in next.listeners.iter_mut().zip(&first.listeners) {
        let offered: Option<Vec<PoolId>> =
            first.pools.as_ref().map(|pools| pools.iter().copied().filter(is_there).collect());
        let has_none = offered.as_ref().is_some_and(|offered| offered.is_empty());
        if !listener.is_gone && !has_none && listener.pool.as_ref().is_none_or(is_there) {
            listener.pools = offered;
        } else {
            listener.is_gone = true;
        }
    }
    next
}

fn change(next: &mut Settings, draws: &mut Draws<'_>) {
    let at = draws.of("pool").range(0..next.pools.len());
    let pool = &mut next.pools[at];
    let is_dedicated = pool.assignment == Assignment::Dedicated;
    match draws.of("what is changed").range(0..16) {
        0..4 => pool.generation += u32::from(!pool.is_gone),
        4 => {
            let instances = draws.of("instances").range(1..5);
            pool.instances = if pool.personal { 0 } else { instances };
            pool.max_instances = instances + more(is_dedicated, draws);
        }
        5 => pool.request_timeout = sometimes(draws, "request_timeout", 2, 500..5000),
        6 => {
            pool.deny_methods =
                if draws.of("deny_methods").one_in(2) { vec!["session/list".into()] } else { Vec::new() };
        }
        7 => {
            let random = draws.of("max_requests");
            pool.max_requests = random.one_in(2).then(|| random.range(1..20) as u32);
        }
        8 => pool.max_age = sometimes(draws, "max_age", 2, 500..20_000),
        9 if !is_dedicated => {
            pool.assignment = *draws.of("assignment").pick(&[Assignment::RoundRobin, Assignment::Client]);
        }
        10 => pool.is_gone = at > 0 && !pool.is_gone,
        11 | 14 | 15 => {
            let at = draws.of("listener").range(0..next.listeners.len());
            next.listeners[at].is_gone = at > 0 && !next.listeners[at].is_gone;
        }
        12 => {
            pool.idle_timeout = sometimes(draws, "idle_timeout", 2, 500..3000);
            pool.worker_silent = Some(sometimes(draws, "worker_silent", 2, 500..3000).unwrap_or_default());
        }
        _ => {
            let holds = draws.of("hold").one_in(2);
            let max_input_buffer = next.limits.max_input_buffer;
            let replace_timeout = milliseconds(draws.of("replace_timeout"), 100..20_000);
            next.limits = Limits { max_input_buffer, replace_timeout, ..limits(draws, holds) };
            next.routing.id_collision = routing(draws).id_collision;
        }
    }
    if draws.of("demand").one_in(8) && !next.pools[at].personal {
        next.pools[at].start = start(draws);
        next.pools[at].idle_stop = sometimes(draws, "idle_stop", 2, 300..4000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_draw_changes_no_other_setting_and_no_weight_of_a_seed() {
        for seed in 0..200 {
            let drawn = |has_more: bool| {
                let mut random = Random::new(seed);
                let mut draws = Draws::new(&mut random);
                if has_more {
                    draws.of("a setting that is new").range(0..1000);
                }
                let settings = settings(&mut draws);
                if has_more {
                    draws.of("a fault that is new").range(0..1000);
                }
                let weights = weights(&mut draws);
                let mut random = Random::new(!seed);
                let mut draws = Draws::new(&mut random);
                if has_more {
                    draws.of("a change that is new").range(0..1000);
                }
                let reloaded = reload(&mut draws, &settings, &settings);
                format!("{settings:#?} {weights:?} {reloaded:#?}")
            };
            assert_eq!(drawn(true), drawn(false), "seed {seed}");
        }
    }
}
