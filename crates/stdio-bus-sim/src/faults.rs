//! The world of a seed: its configuration, and how often each action happens in it.

use std::ops::Range;
use std::time::Duration;

use super::Random;
use crate::bus::settings::{
    Assignment, BadOutput, IdCollision, Limits, Listener, MAX_CONNECTIONS, Pool, Routing, SessionAccess, Settings,
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
pub fn weights(random: &mut Random) -> Vec<(Action, usize)> {
    use Action as A;
    let mut weights = vec![
        (A::Connect, random.range(1..6)),
        (A::ClientWrites, random.range(10..40)),
        (A::WorkerWrites, random.range(10..60)),
        (A::Arrive, random.range(30..100)),
        (A::Leave, random.range(20..100)),
        (A::Spawn, random.range(3..20)),
        (A::Wait, random.range(1..12)),
        (A::WaitForDeadline, *random.pick(&[0, 1, 3])),
        (A::ChangePace, *random.pick(&[0, 1, 4])),
    ];
    for fault in [A::HalfClose, A::Reset, A::ClientBad, A::WorkerBad, A::Exit, A::CloseStdout, A::CloseStdin, A::Crowd]
    {
        weights.push((fault, *random.pick(&[0, 0, 1, 2])));
    }
    // Workers that keep crashing while requests are pending, and clients that read nothing while much is sent to them.
    match random.range(0..8) {
        0 | 3 => weights.extend([(A::Exit, 20), (A::Spawn, 40), (A::Wait, 12), (A::ClientWrites, 40)]),
        1 | 2 => weights.extend([(A::WorkerWrites, 60), (A::ClientWrites, 30), (A::Wait, 12)]),
        _ => {}
    }
    weights
}

/// The configuration of a seed.
pub fn settings(random: &mut Random) -> Settings {
    let assignments = [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated];
    let pools: Vec<Pool> = (0..random.range(1..4))
        .map(|number| {
            let instances = random.range(1..5);
            let assignment = *random.pick(&assignments);
            let grows = if assignment == Assignment::Dedicated { random.range(0..4) } else { 0 };
            let cancel_on_disconnect = random.one_in(2);
            let request_timeout = random.one_in(3).then(|| milliseconds(random, 500..5000));
            let idle_timeout = random.one_in(4).then(|| milliseconds(random, 500..3000));
            Pool {
                id: format!("pool-{number}"),
                instances,
                max_instances: instances + grows,
                assignment,
                cancel_on_disconnect,
                request_timeout,
                // Drawn aside, so that the rest of a seed stays what it was.
                on_bad_output: random.clone().one_in(3).then_some(BadOutput::Skip),
                idle_timeout,
                deny_methods: if random.one_in(4) { vec!["session/list".into()] } else { Vec::new() },
                ..Pool::default()
            }
        })
        .collect();
    let stdio = random.one_in(8);
    let first = random.range(0..pools.len());
    let some = random.one_in(6).then(|| (first..pools.len()).collect());
    let mut listeners = vec![Listener { stdio, pools: some, ..Listener::default() }];
    if !stdio {
        for pool in 0..pools.len() {
            if random.one_in(2) {
                let only = random.one_in(2).then(|| vec![pool]);
                listeners.push(Listener { pool: Some(pool), pools: only, ..Listener::default() });
            }
        }
    }
    for listener in &mut listeners {
        listener.idle_timeout = random.one_in(6).then(|| milliseconds(random, 500..20_000));
    }
    let limits = limits(random, first == 0);
    Settings { most_clients: MAX_CONNECTIONS, limits, pools, listeners, routing: routing(random) }
}

fn limits(random: &mut Random, holds: bool) -> Limits {
    Limits {
        max_input_buffer: *random.pick(&[600, 1500, 5000]),
        max_output_queue: *random.pick(&[100, 300, 1000, 4000, 100_000]),
        max_restarts: *random.pick(&[0, 1, 5, 100]),
        restart_window: milliseconds(random, 1000..60_000),
        drain_timeout: milliseconds(random, 500..4000),
        backpressure_timeout: milliseconds(random, 1000..6000),
        lame_duck: if random.one_in(4) { milliseconds(random, 100..1000) } else { Duration::ZERO },
        quiesce: if random.one_in(3) { milliseconds(random, 100..3000) } else { Duration::ZERO },
        drain_grace: milliseconds(random, 0..300),
        hold: if holds { Duration::from_millis(300) } else { Duration::ZERO },
        session_idle: None,
        session_detached: None,
        requests_ahead: *random.pick(&[1, 4, 16, 128]),
        max_memory: 256 << 20,
        ..Limits::default()
    }
}

fn routing(random: &mut Random) -> Routing {
    Routing {
        id_collision: if random.one_in(8) { IdCollision::Always } else { IdCollision::Translate },
        session_access: if random.one_in(8) { SessionAccess::Shared } else { SessionAccess::Owner },
    }
}

fn milliseconds(random: &mut Random, range: Range<usize>) -> Duration {
    Duration::from_millis(random.range(range) as u64)
}

/// The settings of a reload: some of the current ones are changed. `first` holds what the listeners of the seed offer
/// while all pools exist.
pub fn reload(random: &mut Random, first: &Settings, now: &Settings) -> Settings {
    let mut next = now.clone();
    for _ in 0..random.range(1..4) {
        let at = random.range(0..next.pools.len());
        let pool = &mut next.pools[at];
        let is_dedicated = pool.assignment == Assignment::Dedicated;
        match random.range(0..14) {
            0..4 => pool.generation += u32::from(!pool.is_gone),
            4 => {
                pool.instances = random.range(1..5);
                pool.max_instances = pool.instances + if is_dedicated { random.range(0..4) } else { 0 };
            }
            12 => pool.idle_timeout = random.one_in(2).then(|| milliseconds(random, 500..3000)),
            5 => pool.request_timeout = random.one_in(2).then(|| milliseconds(random, 500..5000)),
            6 => pool.deny_methods = if random.one_in(2) { vec!["session/list".into()] } else { Vec::new() },
            7 => pool.max_requests = random.one_in(2).then(|| random.range(1..20) as u32),
            8 => pool.max_age = random.one_in(2).then(|| milliseconds(random, 500..20_000)),
            9 if !is_dedicated => pool.assignment = *random.pick(&[Assignment::RoundRobin, Assignment::Client]),
            10 => pool.is_gone = at > 0 && !pool.is_gone,
            11 => {
                let at = random.range(0..next.listeners.len());
                next.listeners[at].is_gone = at > 0 && !next.listeners[at].is_gone;
            }
            _ => {
                let holds = random.one_in(2);
                let max_input_buffer = next.limits.max_input_buffer;
                let replace_timeout = milliseconds(random, 100..20_000);
                next.limits = Limits { max_input_buffer, replace_timeout, ..limits(random, holds) };
                next.routing.id_collision = routing(random).id_collision;
            }
        }
    }
    let is_there = |pool: &usize| !next.pools[*pool].is_gone;
    for (listener, first) in next.listeners.iter_mut().zip(&first.listeners) {
        let offered: Option<Vec<usize>> =
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
