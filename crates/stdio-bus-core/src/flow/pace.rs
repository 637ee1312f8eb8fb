//! A client with many unanswered requests is read more slowly while there are others: its lines share the pipes with
//! theirs, and it would fill the table of pending requests, getting errors for requests that its worker could well
//! answer. It never waits for answers alone, because a worker may need its next line to give them: after [`PAUSE`] it
//! gets one turn, however many are unanswered.

use core::time::Duration;

use super::gate::Hold;
use crate::Bus;
use crate::peer::{ClientKey, Moment};

/// How long a client with many unanswered requests waits at most for its next turn.
const PAUSE: Duration = Duration::from_millis(1);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// It waits until then.
    until: Option<Moment>,
    /// It has waited, and its next lines are taken.
    has_turn: bool,
}

impl Pace {
    pub(crate) const NONE: Self = Self { until: None, has_turn: false };

    /// Until when it waits.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.until
    }

    /// Its next lines arrive: returns whether they are its turn, which ends with them.
    pub(crate) fn take_turn(&mut self) -> bool {
        core::mem::take(&mut self.has_turn)
    }
}

impl Bus {
    /// Makes a client that is far ahead wait.
    #[cold]
    pub(crate) fn yield_to_others(&mut self, key: ClientKey) {
        let until = self.time.now().after(PAUSE);
        let Some(client) = self.endpoint(key.into()) else { return };
        client.seldom.pace.until = Some(until);
        self.wake_at(key.into(), until);
        self.close_gate(key.into(), Hold::Pace);
    }

    /// A client has one unanswered request less: it is read again once it has few.
    pub(crate) fn resume_if_caught_up(&mut self, key: ClientKey) {
        let few = self.settings.limits.requests_ahead.div_ceil(2);
        let Some(client) = self.endpoint(key.into()) else { return };
        if client.gate.has(Hold::Pace) && client.outstanding.len() < few {
            client.seldom.pace = Pace::NONE;
            self.open_gate(key.into(), Hold::Pace);
        }
    }

    /// Gives a client that has waited long enough its turn.
    pub(crate) fn tick_pace(&mut self, key: ClientKey) {
        let now = self.time.now();
        let Some(client) = self.endpoint(key.into()) else { return };
        if client.seldom.pace.until.is_some_and(|until| until <= now) {
            client.seldom.pace = Pace { until: None, has_turn: true };
            self.open_gate(key.into(), Hold::Pace);
        }
    }

    /// Panics if a client waits for a turn that never comes.
    pub(crate) fn check_pace(&self) {
        for (key, client) in self.all_clients() {
            assert_eq!(client.end.gate.has(Hold::Pace), client.end.seldom.pace.until.is_some(), "{key:?}");
        }
    }
}
