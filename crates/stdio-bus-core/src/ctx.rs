//! What every part of the core may use: the current time, the settings, the effects and reports of a call, the timers,
//! the rows of the peers, and how far the shutdown is.
//!
//! It is the floor of the core: its methods call nothing above it. A table's method takes it as an argument.
//!
//! It has methods in this file, in that of its rows (`peers/client.rs`), in `time.rs` and in `flow/`, whose gates and turns
//! concern each of its rows and the effects at once. What another module does with it is a function of that module, so
//! that imports show who uses it; what is asked of clients or workers alone is a method of their tables.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;

use crate::deny_rules::Denials;
use crate::effects::EffectQueue;
use crate::eviction::Victim;
use crate::peer::{Moment, Peer};
use crate::peers::{Clients, Phase, Workers};
use crate::report::{Reason, Report};
use crate::settings::{MAX_CONNECTIONS, MAX_WORKERS, Settings};
use crate::shutdown::Shutdown;
use crate::table::Table;
use crate::time::Time;
use crate::timers::{Timer, Timers};
use crate::usage::Usage;

pub(crate) struct Ctx {
    pub(crate) time: Time,
    pub(crate) settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) workers: Workers,
    pub(crate) timers: Timers,
    pub(crate) out: EffectQueue,
    pub(crate) usage: Usage,
    pub(crate) denials: Denials,
    pub(crate) shutdown: Shutdown,
    /// Readiness and replacements must be checked after this call: a worker has started or ceased to run, or to be
    /// needed.
    pub(crate) workers_changed: bool,
    /// Sessions that give up their workers to others, to be closed at the end of this call.
    pub(crate) evictions: Vec<Victim>,
}

impl Ctx {
    /// Nobody is connected yet, and no worker runs.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            time: Time::default(),
            clients: Clients::new(settings.most_clients.min(MAX_CONNECTIONS)),
            workers: Table::new(MAX_WORKERS),
            timers: Timers::default(),
            out: EffectQueue::default(),
            usage: Usage::default(),
            denials: Denials::default(),
            shutdown: Shutdown::default(),
            workers_changed: true,
            evictions: Vec::new(),
            settings,
        }
    }

    /// Lines are lost with effects that are not carried out.
    pub(crate) fn begin_call(&mut self, now: Moment) {
        self.time.begin(now);
        debug_assert!(self.out.effects().is_empty(), "effects were left behind: {:?}", self.out.effects());
    }

    /// Checks a peer at this moment.
    pub(crate) fn wake_at(&mut self, peer: Peer, at: Moment) {
        if self.peer_end(peer).is_some() {
            self.timers.arm(peer.into(), at);
        }
    }

    /// Counts an event and reports it, within the rate limit.
    pub(crate) fn emit_report(&mut self, reason: Reason, report: impl FnOnce() -> Report) {
        let summary = self.out.report(self.time.now(), reason, report);
        self.timers.arm(Timer::Reports, summary);
    }

    /// Counts and reports an event of `peer`.
    pub(crate) fn report(&mut self, reason: Reason, peer: Option<Peer>, text: impl FnOnce() -> String) {
        self.report_request(reason, [peer, None], || (None, text()));
    }

    /// Counts and reports an event between these peers: a request's id, if it is about one, and a sentence.
    pub(crate) fn report_request(
        &mut self,
        reason: Reason,
        peers: [Option<Peer>; 2],
        describe: impl FnOnce() -> (Option<String>, String),
    ) {
        let mut report = Report::new(reason, "");
        for peer in peers.into_iter().flatten() {
            match peer {
                Peer::Client(client) => {
                    let client = self.clients.identity(client);
                    report.client = client.map(|client| client.number);
                    report.origin = client.map(|client| Rc::clone(&client.origin));
                }
                Peer::Worker(worker) => report.worker = self.workers.worker_name(worker),
            }
        }
        self.emit_report(reason, || {
            let (id, text) = describe();
            Report { id, text, ..report }
        });
    }

    /// Whether a peer still reads what it is sent.
    pub(crate) fn takes_messages(&self, peer: Peer) -> bool {
        match peer {
            Peer::Client(client) => self.clients.phase(client) == Some(Phase::Open),
            Peer::Worker(worker) => self.workers.worker_takes_messages(worker),
        }
    }
}
