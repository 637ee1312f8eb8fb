//! Clients that sit on their slots: those that never send a line, those that do nothing any more, and who has to go
//! when all slots are taken.

use alloc::format;
use core::time::Duration;

use super::Bus;
use super::client::{Client, Phase};
use super::peer::{ClientKey, Moment, Peer};
use super::port::Close;
use super::report::Reason;

/// While all slots are taken, a client that has never sent a line may be sent away after so long.
const FIRST_LINE: Duration = Duration::from_millis(500);
/// And so long it may take over its first line, if it goes on with it.
const WHOLE_LINE: Duration = Duration::from_secs(10);
/// And one that has, of a source that holds more than half of the slots, when it has been idle for so long.
const IDLE: Duration = Duration::from_secs(10);

impl Client {
    /// When something was last heard of it, or taken by it.
    fn active_at(&self) -> Moment {
        self.opened.max(self.heard).max(self.end.progress_at)
    }

    fn has_spoken(&self) -> bool {
        self.end.spoke_at.is_some()
    }

    fn has_requests(&self) -> bool {
        !self.end.outstanding.is_empty() || self.end.unanswered.count > 0
    }

    /// Whether nobody would miss it but itself.
    fn does_nothing(&self) -> bool {
        let end = &self.end;
        self.phase == Phase::Open
            && !self.stdio
            && !self.has_requests()
            && end.sessions.is_empty()
            && self.end.gate.is_open()
    }
}

impl Bus {
    /// When a client has to be looked at for being idle, if its listener says so.
    pub(super) fn idle_deadline(&self, client: &Client) -> Option<Moment> {
        let listener = self.settings.listeners.get(client.listener)?;
        let first =
            listener.first_line_timeout.filter(|_| !client.has_spoken()).map(|after| client.opened.after(after));
        let idle = listener.idle_timeout.map(|after| client.active_at().after(after));
        [first, idle].into_iter().flatten().min().filter(|_| client.phase == Phase::Open)
    }

    /// Closes a client whose time to say something is up. Gives when to look at it again.
    pub(super) fn tick_idle(&mut self, key: ClientKey) -> Option<Moment> {
        let now = self.now;
        let client = self.clients.get(key)?;
        let due = self.idle_deadline(client)?;
        if due > now {
            return Some(due);
        }
        let listener = &self.settings.listeners[client.listener];
        let text = match (listener.first_line_timeout, listener.idle_timeout) {
            (Some(after), _) if !client.has_spoken() && client.opened.after(after) <= now => {
                // It may have said something that nobody has heard yet.
                if !client.end.gate.is_open() {
                    return Some(now.after(after / 8));
                }
                format!("it has sent no line for {} s (first_line_timeout_sec)", after.as_secs())
            }
            (_, Some(after)) => {
                let may_go = client.end.sessions.is_empty() || listener.idle_closes_sessions;
                if client.has_requests() || !may_go || !client.end.gate.is_open() {
                    return Some(now.after(after / 8));
                }
                format!("it has been idle for {} s (idle_timeout_sec)", after.as_secs())
            }
            (_, None) => return None,
        };
        self.report(Reason::ClientIdle, Some(Peer::Client(key)), || format!("a client is closed: {text}"));
        self.close_orderly(key, Reason::ClientIdle, &text);
        None
    }

    /// All slots are taken: sends away who does nothing, so that others can come in. One at a time, and who has never
    /// said anything first; of those who have, only such as come from where more than half of all come from.
    pub(super) fn make_room_at_the_door(&mut self) {
        let now = self.now;
        if !self.accept_paused || !self.clients.is_full() {
            return;
        }
        let mut next: Option<Moment> = None;
        let mut goes: Option<(bool, Moment, ClientKey)> = None;
        for (key, client) in self.clients.iter().filter(|(_, client)| client.does_nothing()) {
            let (since, due) = match client.has_spoken() {
                false if client.end.kept == 0 => (client.opened, client.opened.after(FIRST_LINE)),
                // Its first line may be long, and then it goes on; but not byte by byte for ever.
                false => {
                    let stands_still = client.active_at().after(FIRST_LINE);
                    (client.opened, stands_still.min(client.opened.after(WHOLE_LINE)))
                }
                true if self.sources.count(client.source_use) > self.clients.capacity() / 2 => {
                    (client.active_at(), client.active_at().after(IDLE))
                }
                true => continue,
            };
            if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            let candidate = (client.has_spoken(), since, key);
            if goes.is_none_or(|(spoken, at, _)| (candidate.0, candidate.1) < (spoken, at)) {
                goes = Some(candidate);
            }
        }
        match (goes, next) {
            (Some((spoken, since, key)), _) => {
                let slots = self.clients.capacity();
                let what = if spoken { "has been idle" } else { "has sent no line" };
                self.report(Reason::ClientIdle, Some(Peer::Client(key)), || {
                    let seconds = now.since(since).as_secs_f32();
                    format!("all {slots} slots are taken; a client that {what} for {seconds:.1} s makes room")
                });
                self.close_client(key, Close::Now, Reason::ClientIdle);
            }
            // Somebody may become idle before.
            (None, next) => self.wake_slots_at(next.unwrap_or(Moment::NEVER).min(now.after(FIRST_LINE))),
        }
    }
}
