//! How long workers are silent about requests, and signs of life (`idle_timeout`).

use std::time::Duration;

use super::{Model, Request, Signs};
use crate::bus::port::Moment;
use crate::line::{Kind, Line, Party};

/// Deadlines that are moved on are later by this at most.
const ROUND: Duration = Duration::from_millis(50);

impl Model {
    /// A worker is sent this request.
    pub(super) fn signs_of(&self, now: Moment, worker: usize, line: &Line) -> Option<Signs> {
        let limit = self.settings.pools[self.workers[worker].pool].idle_timeout.filter(|_| !line.listens())?;
        Some(Signs { limit, seen: now, perhaps: now })
    }

    /// A worker's message was passed on.
    pub(super) fn note_signs(&mut self, now: Moment, worker: usize, line: &Line) {
        let from = Party::Worker(worker);
        let is_its = |of: usize, name: &String| of == worker && Some(name) == line.way();
        let owned = self.sessions.iter().find(|at| is_its(at.worker, &at.name)).map(|at| at.serial);
        let session = owned.or(self.held.iter().find(|held| is_its(held.worker, &held.name)).map(|held| held.serial));
        let meant = self.request_meant_by(worker, line).filter(|_| line.kind == Kind::Request);
        let named = [self.referred_to(&self.to_workers, from, line), meant].map(|request| request.map(|it| it.line));
        for request in self.to_workers.iter_mut().filter(|request| request.answerer == from) {
            let is_named = named.contains(&Some(request.line));
            if is_named || session.is_some_and(|session| request.sessions.contains(&session)) {
                request.touch(now);
            }
        }
    }

    /// A worker's question has an end.
    pub(super) fn question_ends(&mut self, now: Moment, question: &Request) {
        if let Some(Party::Worker(worker)) = question.asker {
            self.workers[worker].health.perhaps(now);
        }
        let names: Vec<bool> = self.to_workers.iter().map(|request| self.names(question, request)).collect();
        let requests = self.to_workers.iter_mut().zip(names);
        for (request, is_named) in requests.filter(|(request, _)| Some(request.answerer) == question.asker) {
            let may_be_meant = is_named || request.asker == Some(question.answerer);
            if request.sessions.iter().any(|session| question.sessions.contains(session)) {
                request.touch(now);
            } else if let Some(signs) = request.signs.as_mut().filter(|_| may_be_meant) {
                // It may belong to this one.
                signs.perhaps = now;
            }
        }
    }

    /// A worker is read no more for now, or again.
    pub fn pauses(&mut self, now: Moment, worker: usize, is_paused: bool) {
        self.workers[worker].is_paused = is_paused;
        self.workers[worker].health.perhaps(now);
        for request in self.to_workers.iter_mut().filter(|request| request.answerer == Party::Worker(worker)) {
            request.signs.iter_mut().for_each(|signs| signs.perhaps = now);
        }
    }

    /// Whether the worker of a request has been silent about it for so long that it is given up.
    pub(super) fn is_silent(&self, request: &Request, now: Moment) -> bool {
        let (Some(signs), Party::Worker(worker)) = (&request.signs, request.answerer) else { return false };
        let Some(limit) = self.settings.pools[self.workers[worker].pool].idle_timeout else { return false };
        let is_asked = self
            .questions(worker)
            .any(|question| question.sessions.iter().any(|session| request.sessions.contains(session)));
        let at = &self.workers[worker];
        let is_there = |serial: &usize| {
            self.sessions.iter().any(|at| at.serial == *serial) || self.held.iter().any(|held| held.serial == *serial)
        };
        let is_over = signs.seen.after(limit) <= now || !request.sessions.iter().all(is_there);
        is_over && !is_asked && !(at.is_paused && at.takes)
    }

    /// Whether it has certainly been so for too long.
    pub(super) fn is_certainly_silent(&self, request: &Request, now: Moment) -> bool {
        let (Some(signs), Party::Worker(worker)) = (&request.signs, request.answerer) else { return false };
        let holds = self.settings.pools[self.workers[worker].pool].idle_timeout == Some(signs.limit);
        let is_asked = self.questions(worker).any(|question| {
            Some(question.answerer) == request.asker
                || self.names(question, request)
                || question.sessions.iter().any(|session| request.sessions.contains(session))
        });
        let at = &self.workers[worker];
        holds && !is_asked && !at.is_paused && signs.perhaps.after(signs.limit + ROUND) <= now
    }

    /// Whether a worker's question names this request of a client, perhaps of another one than that it asks.
    fn names(&self, question: &Request, request: &Request) -> bool {
        let Some(Party::Worker(worker)) = question.asker else { return false };
        self.request_meant_by(worker, &self.lines[question.line]).is_some_and(|meant| meant.line == request.line)
    }

    /// What clients have to answer to a worker.
    fn questions(&self, worker: usize) -> impl Iterator<Item = &Request> {
        self.to_clients.iter().filter(move |question| question.asker == Some(Party::Worker(worker)))
    }
}

impl Request {
    /// Its worker says something about it.
    fn touch(&mut self, now: Moment) {
        self.signs.iter_mut().for_each(|signs| (signs.seen, signs.perhaps) = (now, now));
    }
}
