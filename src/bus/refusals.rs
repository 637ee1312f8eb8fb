//! What is said of a line that goes nowhere: an error to who asked, and a report with who, which id, and why
//! (spec 4.3, 5.3, 7.3.2; decisions 8, 9).

use super::client::Phase;
use super::message::{Refusal, echoed_id, echoed_session};
use super::peer::{ClientKey, Moment, Peer, WorkerKey};
use super::port::Close;
use super::report::{Reason, Report};
use super::settings::MAX_REQUEST_ID_LEN;
use super::{Bus, Flow, reply};
use crate::scan::{Fault, Line, Window};

impl Bus {
    /// Tells that a line of `from` was dropped, with its id.
    pub(super) fn report_line(
        &mut self,
        now: Moment,
        reason: Reason,
        from: Peer,
        window: Window<'_>,
        line: &Line,
        text: &str,
    ) {
        let (clients, workers) = (&self.clients, &self.workers);
        let report = self.reporter.report(now, reason, || {
            let mut report = Report::new(reason, text);
            match from {
                Peer::Client(client) => report.client = clients.get(client).map(|client| client.number),
                Peer::Worker(worker) => report.worker = workers.get(worker).map(|w| (w.pool, w.number)),
            }
            if line.id.is_some() {
                let token = window.get(line.id);
                report.id = Some(token[..token.len().min(2 * MAX_REQUEST_ID_LEN)].escape_ascii().to_string());
            }
            report
        });
        self.tell(report);
    }

    /// A client's message goes nowhere: it is told so if it asked, and the loss is reported.
    pub(super) fn refuse(
        &mut self,
        now: Moment,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
        refusal: Refusal,
    ) -> Flow {
        let Refusal(reason, text) = refusal;
        let peer = Peer::Client(client);
        let answer = line.id.is_some() && self.settings.routing.error_replies;
        // One who asks without reading the answers is not listened to until it reads.
        if answer && self.block_on_itself(peer) {
            return Flow::Blocked;
        }
        self.report_line(now, reason, peer, window, line, &text);
        if answer {
            let session = echoed_session(window, line);
            self.send_error(now, client, echoed_id(window, line), session.as_deref(), reason, &text);
        }
        Flow::Next
    }

    /// Says an error to a client that still listens. `id` is a JSON token.
    pub(super) fn send_error(
        &mut self,
        now: Moment,
        client: ClientKey,
        id: &[u8],
        session: Option<&[u8]>,
        reason: Reason,
        text: &str,
    ) {
        let open = self.clients.get(client).is_some_and(|client| client.phase <= Phase::HalfClosed);
        if !self.settings.routing.error_replies || !open {
            return;
        }
        let bytes = reply::error(id, session, reply::code(reason), text, reason.name());
        self.stats.error_replies += 1;
        self.send_to_client(now, client, &bytes);
    }

    /// A worker's message goes nowhere. A request is answered, so that the worker does not wait for ever.
    pub(super) fn refuse_worker(
        &mut self,
        now: Moment,
        worker: WorkerKey,
        window: Window<'_>,
        line: &Line,
        refusal: Refusal,
    ) -> Flow {
        let Refusal(reason, text) = refusal;
        let to = Peer::Worker(worker);
        let answer = line.id.is_some() && self.settings.routing.error_replies && self.worker_takes_messages(worker);
        if answer && self.block_on_itself(to) {
            return Flow::Blocked;
        }
        self.report_line(now, reason, to, window, line, &text);
        if answer {
            let bytes = reply::error(echoed_id(window, line), None, reply::code(reason), &text, reason.name());
            self.stats.error_replies += 1;
            self.send_to_worker(now, worker, &bytes);
        }
        Flow::Next
    }

    /// A line of `from` is no message (spec 4.3, 5.3).
    pub(super) fn malformed(
        &mut self,
        now: Moment,
        from: Peer,
        window: Window<'_>,
        line: usize,
        at: usize,
        fault: Fault,
    ) -> Flow {
        let what = match fault {
            Fault::Syntax => "not JSON",
            Fault::Utf8 => "not UTF-8",
            Fault::Depth => "nested too deeply",
            Fault::NotAnObject => "not a JSON object",
            Fault::DuplicateKey => "a routing key stands twice",
        };
        let text = match from {
            Peer::Client(_) => format!("{what}, at byte {} of the line", at - line),
            // What a worker prints by mistake is needed to find the mistake; what a client sends stays private.
            Peer::Worker(_) => {
                let rest = &window.data()[line..];
                let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len()).min(64);
                format!("{what}, at byte {} of the line, which begins \"{}\"", at - line, rest[..end].escape_ascii())
            }
        };
        self.malformed_text(now, from, &text)
    }

    pub(super) fn malformed_text(&mut self, now: Moment, from: Peer, text: &str) -> Flow {
        match from {
            Peer::Client(client) => self.close_with_error(now, client, Reason::ClientMalformed, text),
            Peer::Worker(worker) => self.stop_broken_worker(now, worker, Reason::WorkerMalformed, text),
        }
        Flow::Over
    }

    /// A line of `from` is longer than max_input_buffer (spec 7.3.2).
    pub(super) fn line_too_long(&mut self, now: Moment, from: Peer) -> Flow {
        let text = format!("a line is longer than max_input_buffer, {} bytes", self.settings.limits.max_input_buffer);
        match from {
            Peer::Client(client) => self.close_with_error(now, client, Reason::ClientLineTooLong, &text),
            Peer::Worker(worker) => self.stop_broken_worker(now, worker, Reason::WorkerLineTooLong, &text),
        }
        Flow::Over
    }

    /// Answers a client that cannot be understood, and closes it (decision 9).
    fn close_with_error(&mut self, now: Moment, client: ClientKey, reason: Reason, text: &str) {
        self.report(now, reason, Some(Peer::Client(client)), || format!("a client is closed: {text}"));
        if self.settings.routing.error_replies {
            let message = match reason {
                Reason::ClientMalformed => format!("Parse error: {text}"),
                _ => format!("Invalid Request: {text}"),
            };
            let bytes = reply::error(b"null", None, reply::code(reason), &message, reason.name());
            self.stats.error_replies += 1;
            self.send_to_client(now, client, &bytes);
        }
        self.close_client(now, client, Close::Flush);
    }
}
