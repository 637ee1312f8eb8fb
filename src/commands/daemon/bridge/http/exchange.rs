//! Sends one line as an HTTP request and handles its response; and reads the server's own stream.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::super::failure::{Ending, Failure};
use super::super::limits::{CONNECT_LIMIT, LAST_WORDS_LIMIT, OPENING_LIMIT, say};
use super::super::refusal::LinkRefusal;
use super::super::resend::is_refusal;
use super::connection::{AnswerHead, HttpConnection, Reply};
use super::events::Events;
use super::message::{self, MessageKind, OutgoingMessage};
use super::state::{ClientState, Inbound, Initialization};
use crate::bus::reply::Delivered;
use crate::http1::Method;
use crate::websocket::client::Refused;

/// Delay before a stream is reopened, unless the server has set one; it grows by half after each failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// How many failures in a row to resume a response are tolerated.
const MOST_TRIES: u32 = 5;

/// How long a daemon that was there may take to be back, and how often it is looked for.
const RENEW_LIMIT: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_millis(200);

/// The longest pause before a request is sent again, whatever `Retry-After` says.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// In how many sessions one message is sent at most: its server may lose each of them.
const MOST_SESSIONS: u32 = 5;

/// Maximum length of a refusal's body that is read.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// Why there is no answer.
enum Trouble {
    /// Connecting failed.
    Unreached(Failure),
    /// The connection broke, or the response is invalid.
    Broken(Failure, Delivered),
    /// The server refused.
    Refused(Refused),
    /// The daemon or the session has ended.
    Over(Ending),
    /// The daemon has answered with this error, which says that no worker got the request.
    Rejected(Vec<u8>),
    /// No worker got the request, for this reason, and it may be taken after this time: the daemon is away or shuts down, or
    /// has no room yet.
    Later(Box<Trouble>, Duration),
}

/// Sends a client's request, and answers it whatever happens. Signals `has_gone` when the server has it, as far as that
/// can be known here.
pub(super) async fn request(
    state: Rc<ClientState>,
    number: u64,
    message: OutgoingMessage,
    has_gone: oneshot::Sender<()>,
) {
    let mut trouble = attempt(&state, number, &message, has_gone).await.err();
    // A balancer brings it to another daemon, or this one is started again.
    let mut until = None;
    while let Some(Trouble::Later(why, pause)) = trouble {
        if !state.awaits(number) {
            trouble = None;
            break;
        }
        if Instant::now() >= *until.get_or_insert_with(|| state.troubled_since().max(message.since) + RENEW_LIMIT) {
            trouble = Some(*why);
            break;
        }
        state.set_held(number, true);
        sleep(pause).await;
        state.turn(number).await;
        trouble = attempt(&state, number, &message, oneshot::channel().0).await.err();
        if let Some(Trouble::Later(later, _)) = &mut trouble
            && matches!((&*why, &**later), (Trouble::Rejected(_), Trouble::Unreached(_)))
        {
            // What the daemon has said says more.
            *later = why;
        }
    }
    if message.initializes() {
        state.session.borrow_mut().is_beginning = false;
    }
    let Some(open) = state.close(number) else { return };
    if open.is_answered {
        return state.forget_trouble();
    }
    match (trouble, open.token) {
        // Its client does not wait for it, but for an `initialize`, which is not cancelled.
        (_, Some(token)) if open.is_cancelled && message.initializes() => state.send(Inbound::GivenUp(token)).await,
        (_, Some(_)) if open.is_cancelled => {}
        (Some(trouble), _) => report(&state, &message, trouble).await,
        (None, _) => {}
    }
}

/// Sends a request, and if it was not taken since its session or the daemon was not there any more, in a new session.
async fn attempt(
    state: &Rc<ClientState>,
    number: u64,
    message: &OutgoingMessage,
    mut has_gone: oneshot::Sender<()>,
) -> Result<(), Trouble> {
    let mut sessions = 1;
    loop {
        let renewals = state.renewals.get();
        let result = converse(state, number, message, has_gone).await;
        let is_lost = matches!(result, Err(Trouble::Over(_))) && message.modern.is_none();
        if !is_lost || !state.can_renew() || sessions == MOST_SESSIONS {
            break result;
        }
        if let Err(ending) = wait_for_new_session(state, number, renewals).await {
            break Err(Trouble::Over(ending));
        }
        sessions += 1;
        has_gone = oneshot::channel().0;
    }
    .map_err(|trouble| match trouble {
        Trouble::Unreached(failure) if failure.may_pass() => {
            Trouble::Later(Box::new(Trouble::Unreached(failure)), RENEW_EVERY)
        }
        trouble => trouble,
    })
}

/// Holds a request until a new session was begun for it, and it may be sent there.
///
/// # Errors
/// See [`renew`].
async fn wait_for_new_session(state: &Rc<ClientState>, number: u64, renewals: u64) -> Result<(), Ending> {
    state.set_held(number, true);
    renew(state, renewals).await?;
    state.turn(number).await;
    Ok(())
}

async fn converse(
    state: &ClientState,
    number: u64,
    message: &OutgoingMessage,
    has_gone: oneshot::Sender<()>,
) -> Result<(), Trouble> {
    let connection = connection(state).await?;
    if !state.ceases_to_hold(number) {
        // It was cancelled meanwhile.
        return Ok(());
    }
    let (mut reply, is_sent) = connection.ask(Method::Post, state.post(message), &message.line).await;
    let _ = has_gone.send(());
    state.next_turn();
    let delivered = if is_sent { Delivered::Yes } else { Delivered::No };
    let broken = |failure| Trouble::Broken(failure, delivered);
    let head = reply.head().await.map_err(broken)?;
    if !head.is_success() {
        return refused(state, number, message, head, reply).await;
    }
    if message.initializes() {
        // An earlier session has ended.
        let mut session = state.session.borrow_mut();
        (session.id, session.version) = (head.session.clone(), None);
        if let Some(before) = session.listener.take() {
            before.abort();
        }
    }
    if head.is_stream() {
        return stream(state, number, message, reply).await;
    }
    let body = reply.body(usize::MAX).await.map_err(broken)?;
    let Some(lines) = message::of_body(&body) else {
        let what = if body.is_empty() { "nothing".to_owned() } else { format!("{} and no JSON-RPC", head.kind) };
        return match head.status {
            200..=299 if !state.has_received.get() && !body.is_empty() => Err(Trouble::Refused(head.refused(&body))),
            status => Err(broken(Failure::NoMcp(format!("it answers {status} with {what} to a request")))),
        };
    };
    if let Some(line) = refusal_among(&lines, message) {
        return Err(Trouble::Later(Box::new(Trouble::Rejected(line)), RENEW_EVERY));
    }
    take(state, number, message, lines).await;
    state.keep(reply);
    match state.awaits(number) && message.token().is_some() {
        true => Err(broken(Failure::NoMcp("what it answers is no answer to the request".to_owned()))),
        false => Ok(()),
    }
}

/// Passes on received messages, and records what was negotiated.
async fn take(state: &ClientState, number: u64, message: &OutgoingMessage, lines: Vec<Vec<u8>>) {
    if message.initializes()
        && let Some(version) = lines.iter().find_map(|line| message::agreed_version(line))
    {
        state.session.borrow_mut().version = Some(version);
        state.opening.replace(Some(Initialization { initialize: message.line.clone(), initialized: None }));
    }
    state.pass_all(Some(number), lines).await;
}

/// Reads a response that is a stream, resuming it after each break while that is possible.
async fn stream(state: &ClientState, number: u64, message: &OutgoingMessage, reply: Reply) -> Result<(), Trouble> {
    let mut events = Events::default();
    let mut ended = follow(state, number, message, &mut events, reply).await;
    let (mut tries, mut delay) = (0, FIRST_DELAY);
    while state.awaits(number) && tries < MOST_TRIES && message.modern.is_none() {
        let Some(id) = events.last_id().map(str::to_owned) else { break };
        sleep(events.retry().unwrap_or(delay)).await;
        events.begin_again();
        (tries, delay) = (tries + 1, longer(delay));
        let reply = match get(state, Some(&id)).await {
            Ok(opened) => opened,
            Err(Trouble::Unreached(failure) | Trouble::Broken(failure, _)) => {
                ended = Err(failure);
                continue;
            }
            // It has received the request, whatever it answers now.
            Err(Trouble::Refused(no)) => return Err(Trouble::Broken(Failure::Refused(no), Delivered::Yes)),
            // It belongs to the session that is gone, and may have been acted on; only later ones are for a new session.
            Err(Trouble::Over(ending)) if state.can_renew() => {
                let gone = std::io::Error::new(ErrorKind::ConnectionReset, ending.to_string());
                return Err(Trouble::Broken(Failure::Broken(gone), Delivered::Yes));
            }
            Err(trouble) => return Err(trouble),
        };
        ended = follow(state, number, message, &mut events, reply).await;
        if events.last_id() != Some(&id) {
            (tries, delay) = (0, FIRST_DELAY);
        }
    }
    match (state.awaits(number), ended) {
        (false, _) => Ok(()),
        (true, Err(failure)) => Err(Trouble::Broken(failure, Delivered::Yes)),
        (true, Ok(())) => {
            let early = std::io::Error::new(ErrorKind::UnexpectedEof, "its answer ended too early");
            Err(Trouble::Broken(Failure::Broken(early), Delivered::Yes))
        }
    }
}

/// Reads a stream to its end, or until shortly after the answer to its request.
async fn follow(
    state: &ClientState,
    number: u64,
    message: &OutgoingMessage,
    events: &mut Events,
    mut reply: Reply,
) -> Result<(), Failure> {
    loop {
        let piece = match state.awaits(number) {
            true => reply.piece().await?,
            false => match timeout(LAST_WORDS_LIMIT, reply.piece()).await {
                Ok(piece) => piece?,
                Err(_) => return Ok(()),
            },
        };
        if piece.is_empty() {
            state.keep(reply);
            return Ok(());
        }
        let mut lines = Vec::new();
        events.read(&piece, &mut lines);
        take(state, number, message, lines).await;
    }
}

/// Opens the server's own stream, or resumes another one.
async fn get(state: &ClientState, last_id: Option<&str>) -> Result<Reply, Trouble> {
    let connection = connection(state).await?;
    let (mut reply, _) = connection.ask(Method::Get, state.get(last_id), b"").await;
    let head = reply.head().await.map_err(|failure| Trouble::Broken(failure, Delivered::Nothing))?;
    match head.status {
        200..=299 if head.is_stream() => Ok(reply),
        404 if state.has_session() => Err(Trouble::Over(Ending::SessionLost)),
        _ => {
            let body = reply.body(LONGEST_REFUSAL).await.unwrap_or_default();
            Err(Trouble::Refused(head.refused(&body)))
        }
    }
}

fn longer(delay: Duration) -> Duration {
    (delay * 3 / 2).min(LONGEST_DELAY)
}

/// A connection for a request. If the port is closed the daemon has ended, and its sessions with it.
async fn connection(state: &ClientState) -> Result<HttpConnection, Trouble> {
    state.connection().await.map_err(|failure| match failure {
        Failure::Dial(error) if error.kind() == ErrorKind::ConnectionRefused && state.has_session() => {
            Trouble::Over(Ending::Broken(error))
        }
        failure => Trouble::Unreached(failure),
    })
}

/// The error for a request, if it says that the daemon shuts down and no worker got it.
fn refusal_among(lines: &[Vec<u8>], message: &OutgoingMessage) -> Option<Vec<u8>> {
    let is_own =
        |line: &&Vec<u8>| message::answers(line).flatten().is_some_and(|token| Some(&*token) == message.token());
    lines.iter().filter(is_own).find(|line| is_refusal(line)).cloned()
}

/// Handles a refusal: a JSON-RPC error is passed on, anything else is turned into one.
async fn refused(
    state: &ClientState,
    number: u64,
    message: &OutgoingMessage,
    head: AnswerHead,
    mut reply: Reply,
) -> Result<(), Trouble> {
    let body = reply.body(LONGEST_REFUSAL).await.unwrap_or_default();
    if head.status == 503
        && let Some(line) = message::of_body(&body).and_then(|lines| refusal_among(&lines, message))
    {
        return Err(Trouble::Later(Box::new(Trouble::Rejected(line)), RENEW_EVERY));
    }
    if head.status == 404 && message.modern.is_none() && !message.initializes() && state.has_session() {
        return Err(Trouble::Over(Ending::SessionLost));
    }
    let line = message::of_body(&body).and_then(|mut lines| lines.pop()).and_then(|line| {
        let is_own = message::answers(&line).flatten().is_some_and(|token| Some(&*token) == message.token());
        if is_own { Some(line) } else { message::error_for(&line, message.id()) }
    });
    // Nothing has begun, and later messages may depend on it.
    let comes_again = head.retry_after().filter(|_| head.status == 503);
    if let Some(pause) = comes_again
        && !line.as_deref().is_some_and(message::is_delivered)
    {
        let why = line.map_or_else(|| Trouble::Refused(head.refused(&body)), Trouble::Rejected);
        return Err(Trouble::Later(Box::new(why), pause.clamp(RENEW_EVERY, LONGEST_PAUSE)));
    }
    let Some(line) = line else { return Err(Trouble::Refused(head.refused(&body))) };
    state.pass(Some(number), line).await;
    state.keep(reply);
    Ok(())
}

/// Answers a request that no one else will answer, or reports that all requests will fail.
async fn report(state: &ClientState, message: &OutgoingMessage, trouble: Trouble) {
    let options = &state.way.options;
    let refusal = match trouble {
        Trouble::Over(ending) => return over(state, ending).await,
        Trouble::Later(why, _) => return Box::pin(report(state, message, *why)).await,
        Trouble::Rejected(line) => {
            state.has_received.set(true);
            return state.send(Inbound::Line(line)).await;
        }
        Trouble::Refused(refused) if is_no_to_all(state, message, &refused) => {
            let refused = Box::new((refused, options.token_file.is_some()));
            return over(state, Ending::Refused(refused)).await;
        }
        Trouble::Refused(refused) => {
            // A proxy may have forwarded it before this status, and a server may have begun to process it.
            let may_be_there = matches!(refused.status, 500 | 502 | 504);
            let mut refusal = LinkRefusal::of(options, &Failure::Refused(refused));
            if may_be_there {
                refusal.delivered = Delivered::Yes;
            }
            refusal
        }
        Trouble::Unreached(failure) => LinkRefusal::of(options, &failure),
        Trouble::Broken(Failure::Broken(error), delivered) => {
            LinkRefusal::over(options, &Ending::Broken(error), delivered)
        }
        Trouble::Broken(failure, delivered) => {
            let mut refusal = LinkRefusal::of(options, &failure);
            refusal.delivered = delivered;
            refusal
        }
    };
    let mut line = refusal.error(message.id());
    line.pop();
    state.send(Inbound::Line(line)).await;
}

/// Ends everything: no more requests can be sent.
async fn over(state: &ClientState, ending: Ending) {
    if matches!(ending, Ending::SessionLost) {
        state.session.borrow_mut().id = None;
    }
    state.send(Inbound::Over(ending)).await;
}

/// Whether all other requests would fail as well. A server may refuse a modern request because it is of the older era.
fn is_no_to_all(state: &ClientState, message: &OutgoingMessage, refused: &Refused) -> bool {
    !state.has_received.get() && (message.initializes() || matches!(refused.status, 300..=399 | 401 | 403 | 407))
}

/// Sends a message that needs no answer, in at most [`CONNECT_LIMIT`].
pub(super) async fn say_to_server(state: &Rc<ClientState>, message: &OutgoingMessage) {
    let mut sessions = 1;
    let outcome = loop {
        let renewals = state.renewals.get();
        let outcome = timeout(CONNECT_LIMIT, deliver(state, message)).await;
        let is_lost = matches!(outcome, Ok(Err(Trouble::Over(_))));
        if !is_lost || !state.can_renew() || sessions == MOST_SESSIONS {
            break outcome;
        }
        if let Err(ending) = renew(state, renewals).await {
            break Ok(Err(Trouble::Over(ending)));
        }
        sessions += 1;
    };
    let failure = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(Trouble::Over(ending))) => return over(state, ending).await,
        Ok(Err(Trouble::Unreached(failure) | Trouble::Broken(failure, _))) => failure,
        Ok(Err(Trouble::Refused(refused))) => Failure::Refused(refused),
        Ok(Err(Trouble::Rejected(_) | Trouble::Later(..))) | Err(_) => Failure::Silent,
    };
    let what = if message.kind == MessageKind::Response { "an answer" } else { "a notification" };
    say(&format!("{what} of the client was not taken: {failure}"));
}

async fn deliver(state: &Rc<ClientState>, message: &OutgoingMessage) -> Result<(), Trouble> {
    let connection = connection(state).await?;
    let (mut reply, _) = connection.ask(Method::Post, state.post(message), &message.line).await;
    let broken = |failure| Trouble::Broken(failure, Delivered::Nothing);
    let head = reply.head().await.map_err(broken)?;
    let body = reply.body(LONGEST_REFUSAL).await.map_err(broken)?;
    match head.status {
        404 if message.modern.is_none() && state.has_session() => return Err(Trouble::Over(Ending::SessionLost)),
        200..=299 => state.has_received.set(true),
        _ => return Err(Trouble::Refused(head.refused(&body))),
    }
    state.keep(reply);
    if head.status == 202 && message.kind == MessageKind::Initialized {
        if let Some(opening) = &mut *state.opening.borrow_mut() {
            opening.initialized = Some(message.line.clone());
        }
        let listener = tokio::task::spawn_local(listen(Rc::clone(state)));
        let before = state.session.borrow_mut().listener.replace(listener.abort_handle());
        before.into_iter().for_each(|before| before.abort());
    }
    Ok(())
}

/// Passes on the server's own stream, for as long as it has one.
async fn listen(state: Rc<ClientState>) {
    let (mut events, mut delay) = (Events::default(), FIRST_DELAY);
    loop {
        let last_id = events.last_id().map(str::to_owned);
        events.begin_again();
        match get(&state, last_id.as_deref()).await {
            Ok(mut reply) => {
                delay = FIRST_DELAY;
                while let Ok(piece) = reply.piece().await {
                    if piece.is_empty() {
                        break;
                    }
                    let mut lines = Vec::new();
                    events.read(&piece, &mut lines);
                    state.pass_all(None, lines).await;
                }
            }
            Err(Trouble::Over(_)) if state.can_renew() => {
                // Beside this task, which ends when the new session has a stream of its own.
                let renewals = state.renewals.get();
                tokio::task::spawn_local(async move {
                    if let Err(ending) = renew(&state, renewals).await {
                        over(&state, ending).await;
                    }
                });
                return;
            }
            Err(Trouble::Over(ending)) => return over(&state, ending).await,
            Err(Trouble::Refused(refused)) if refused.status == 405 => return,
            Err(Trouble::Refused(refused)) if refused.status < 500 && refused.status != 429 => {
                let why = Failure::Refused(refused);
                return say(&format!("messages that the daemon sends by itself do not arrive: {why}"));
            }
            Err(_) => {}
        }
        sleep(events.retry().unwrap_or(delay)).await;
        delay = longer(delay);
    }
}

/// Begins the session anew after the daemon was restarted, or has ended the session: the client's own `initialize` is
/// sent again, and what answers it is not passed on. `renewals` is how often that was done when the trouble was noticed:
/// only the first of those who notice it does it.
///
/// # Errors
/// It cannot be done: why the connection is over.
async fn renew(state: &Rc<ClientState>, renewals: u64) -> Result<(), Ending> {
    renew_within(state, renewals, OPENING_LIMIT).await
}

/// The same, where each try may take this long.
async fn renew_within(state: &Rc<ClientState>, renewals: u64, limit: Duration) -> Result<(), Ending> {
    let _alone = state.renewing.lock().await;
    if state.renewals.get() != renewals {
        return Ok(());
    }
    // Nothing else is sent meanwhile.
    state.session.borrow_mut().is_beginning = true;
    let until = Instant::now() + RENEW_LIMIT;
    let result = loop {
        let begun = timeout(limit, begin_anew(state)).await;
        match begun.unwrap_or(Err((Ending::Uninitialized(None), false))) {
            // It is being started.
            Err((_, true)) if Instant::now() < until => sleep(RENEW_EVERY).await,
            result => break result.map_err(|(ending, _)| ending),
        }
    };
    if result.is_ok() {
        state.renewals.set(renewals + 1);
        say("the session was gone, as after a restart of the daemon; a new one was begun with the client's initialize");
    }
    state.session.borrow_mut().is_beginning = false;
    state.wake.notify_one();
    result
}

/// Tries once to begin a session anew.
///
/// # Errors
/// Why not, and whether it may work soon.
async fn begin_anew(state: &Rc<ClientState>) -> Result<(), (Ending, bool)> {
    let opening = state.opening.borrow().clone().ok_or((Ending::SessionLost, false))?;
    let broken = |failure: Failure| (Ending::Broken(std::io::Error::other(failure.to_string())), true);
    let message = OutgoingMessage::read(&opening.initialize);
    let connection = state.connection().await.map_err(broken)?;
    let (mut reply, _) = connection.ask(Method::Post, state.post(&message), &message.line).await;
    let head = reply.head().await.map_err(broken)?;
    if !head.is_success() {
        let body = reply.body(LONGEST_REFUSAL).await.unwrap_or_default();
        let may_come = matches!(head.status, 429 | 502..=504);
        let refused = Box::new((head.refused(&body), state.way.options.token_file.is_some()));
        return Err((Ending::Refused(refused), may_come));
    }
    let mut lines = Vec::new();
    let is_it = |line: &Vec<u8>| message::answers(line).flatten().is_some_and(|token| Some(&*token) == message.token());
    if head.is_stream() {
        let mut events = Events::default();
        while !lines.iter().any(is_it) {
            let piece = reply.piece().await.map_err(broken)?;
            if piece.is_empty() {
                break;
            }
            events.read(&piece, &mut lines);
        }
    } else {
        let body = reply.body(usize::MAX).await.map_err(broken)?;
        lines = message::of_body(&body).unwrap_or_default();
        state.keep(reply);
    }
    let version = lines.iter().filter(|line| is_it(line)).find_map(|line| message::agreed_version(line));
    let Some(version) = version else { return Err((Ending::SessionLost, false)) };
    {
        let mut session = state.session.borrow_mut();
        (session.id, session.version) = (head.session.clone(), Some(version));
    }
    lines.retain(|line| !is_it(line));
    state.pass_all(None, lines).await;
    if let Some(initialized) = &opening.initialized {
        match deliver(state, &OutgoingMessage::read(initialized)).await {
            Ok(()) => {}
            Err(Trouble::Unreached(failure) | Trouble::Broken(failure, _)) => return Err(broken(failure)),
            Err(_) => return Err((Ending::SessionLost, false)),
        }
    }
    Ok(())
}

/// Ends the session, if there is one.
pub(super) async fn end_session(state: &ClientState) {
    let Some(head) = state.delete() else { return };
    let Ok(connection) = state.connection().await else { return };
    let (mut reply, _) = connection.ask(Method::Delete, head, b"").await;
    let _ = reply.head().await;
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::sync::mpsc::channel;
    use tokio::task::LocalSet;

    use super::super::super::daemon::{Daemon, Options, User};
    use super::super::state::DaemonRoute;
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_a_repeated_initialize_is_given_up() {
        // The kernel accepts connections for it.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let daemon = Daemon::parse(&format!("http://{address}/mcp")).expect("a URL");
        let Daemon::Web(url) = daemon.clone() else { panic!("it is a URL") };
        let options = Options::new(daemon, None, None, User::Editor).expect("they fit");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let result = LocalSet::new().block_on(&runtime, async {
            let first = HttpConnection::dial(options.daemon.address(), None).await.expect("it is accepted");
            let way = DaemonRoute { options, url, token: None, trust: None };
            let state = Rc::new(ClientState::new(way, first, channel(1).0));
            let initialize = br#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#.to_vec();
            state.opening.replace(Some(Initialization { initialize, initialized: None }));
            let renewed = timeout(Duration::from_secs(60), renew_within(&state, 0, Duration::ZERO)).await;
            assert!(!state.session.borrow().is_beginning, "later lines wait no longer");
            renewed.expect("it has a limit")
        });
        assert!(matches!(result, Err(Ending::Uninitialized(None))), "{result:?}");
    }
}
