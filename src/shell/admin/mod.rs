//! The admin listener: readiness, metrics, status and commands over HTTP, from the same loop and through the same
//! backend as everything else.
//!
//! Its connections are no clients of the core. They take none of its slots and none of its memory, have a bound of
//! their own, and hold nothing up: a request has a limit in bytes and in time, an answer is made piece by piece, one
//! piece in a turn of the loop, and is dropped when its reader is.
//!
//! Reading order: `serve.rs` moves bytes, `connection.rs` is what it knows of each connection, `request.rs` and
//! `response.rs` are what is asked and answered, `access.rs` says who may ask, `route.rs` what each path means. What is answered is made from
//! a view (`view.rs`): `health.rs`, `metrics.rs` and `status.rs` with `tables.rs`,
//! whose figures are declared in `figures.rs`, and the page for people, `page.html`.

mod access;
mod connection;
mod figures;
mod health;
mod history;
mod metrics;
mod page;
mod place;
pub(super) mod recent;
mod request;
mod response;
mod route;
mod samples;
mod serve;
mod status;
pub(crate) mod tables;
mod view;
mod wall;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use slab::Slab;

use super::listeners::{Acceptor, Throttle};
use crate::bus::histogram::Histogram;
use crate::config::{Config, Listen, Token};
use connection::Connection;
use history::History;
use place::Place;
use wall::Wall;

/// Connections at once. The one that has waited longest for its next request makes room for another one.
pub(super) const MOST_CONNECTIONS: usize = 64;
/// Sockets that one name may lead to.
pub(super) const MOST_SOCKETS: usize = 8;

/// See the module documentation. Without an admin listener there is nothing in it.
pub(super) struct Admin {
    pub is_on: bool,
    /// Every user of this machine may connect.
    is_abstract: bool,
    token: Option<Token>,
    token_file: PathBuf,
    connections: Slab<Connection>,
    /// Those whose answer goes on at once, one piece after the other.
    pub busy: VecDeque<usize>,
    places: Vec<Place>,
    closed: bool,
    /// How often it is said that connections are in use.
    throttle: Throttle,
    history: History,
    /// How long each turn of the loop has worked, and since when this one does.
    pub turns: Histogram,
    pub turned_at: Option<Duration>,
    started_at: Wall,
}

impl Admin {
    /// What is served on those of these sockets that are for operators; `config` says the rest.
    pub(super) fn new(config: &Config, acceptors: &[Acceptor]) -> Self {
        let mut admin = Self {
            is_on: false,
            is_abstract: false,
            token: None,
            token_file: PathBuf::new(),
            connections: Slab::new(),
            busy: VecDeque::new(),
            places: Vec::new(),
            closed: false,
            throttle: Throttle::default(),
            history: History::default(),
            turns: Histogram::default(),
            turned_at: None,
            started_at: Wall::now(),
        };
        admin.configure(config, acceptors.iter());
        admin
    }

    /// The configuration is this one from now on.
    pub(super) fn configure<'a>(&mut self, config: &Config, acceptors: impl Iterator<Item = &'a Acceptor> + Clone) {
        let place = |(at, listener): (usize, &crate::config::Listener)| {
            let ours = acceptors.clone().filter(|acceptor| acceptor.listener() == Some(at));
            let path = listener.web.as_ref().map(|web| web.path.clone());
            Place { asked: listener.address(), bound: ours.map(|acceptor| acceptor.address.clone()).collect(), path }
        };
        let admin = config.admin.as_ref();
        let is_abstract =
            |listen: &Listen| matches!(listen, Listen::Unix { path, .. } if crate::address::is_abstract(path));
        self.is_on = acceptors.clone().any(|acceptor| acceptor.for_admin);
        self.is_abstract = admin.is_some_and(|admin| is_abstract(&admin.listen));
        self.token = admin.and_then(|admin| admin.token.clone());
        self.token_file = admin.and_then(|admin| admin.token_file.clone()).unwrap_or_default();
        self.places = config.listeners.iter().enumerate().map(place).collect();
    }

    /// The file with its token was read again. What is wrong with it is told, and the last one stays good.
    pub(super) fn take_token(&mut self, content: io::Result<Vec<u8>>) {
        let path = self.token_file.display();
        let content = content.map_err(|error| error.to_string());
        match content.and_then(|bytes| Token::new(&bytes).map_err(|why| format!("it {why}"))) {
            Ok(token) if self.token.as_ref() == Some(&token) => {}
            Ok(token) => {
                tracing::info!("the token file {path} of the admin listener was read again");
                self.token = Some(token);
            }
            Err(why) => tracing::error!(
                "the token file {path} of the admin listener cannot be used, and the last token stays valid: {why}"
            ),
        }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }
}
