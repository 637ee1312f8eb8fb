//! The scenario of a world: drawn before anything happens in it.

use crate::bus::port::{Moment, Names};
use crate::bus::settings::{Assignment, Settings};
use crate::faults::{self, Action};
use crate::{Draws, Random};

/// Clients with verified names, as the model calls them; [`Scenario::shown`] is what the bus sees of them.
const NAMES: [&str; 5] = ["alice", "bob", "carol", "dave", "eve"];
/// In one step of this many the configuration is changed, or workers are to be replaced.
const RELOADS: usize = 40;

/// The properties of a world.
pub(super) struct Scenario {
    /// None if bytes choose what happens: the bytes can be shown instead.
    seed: Option<u64>,
    steps: usize,
    /// The initial configuration and time.
    settings: Settings,
    start: Moment,
    /// The configuration is changed, and workers are replaced.
    reloads: bool,
    weights: Vec<(Action, usize)>,
    reuses_ids: bool,
    /// Maximum number of clients connected at once.
    crowd: usize,
    /// The names that clients may show.
    names: &'static [&'static str],
}

impl Scenario {
    pub(super) fn new(seed: Option<u64>, draws: &mut Draws<'_>, steps: usize) -> Self {
        let mut settings = faults::settings(draws);
        let reuses_ids = draws.of("reuses_ids").one_in(6);
        if reuses_ids {
            // With one worker it is clear which of two equal requests the bus means.
            settings.pools.truncate(1);
            settings.listeners.truncate(1);
            settings.listeners[0].pools = None;
            let pool = &mut settings.pools[0];
            (pool.instances, pool.max_instances, pool.personal) = (1, 1, false);
            (pool.request_timeout, pool.idle_timeout) = (None, None);
        }
        let mut weights = faults::weights(draws);
        if draws.of("Shutdown").one_in(3) {
            weights.push((Action::Shutdown, 1));
        }
        if draws.of("Flood").one_in(10) {
            weights.push((Action::Flood, 3));
        }
        let names = &NAMES[..*draws.of("names").pick(&[0, 2, NAMES.len()])];
        if !names.is_empty() {
            // Many connect and leave, since the owner of a session matters when others ask for it.
            weights.extend([(Action::Connect, 10), (Action::HalfClose, 2), (Action::Spawn, 20)]);
            weights.extend([(Action::ClientWrites, 60), (Action::WorkerWrites, 60)]);
            weights.extend([(Action::Arrive, 100), (Action::Leave, 60)]);
            if !reuses_ids && draws.of("shares names alone").one_in(2) {
                share_names_alone(&mut settings);
            }
        }
        // Of two requests with the same id the bus may mean the one that an older worker has.
        let reloads = !reuses_ids && draws.of("reloads").one_in(2);
        let start = Moment(draws.of("start").range(0..1_000_000) as u64);
        let crowd = if draws.of("crowd").one_in(8) { 40 } else { 12 };
        Self { seed, steps, settings, start, reloads, weights, reuses_ids, crowd, names }
    }

    /// The configuration at the start.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn start(&self) -> Moment {
        self.start
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// The command to repeat it, if it follows from a seed.
    pub(super) fn command(&self) -> Option<String> {
        let (seed, steps) = (self.seed?, self.steps);
        Some(format!("STDIO_BUS_SIM_SEED={seed} STDIO_BUS_SIM_STEPS={steps} cargo test -p stdio-bus-sim every_line"))
    }

    /// Whether bytes choose what happens, and it ends with them.
    pub(super) fn is_chosen(&self) -> bool {
        self.seed.is_none()
    }

    /// Whether the bus keeps records of requests.
    pub(super) fn records_requests(&self) -> bool {
        self.seed.is_some_and(|seed| seed % 2 == 0)
    }

    /// The draws of one step do not depend on the number of draws in earlier steps: so two versions of the bus that
    /// differ in a detail stay comparable. None if bytes choose.
    pub(super) fn random_of(&self, step: usize) -> Option<Random> {
        self.seed.map(|seed| Random::new(seed ^ ((step as u64 + 1) << 40)))
    }

    pub(super) fn any_action(&self, random: &mut Random) -> Action {
        let total: usize = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = random.range(0..total);
        for (candidate, weight) in &self.weights {
            if at < *weight {
                return *candidate;
            }
            at -= weight;
        }
        Action::Wait
    }

    /// Whether the configuration is changed in this step, or workers are replaced.
    pub(super) fn reloads_now(&self, random: &mut Random) -> bool {
        self.reloads && random.one_in(RELOADS)
    }

    /// Clients reuse an id before it is answered.
    pub(super) fn reuses_ids(&self) -> bool {
        self.reuses_ids
    }

    /// Whether one more client may connect beside this many.
    pub(super) fn has_room_beside(&self, clients: usize) -> bool {
        clients <= self.crowd
    }

    /// Whether the owner of a session matters.
    pub(super) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// The owner of the token that a client shows.
    /// What a client of this name shows: a token, or that a proxy calls it so; two have the same text.
    pub(super) fn shown(name: &'static str) -> Names {
        match name {
            "bob" => Names { user: Some("alice".into()), ..Names::default() },
            token => Names { token: Some(token.into()), ..Names::default() },
        }
    }

    pub(super) fn any_name(&self, draws: &mut Draws<'_>) -> Option<&'static str> {
        (self.has_names() && !draws.of("has no token").one_in(4)).then(|| *draws.of("name").pick(self.names))
    }
}

/// Each client has a worker of its own, and they share only names.
fn share_names_alone(settings: &mut Settings) {
    settings.pools.truncate(1);
    settings.listeners.truncate(1);
    (settings.listeners[0].pools, settings.listeners[0].stdio) = (None, false);
    let pool = &mut settings.pools[0];
    (pool.max_instances, pool.assignment) = (8, Assignment::Dedicated);
    pool.instances = if pool.personal { 0 } else { 4 };
    pool.deny_methods.clear();
}
