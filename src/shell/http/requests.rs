//! Handles requests: finds their sender and client, and answers them.

use std::rc::Rc;

use super::Http;
use super::exchange::{KEEP_ALIVE, State};
use super::http_clients::{HttpClient, QueuedMessage, RequestContext, Restoring};
use super::protocols;
use super::service::Service;
use crate::access::{Caller, Refusal};
use crate::bus::port::{ClientKey, Input, Moment, Next, Peer, Reason};
use crate::bus::request_log::trace_id;
use crate::http1::{Error, Framing, Method, Request, Status};
use crate::io::Io;
use crate::mcp::asked::{Verb, is_discovery, is_metadata};
use crate::mcp::write::{self, Manner};
use crate::mcp::{Body, Fault, Kind, Message};
use crate::shell::access::Sender;
use crate::shell::connections::HttpSlot;
use crate::shell::outbox::{Posted, Storage, are_held};
use crate::shell::reactor::Reactor;
use crate::shell::receivers::CopySource;
use crate::shell::turn::Shell;

/// Maximum length of an id in a refusal: one of 128 bytes may be written with an escape for each of them.
const LONGEST_ID: usize = 1024;
/// How many bytes of a client's messages are passed to the core in a turn.
const SHARE: usize = 256 * 1024;

/// The refusal while memory is short.
pub(super) const SHORT: &str = "memory is short; try again later";
/// The refusal of whoever holds most of it.
const MOST_MEMORY: &str =
    "memory is short, and your source uses more than its share of it; send fewer requests in parallel";

/// The requests of clients, as a service.
pub(super) struct ClientRequests;

impl Service for ClientRequests {
    fn head<I: Io>(
        shell: &mut Shell<I>,
        now: Moment,
        slot: usize,
        head: &Request<'_>,
        begun: &[u8],
    ) -> Result<(), Fault> {
        let Reactor { connections, listeners, .. } = &shell.reactor;
        if listeners.takes_websockets(connections[HttpSlot(slot)].listener) && head.fields.has("upgrade", "websocket") {
            shell.reactor.visit(now, slot, None);
            if let Err(fault) = shell.upgrade(now, slot, head, begun) {
                shell.reactor.refuse_handshake(now, slot, &fault);
            }
            return Ok(());
        }
        if shell.answers_health(now, slot, head) { Ok(()) } else { shell.http_head(slot, head) }
    }

    fn body<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, data: &[u8]) -> Result<(), Fault> {
        shell.http_body(now, slot, data)
    }

    fn request<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.http_request(now, slot);
    }

    fn malformed(error: Error, longest: usize) -> Fault {
        match error.status {
            Status::ContentTooLarge => Fault::new(
                error.status,
                format!("the body is longer than limits.max_input_buffer, {longest} bytes: raise that"),
            ),
            _ => Fault::new(error.status, error.why),
        }
    }

    fn fail<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, fault: &Fault) {
        shell.reactor.refuse_http(now, slot, fault, None);
    }
}

impl<I: Io> Shell<I> {
    /// The head of a request is complete.
    fn http_head(&mut self, slot: usize, head: &Request<'_>) -> Result<(), Fault> {
        let listener = self.reactor.connections[HttpSlot(slot)].listener;
        let protocol = self.reactor.protocol(slot);
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        let policy = self.reactor.listeners.policy(listener).ok_or_else(Fault::no_session)?;
        let caller = Caller::of(head, None, policy.terms.access.identity.as_ref())?;
        let origin = connection.origin.clone();
        if caller.origin.is_some() {
            policy.admits_page(&origin, &caller)?;
        }
        connection.incoming.sender = Sender::on_page(caller.origin.map(Rc::from));
        if head.method == Method::Options && caller.origin.is_some() && head.body == Framing::Length(0) {
            let fields = protocols::fields(protocol);
            self.reactor.answer_http(self.reactor.clock.now(), slot, |out, manner| {
                write::preflight(out, &Manner { fields, ..manner.clone() });
            });
            return Ok(());
        }
        if is_discovery(head.path, &policy.terms.path) {
            connection.incoming.is_last |= head.body != Framing::Length(0);
            let terms = &policy.terms.access;
            let is_read = matches!(head.method, Method::Get | Method::Head);
            let metadata = terms.oauth.clone().filter(|_| is_read && is_metadata(head.path, &policy.terms.path));
            let why = terms.where_to_sign_in();
            let is_head = head.method == Method::Head;
            self.reactor.answer_http(self.reactor.clock.now(), slot, |out, manner| match metadata {
                Some(oauth) => {
                    let manner = Manner { is_head, ..manner.clone() };
                    write::json(out, Status::Ok, &manner, oauth.document().as_bytes());
                }
                None => write::no_authorization_server(out, manner, &why),
            });
            return Ok(());
        }
        let sender = policy.identify(origin, &caller)?;
        let origin = &sender.origin;
        self.bus.view().may_ask(listener, origin).map_err(Refusal::from)?;
        let asked = protocols::asked(protocol, head, &policy.terms.path)?;
        if asked.verb != Verb::Post && head.body != Framing::Length(0) {
            return Err(Fault::new(Status::BadRequest, "only POST has a body"));
        }
        // A worker keeps what its session has begun with. Only the body says whether a request begins one: `initialize` does so
        // also if it names another session.
        let may_begin = asked.verb == Verb::Post;
        let credentials = if may_begin { policy.credentials(&head.fields)? } else { None };
        let Reactor { http, clock, .. } = &mut self.reactor;
        let named = asked.session.as_deref().and_then(|id| http.clients.sessions.get(id)).copied();
        let named = named.and_then(|client| http.clients.get_mut(client));
        let session = named.filter(|member| member.listener == listener && member.is_of(&origin.names));
        let has_session = session.is_some();
        // Its session is not idle while a request uploads.
        let now = clock.now();
        let visited = session.map(|member| {
            member.since = now;
            member.client
        });
        self.reactor.visit(now, slot, visited);
        let source = origin.source();
        self.find_place(slot, source)?;
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        // The connections that a proxy keeps between the requests of its clients are its own.
        let is_brought = origin.place != connection.origin.place || origin.names.user.is_some();
        connection.source_between = if is_brought { connection.origin.source() } else { source };
        // Without a client at a removed listener, the next request has to go to another one.
        let is_stray =
            !has_session && connection.member.is_none() && self.bus.view().listener_readiness(listener).is_none();
        let incoming = &mut connection.incoming;
        incoming.is_last |= is_stray || self.bus.view().refuses_requests();
        (incoming.asked, incoming.sender) = (Some(asked), sender);
        incoming.sender.credentials = credentials;
        // W3C Trace Context, section 3.2: one that is invalid, or occurs twice, is as none.
        let parent = || head.fields.only("traceparent").ok().flatten().and_then(trace_id);
        incoming.trace = if self.bus.view().records_requests() { parent().map(Rc::from) } else { None };
        Ok(())
    }

    /// Why a body finds no room for `more` bytes: its source has more than its share of the memory for what is sent here,
    /// or there is none for anybody.
    fn has_no_memory(&self, slot: usize, more: usize) -> Fault {
        let Reactor { connections, http, .. } = &self.reactor;
        let waiting = http.clients.iter().map(|member| (member.source, member.waiting()));
        match connections.uploads_too_much(slot, more, http.memory.most, waiting) {
            true => Fault::too_many(Reason::ConnectionLimit, MOST_MEMORY),
            false => Fault::busy(SHORT),
        }
    }

    /// A piece of a body was received. What a request may not have by its head alone is not taken apart.
    fn http_body(&mut self, now: Moment, slot: usize, data: &[u8]) -> Result<(), Fault> {
        while self.reactor.http.memory.held + data.len() > self.reactor.http.memory.most {
            // The source that holds most gives way to the others.
            let Some(victim) = self.reactor.connections.heaviest_upload(slot, data.len()) else {
                return Err(self.has_no_memory(slot, data.len()));
            };
            self.fail_http(now, victim, &Fault::too_many(Reason::ConnectionLimit, MOST_MEMORY));
        }
        let mut upload = self.reactor.connections[HttpSlot(slot)].incoming.body.take().unwrap_or_default();
        let before = upload.weight();
        if upload.begins_batch(data)
            && let Err(fault) = self.may_batch(slot)
        {
            upload.refuse(fault);
        }
        let Reactor { connections, http, .. } = &mut self.reactor;
        upload.push(data, &mut http.lines);
        http.memory.held = http.memory.held - before + upload.weight();
        if upload.is_behind() {
            http.behind.push(slot);
        }
        connections[HttpSlot(slot)].incoming.body = Some(upload);
        Ok(())
    }

    /// A request is complete.
    fn http_request(&mut self, now: Moment, slot: usize) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let incoming = &mut connections[HttpSlot(slot)].incoming;
        // It was answered by its head alone.
        let Some(asked) = &incoming.asked else { return };
        let result = match asked.verb {
            verb @ (Verb::Get | Verb::Delete) => self.ask_by_protocol(now, slot, verb),
            Verb::Post => {
                http.memory.held -= incoming.weight();
                let mut upload = incoming.body.take().unwrap_or_default();
                upload.end(&mut http.lines);
                if upload.is_behind() {
                    http.memory.held += upload.weight();
                    incoming.body = Some(upload);
                    return http.behind.push(slot);
                }
                match upload.finish(&mut http.lines) {
                    Ok(body) => return self.http_post(now, slot, body),
                    Err(fault) => self.may_post(slot).and(Err(fault)),
                }
            }
        };
        if let Err(fault) = result {
            self.reactor.refuse_http(now, slot, &fault, None);
        }
    }

    /// Whether a request may have a batch, by its head. Most may not, so that is checked before one is taken apart.
    fn may_batch(&mut self, slot: usize) -> Result<(), Fault> {
        self.still_admits(slot)?;
        self.may_batch_by_protocol(slot)
    }

    /// Whether a request may have any message, by its head.
    fn may_post(&mut self, slot: usize) -> Result<(), Fault> {
        self.still_admits(slot)?;
        self.may_post_by_protocol(slot)
    }

    /// Handles a POST.
    fn http_post(&mut self, now: Moment, slot: usize, body: Body) {
        // The id of a response is the worker's: clients would take an error with it for an answer to their own request.
        let id = match &body {
            Body::One(message) if message.kind() == Kind::Request => message.id().map(<[u8]>::to_vec),
            _ => None,
        };
        // One that is too long to be taken is not repeated.
        let id = id.filter(|id| id.len() <= LONGEST_ID);
        let result = self.still_admits(slot).and_then(|()| self.is_taken(now, slot, &body));
        if let Err(fault) = result.and_then(|()| self.post_by_protocol(now, slot, body)) {
            self.reactor.refuse_http(now, slot, &fault, id.as_deref());
        }
    }

    /// Whether requests are taken, or the daemon shuts down. A client that waits for an answer has the core refuse what it
    /// asks beside that, and a session of MCP that waits for none has no further use.
    fn is_taken(&mut self, now: Moment, slot: usize, body: &Body) -> Result<(), Fault> {
        let asks = match body {
            Body::One(message) => message.kind() == Kind::Request,
            Body::Batch(messages) => messages.iter().any(|message| message.kind() == Kind::Request),
        };
        if !asks || !self.bus.view().refuses_requests() {
            return Ok(());
        }
        let asked = self.reactor.connections[HttpSlot(slot)].incoming.asked.as_ref();
        let Some(id) = asked.and_then(|asked| asked.session.as_deref()) else { return Err(Fault::shutting_down()) };
        let Ok(member) = self.http_client_named(slot, id, |_| Fault::no_session()) else { return Ok(()) };
        if !member.is_session() || member.kind.kept().uses().1 {
            return Ok(());
        }
        let client = member.client;
        let fault = self.reactor.shuts_session_down(id);
        self.reactor.dispatch(now, Input::EndClient { client, why: Reason::ShuttingDown });
        Err(fault)
    }

    /// Checks the token of a request again, now that its body has come, or that the exchange continues.
    pub(super) fn still_admits(&self, slot: usize) -> Result<(), Fault> {
        let connection = &self.reactor.connections[HttpSlot(slot)];
        let policy = self.reactor.listeners.policy(connection.listener).ok_or_else(Fault::no_session)?;
        Ok(policy.still_admits(&connection.incoming.sender)?)
    }

    /// Does the work for clients besides completions.
    pub(in crate::shell) fn work_for_http(&mut self, now: Moment) {
        for _ in 0..self.reactor.http.clients.resumed.len() {
            if let Some(client) = self.reactor.http.clients.resumed.pop_front() {
                if let Some(member) = self.reactor.http.clients.get_mut(client) {
                    member.is_resumed = false;
                }
                self.present_http_client(now, client);
            }
        }
        for slot in std::mem::take(&mut self.reactor.http.behind) {
            self.read_body_on(now, slot);
        }
        self.work_by_protocols(now);
    }

    /// The client of this id, if it belongs to the sender of a request.
    ///
    /// # Errors
    /// There is none for the sender: `unknown` makes the refusal, by whether another node has given the id out.
    pub(super) fn http_client_named(
        &self,
        slot: usize,
        id: &str,
        unknown: impl Fn(bool) -> Fault,
    ) -> Result<&HttpClient, Fault> {
        let Reactor { connections, http, listeners, .. } = &self.reactor;
        let connection = &connections[HttpSlot(slot)];
        let Some(member) = http.clients.named(id) else {
            let policy = listeners.policy(connection.listener);
            return Err(unknown(policy.is_some_and(|policy| policy.is_of_another_node(id))));
        };
        let names = &connection.incoming.sender.origin.names;
        let is_its = |at: &&HttpClient| !at.is_closing && at.listener == connection.listener && at.is_of(names);
        Some(member).filter(is_its).ok_or_else(|| unknown(false))
    }

    /// Waits for an answer from now on.
    pub(super) fn await_answer(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        (connection.state, connection.since) = (State::Waiting, now);
        self.reactor.set_deadline(slot, now.after(KEEP_ALIVE));
    }

    /// Passes a connection's message to the core, or queues it until that accepts it. `is_awaited` says that the
    /// connection waits only for that.
    pub(super) fn hand_over(
        &mut self,
        now: Moment,
        slot: usize,
        client: ClientKey,
        message: Message,
        is_awaited: bool,
    ) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &connections[HttpSlot(slot)];
        let waiter = is_awaited.then_some((slot, connection.serial));
        http.queue_message(client, message, connection.incoming.brought(), waiter);
        self.present_queued(now, client);
    }

    /// Passes queued messages of a client to the core, unless it is to be resumed for that.
    pub(super) fn present_queued(&mut self, now: Moment, client: ClientKey) {
        let http = &self.reactor.http;
        if http.clients.get(client).is_some_and(|member| !member.is_resumed) {
            self.present_http_client(now, client);
        }
    }

    /// Passes queued messages of a client to the core, as far as it accepts them, and a share of them at most: a long
    /// line is offered piece by piece, as a socket would bring it, and others have their turns between two pieces.
    pub(in crate::shell) fn present_http_client(&mut self, now: Moment, client: ClientKey) {
        let mut left = SHARE;
        loop {
            let http = &mut self.reactor.http;
            let is_read = |member: &&mut HttpClient| !member.is_paused && !member.is_flushing;
            let Some(member) = http.clients.get_mut(client).filter(is_read) else { return };
            let is_closing = member.is_closing;
            let Some(mut waiting) = member.next_waiting() else { return };
            if left == 0 {
                member.inbox.push_front(waiting);
                return http.clients.resume(client);
            }
            let part = waiting.offer(&mut left);
            let QueuedMessage { message, offered, taken, brought: RequestContext { trace, groups }, .. } = &mut waiting;
            let window = message.part(part);
            trace.iter().for_each(|id| self.bus.note_trace(id));
            self.bus.note_groups(client, groups.as_ref());
            let block = http.storage_of(message).map(|(storage, start)| (storage, start + *taken));
            http.refuses_requests = self.bus.view().refuses_requests();
            let (received, effects) = self.bus.receive(now, Peer::Client(client), window);
            self.reactor.carry_out(effects, Some(&CopySource { from: Peer::Client(client), window, block }));
            self.reactor.http.refuses_requests = false;
            trace.iter().for_each(|_| self.bus.note_trace(b""));
            *taken += received.consumed;
            let (is_taken, has_more) = (*taken == message.length(), *offered < message.length());
            let http = &mut self.reactor.http;
            if !is_taken && let Some(member) = http.clients.get_mut(client) {
                member.inbox.push_front(waiting);
                match received.next {
                    Next::Read if has_more => continue,
                    Next::Again => return http.clients.resume(client),
                    Next::Read | Next::Wait => return,
                }
            }
            http.memory.held -= waiting.message.weight();
            if let Some(member) = http.clients.get_mut(client).filter(|member| member.restoring == Restoring::Queued) {
                member.restoring = Restoring::Asked;
            }
            let Some((connection, serial)) = waiting.waiter else { continue };
            // A request that is refused has its answer elsewhere.
            let is_dropped = waiting.message.kind() != Kind::Request;
            match self.drops_messages(client, is_closing).filter(|_| is_dropped) {
                Some(fault) => self.reactor.on_message_dropped(now, connection, serial, &fault),
                None => self.reactor.on_message_accepted(now, connection, serial),
            }
        }
    }

    /// Why the core passes on nothing of a client, if that is so; `is_closing` if it has begun to close it.
    fn drops_messages(&self, client: ClientKey, is_closing: bool) -> Option<Fault> {
        let view = self.bus.view();
        let session = self.reactor.http.clients.get(client).filter(|member| member.is_session());
        (is_closing || view.refuses_everything()).then(|| match view.refuses_requests() {
            true => match session.and_then(|member| member.kind.kept().id()) {
                Some(id) => self.reactor.shuts_session_down(id),
                None => Fault::shutting_down(),
            },
            false if session.is_some_and(HttpClient::is_restoring) => Fault::session_waits(),
            false => Fault::no_session(),
        })
    }
}

impl<I: Io> Reactor<I> {
    /// Why a request of a session of MCP is refused while the daemon shuts down: the session ends with it, or continues at
    /// the next one.
    pub(super) fn shuts_session_down(&self, id: &str) -> Fault {
        if self.persistence.has(id) { Fault::shutting_down() } else { Fault::session_shuts_down() }
    }
}

impl Http {
    /// Queues a message for the core.
    pub(super) fn queue_message(
        &mut self,
        client: ClientKey,
        message: Message,
        brought: RequestContext,
        waiter: Option<(usize, u64)>,
    ) {
        let Some(at) = self.clients.get_mut(client) else { return };
        self.memory.held += message.weight();
        at.inbox.push_back(QueuedMessage { message, waiter, brought, offered: 0, taken: 0 });
    }

    /// Where a long message lies, so that it needs not be copied.
    fn storage_of(&self, message: &Message) -> Option<(Storage, usize)> {
        let (bytes, start) = message.storage();
        are_held(message.length(), bytes.capacity()).then(|| (self.hold(bytes), start))
    }

    /// Memory of a line that is sent from there, and counted until then.
    pub(in crate::shell) fn hold(&self, bytes: Rc<Vec<u8>>) -> Storage {
        Storage::Posted(Rc::new(Posted::new(bytes, &self.memory.posted)))
    }
}
