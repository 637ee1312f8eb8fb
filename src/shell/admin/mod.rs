//! The admin listener: readiness, metrics, status and commands over HTTP, in the same loop and through the same backend
//! as everything else, on connections that `http` reads and writes as it does those of MCP listeners.
//!
//! Its connections are not clients of the core. They use none of its slots and memory, have a limit of their own, and
//! never block the loop: a request is limited in size and time, an answer is produced in pieces, one per turn of the
//! loop, and dropped when its reader leaves.
//!
//! Reading order: `serve.rs` handles requests, `request.rs` and `response.rs` are requests and answers, `access.rs`
//! decides about access, `route.rs` maps paths, `audit.rs` notes who has acted. Answers are made from a view
//! (`view.rs`): `health.rs`, `metrics.rs` and `status.rs` with `tables.rs`, whose figures are declared in `figures.rs`,
//! and the status page, `page.html`.

mod access;
mod audit;
mod figures;
mod health;
mod history;
mod listener_names;
mod metrics;
mod page;
pub(super) mod recent_reports;
mod request;
mod response;
mod route;
mod samples;
pub(super) mod serve;
mod status;
pub(crate) mod tables;
mod view;
pub(super) mod wall_clock;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::listeners::{Acceptor, Throttle};
use crate::access::Secret;
use crate::bus::histogram::Histogram;
use crate::bus::port::{ListenerId, Moment};
use crate::config::Config;
use crate::small_file;
use audit::Who;
use history::History;
use listener_names::ListenerNames;
use request::AdminRequest;
use response::Rest;

/// The state of an operator's connection.
struct Operator {
    who: Who,
    /// The request whose body is incomplete.
    request: Option<AdminRequest>,
    rest: Option<Rest>,
    /// When it was accepted, or its last answer began.
    since: Moment,
}

/// See the module documentation. Empty without an admin listener.
#[derive(Default)]
pub(super) struct Admin {
    pub is_on: bool,
    /// Every user of this machine may connect.
    is_abstract: bool,
    token: Option<Secret>,
    token_file: PathBuf,
    /// By the slots of their connections. Those of closed connections go with the next turn.
    operators: HashMap<usize, Operator>,
    /// Connections whose answers have pieces left to produce.
    pub busy: VecDeque<usize>,
    places: Vec<ListenerNames>,
    /// The indexes of the listeners in the order of the configuration.
    order: Vec<usize>,
    closed: bool,
    /// Limits the message about used-up connections.
    throttle: Throttle,
    history: History,
    /// How long each turn of the loop was busy, and when the current one began.
    pub turns: Histogram,
    pub turned_at: Option<Duration>,
}

impl Admin {
    /// Serves those of these sockets that are for operators, as `config` says.
    pub(super) fn new(config: &Config, acceptors: &[Acceptor]) -> Self {
        let mut admin = Self::default();
        admin.configure(config, acceptors.iter());
        admin
    }

    /// Applies a new configuration.
    pub(super) fn configure<'a>(&mut self, config: &Config, acceptors: impl Iterator<Item = &'a Acceptor> + Clone) {
        let place = |(at, listener): (usize, &crate::config::Listener)| {
            let ours = acceptors.clone().filter(|acceptor| acceptor.listener() == Some(ListenerId::at(at)));
            let path = listener.web.as_ref().map(|web| web.path.clone());
            ListenerNames {
                asked: listener.address(),
                bound: ours.map(|acceptor| acceptor.address.clone()).collect(),
                path,
            }
        };
        let admin = config.admin.as_ref();
        self.is_on = acceptors.clone().any(|acceptor| acceptor.for_admin);
        self.is_abstract = admin.is_some_and(|admin| admin.listen.is_abstract());
        self.token = admin.and_then(|admin| admin.token.clone());
        self.token_file = admin.and_then(|admin| admin.token_file.clone()).unwrap_or_default();
        self.order = config.order();
        self.places = config.listeners.iter().enumerate().map(place).collect();
    }

    /// Takes the reread token file.
    pub(super) fn take_token(&mut self, content: io::Result<Vec<u8>>) {
        let what = format!("the token file {} of the admin listener", self.token_file.display());
        let parse = |bytes: &[u8]| Secret::new(bytes).map(Some).map_err(|why| format!("it {why}"));
        small_file::take(&mut self.token, &what, content, parse);
    }

    /// The state of an operator's connection.
    fn operator(&mut self, slot: usize) -> &mut Operator {
        self.operators.get_mut(&slot).expect("each connection of theirs has one")
    }
}
