//! The bridge, `stdio_bus connect`: an editor starts it as its agent, and it connects the editor's two pipes to a
//! running daemon. It copies stdin to the daemon and the daemon's output to stdout: verbatim over TCP and Unix sockets,
//! a line per message over a WebSocket, and a request per line over MCP's Streamable HTTP (`http`).
//!
//! It writes nothing to stdout but lines from the daemon and JSON-RPC errors for requests that can no longer be
//! answered, it never changes a flag of the files that it was given, and it buffers at most a few blocks in each
//! direction, or over HTTP a few messages: a slow reader slows down the daemon.
//!
//! | event | action |
//! |---|---|
//! | stdin ends | cancels pending prompts (`session/cancel`), notifies the daemon (half-close; a WebSocket is closed once all is answered), passes on outstanding answers, exits with 0 when the daemon closes |
//! | stdin has ended and stdout is closed, or stdout while there is no connection | exits with 0: the editor is gone |
//! | the same while the daemon has accepted nothing for 2 s, so that stdin is not read | exits with 0, too |
//! | the daemon closes while requests are pending | an error for each of them; exits with 1 |
//! | the daemon closes after the end of stdin, and nothing is pending | exits with 0 |
//! | the daemon closes while nothing is pending, with no other reason than that it ends | the next line of stdin makes a new connection, as after a refusal; exits with 0 if stdin ends before |
//! | the daemon cannot be reached, refuses, or closes before any request | an error for each further request, for a while; exits with 1 |
//! | the daemon shuts down, and has refused requests that no worker got, or closes a WebSocket before they reach one | they are sent again on a new connection, with what came since (`resend.rs`) |
//! | received data is not JSON-RPC | none of it is passed on; an error for each pending request; exits with 1 |
//! | stdout is closed | exits with 0 |
//! | SIGTERM, SIGINT | ends at once: their default action is kept, and the kernel closes the socket |
//!
//! Reading order: this file is the life cycle of a bridge; `daemon.rs` has its options, `link.rs` the connection to the
//! daemon, `stream.rs` reads and writes, with threads or the ring of `ring.rs`, `failure.rs` describes failures and
//! `refusal.rs` answers requests with them; `pending.rs` tracks pending requests, which `follow.rs` finds in the
//! streams, `resend.rs` keeps those that are sent again but for what `cancelled.rs` finds, `reconnect.rs` says how long
//! that is tried, and `guard.rs` lets only messages through. `websocket.rs` is the WebSocket connection, with
//! `frames.rs` and `tls.rs`. `call.rs` is `stdio_bus call`, on the same connections; `run.rs` runs both.

mod byte_order_mark;
mod call;
mod cancelled;
mod daemon;
mod failure;
mod follow;
mod frames;
mod guard;
mod http;
mod limits;
mod link;
mod partial_line;
mod pending;
mod reconnect;
mod refusal;
mod resend;
mod ring;
mod run;
mod stream;
mod tls;
mod websocket;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use memchr::memchr;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::task::{AbortHandle, spawn_local as spawn};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::bus::reply::Delivered;
use crate::bus::report::Reason;
use crate::error::{StartError, exit};
use byte_order_mark::Mark;
use cancelled::Cancelled;
use failure::{Ending, Failure};
use guard::Guard;
use limits::{BLOCK, CONNECT_LIMIT, LAST_WORDS_LIMIT, OPENING_LIMIT, say};
use link::{LinkSource, Sink};
use partial_line::BegunLine;
use pending::{Asker, Overlong, UnsentAtEnd, Waiting};
use refusal::LinkRefusal;
use resend::{Initialize, Repeat, Urgency, is_request};
use stream::{Backend, Stream};

pub use call::{Call, Handshake, call};
pub use daemon::{Daemon, Options, Url, User};

/// How long to wait for requests that can only be refused, so that the editor can show why.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long to wait for further requests after one was refused.
const NEXT_REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// How long the daemon may be silent after the end of stdin with nothing pending, before the bridge closes the
/// connection.
const LINGER: Duration = Duration::from_secs(10);

/// How long the daemon may accept nothing of stdin before the bridge watches whether its editor leaves.
const BLOCKED_LIMIT: Duration = Duration::from_secs(2);

/// How often a daemon that has shut down is dialled until it is back.
const RETURN_EVERY: Duration = Duration::from_millis(200);

/// How often it is looked whether what was refused has waited for too long.
const HELD_LOOK: Duration = Duration::from_secs(1);

/// How long a new connection has to last before something is sent again that has no answer to an `initialize` to wait for: a
/// tunnel or a balancer with no daemon behind it accepts, and closes as soon as it notices.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Connects stdin and stdout to the daemon until either side ends, and returns the exit code. Errors were printed to
/// stderr. The caller is expected to exit: a read of stdin may still be in progress.
///
/// # Errors
/// Stdin or stdout cannot be used.
pub fn run(options: &Options) -> Result<u8, StartError> {
    run::run(async |backend| serve(options, backend).await)?
}

async fn serve(options: &Options, backend: Backend) -> Result<u8, StartError> {
    let link = link::connect(options, backend, CONNECT_LIMIT).await;
    let open = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().and_then(|fd| Stream::new(fd, backend));
    let stdin = Rc::new(open(io::stdin().as_fd()).map_err(StartError::io("use stdin"))?);
    let stdout = Rc::new(open(io::stdout().as_fd()).map_err(StartError::io("use stdout"))?);
    match link {
        Ok(link) => Ok(bridge(options, backend, stdin, stdout, link).await),
        Err(failure) => {
            let remedy = failure.remedy(options);
            say(format!("cannot connect to {}: {failure}\n{remedy}", options.daemon).trim_end());
            refuse(&stdin, &stdout, &LinkRefusal::of(options, &failure)).await;
            Ok(exit::FAILURE)
        }
    }
}

/// Events from the tasks of a bridge.
enum BridgeEvent {
    /// Stdin has ended, and the daemon was notified.
    InputEnded,
    /// The daemon has stopped reading this connection.
    SendFailed(u32),
    /// It has stopped sending on this connection.
    DaemonEnded(u32, Ending),
    /// It has refused a request, which is held.
    Held,
    /// Stdout cannot be written.
    OutputFailed(io::Error),
    /// Nobody writes stdin any more, and stdout is closed.
    ReaderGone,
}

/// The state shared by the tasks of a bridge.
struct Shared {
    waiting: RefCell<Waiting>,
    repeat: RefCell<Repeat>,
    /// The sink of stdin, and the number of that connection.
    sink: RefCell<Sink>,
    connection: Cell<u32>,
    /// Stdin is read on, or has another connection.
    reconnected: Notify,
    /// The answer to a repeated `initialize` may have come, or the connection has ended.
    was_opened: Notify,
    /// Nothing more is sent on this connection.
    is_over: Cell<bool>,
    /// The rest of the line of stdin whose beginning was lost with a connection is dropped.
    drops_line: Cell<bool>,
    /// Stdin has brought some input.
    has_asked: Cell<bool>,
    /// Stdin has ended, and all of it was sent to the daemon.
    input_ended: Cell<bool>,
    /// Nothing more comes from stdin; some of it may be held.
    has_read_all: Cell<bool>,
    /// Stdin was read, or has ended.
    was_read: Notify,
    /// The connection has ended in both directions.
    has_ended: Cell<bool>,
    /// Number of blocks received from the daemon.
    blocks: Cell<u64>,
    stdin: Rc<Stream>,
    stdout: Rc<Stream>,
    /// Held while something is written to stdout.
    writing: Mutex<()>,
    /// Held while something is sent to the daemon.
    sending: Mutex<()>,
    events: Sender<BridgeEvent>,
}

impl Shared {
    fn new(sink: Sink, stdin: Rc<Stream>, stdout: Rc<Stream>, events: Sender<BridgeEvent>) -> Rc<Self> {
        Rc::new(Self {
            waiting: RefCell::default(),
            repeat: RefCell::default(),
            sink: RefCell::new(sink),
            connection: Cell::new(0),
            reconnected: Notify::new(),
            was_opened: Notify::new(),
            is_over: Cell::new(false),
            drops_line: Cell::new(false),
            has_asked: Cell::new(false),
            input_ended: Cell::new(false),
            has_read_all: Cell::new(false),
            was_read: Notify::new(),
            has_ended: Cell::new(false),
            blocks: Cell::new(0),
            stdin,
            stdout,
            writing: Mutex::new(()),
            sending: Mutex::new(()),
            events,
        })
    }

    fn sink(&self) -> Sink {
        self.sink.borrow().clone()
    }

    /// Sends lines, or a part of one. Returns the buffer.
    async fn send(&self, sink: &Sink, bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let _sending = self.sending.lock().await;
        sink.send(bytes).await
    }

    /// Whether the end of the connection has taken nothing from the editor, and the daemon has given no other reason than
    /// its own end. Over HTTP each request has a connection of its own.
    fn is_idle(&self, sink: &Sink, ending: &Ending) -> bool {
        let waiting = self.waiting.borrow();
        let has_reason = waiting.last_word().is_some_and(|word| word.reason != Reason::ShuttingDown.name());
        let nothing_is_lost = waiting.is_empty() && !waiting.is_mid_line() && waiting.at_line_start();
        let was_used = self.has_asked.get() && self.blocks.get() > 0;
        let has_ended_cleanly =
            ending.is_gone() && !has_reason && nothing_is_lost && was_used && !sink.answers_each_line();
        has_ended_cleanly && !self.has_read_all.get() && self.repeat.borrow().has_nothing_to_send()
    }

    /// Waits until lines can be written to stdout: nobody writes there, and no line of the daemon is begun.
    async fn between_lines(&self) -> MutexGuard<'_, ()> {
        loop {
            let writing = self.writing.lock().await;
            if self.waiting.borrow().at_line_start() {
                return writing;
            }
            drop(writing);
            sleep(RETURN_EVERY).await;
        }
    }

    /// The connection has ended: what waits to be sent again waits for another one.
    fn end_sending(&self) {
        self.is_over.set(true);
        self.was_opened.notify_one();
    }

    /// Closes the connection once stdin has ended and nothing is pending.
    fn close_if_done(&self, sink: &Sink) {
        if self.input_ended.get() && self.waiting.borrow().is_empty() && !self.repeat.borrow().is_holding() {
            sink.all_is_answered();
        }
    }
}

async fn bridge(
    options: &Options,
    backend: Backend,
    stdin: Rc<Stream>,
    stdout: Rc<Stream>,
    (sink, mut source): (Sink, LinkSource),
) -> u8 {
    // Each task reports once, and no report waits for another to be handled.
    let (events, mut reports) = channel(8);
    let shared = Shared::new(sink, stdin, Rc::clone(&stdout), events);
    let mut input_ended = false;
    spawn(to_daemon(Rc::clone(&shared)));
    loop {
        let connection = source.connection_id().map(|id| format!(" (connection {id})")).unwrap_or_default();
        let sink = shared.sink();
        let listener = spawn(from_daemon(source, sink.clone(), Rc::clone(&stdout), Rc::clone(&shared)));
        let again = send_again(sink.clone(), Rc::clone(&shared), SETTLE_TIME);
        let mut sender = (shared.connection.get() > 0).then(|| spawn(again));
        let ending = match until_ended(&mut reports, &shared, &stdout, &sink, &mut input_ended).await {
            Ok(ending) => ending,
            Err(code) => return code,
        };
        answer_undelivered(options, &shared, &ending).await;
        let is_idle = shared.is_idle(&sink, &ending);
        if is_idle {
            shared.repeat.borrow_mut().hold_all();
        }
        shared.end_sending();
        if is_idle || ending.is_gone() && shared.repeat.borrow().wants_connection() {
            sink.close(Some(&ending)).await;
            // What has arrived is passed on first, and nothing of this connection is read or written any more. What is being
            // written ends with the connection, and what may not have arrived is said.
            let _ = listener.await;
            if let Some(sender) = sender.take() {
                let _ = sender.await;
            }
            answer_undelivered(options, &shared, &ending).await;
            if is_idle {
                say(&format!(
                    "the daemon at {} has ended the connection, and nothing was pending: {ending}",
                    options.daemon
                ));
                // What could not be sent on this connection is not waited for.
                shared.connection.set(shared.connection.get() + 1);
                shared.reconnected.notify_waiters();
                if let Err(code) = next_message(&shared).await {
                    return code;
                }
            }
            match connect_again(options, backend, &shared, &stdout, &ending).await {
                Ok(again) => {
                    source = again;
                    continue;
                }
                Err(ReconnectFailure::EditorLeft(code)) => return code,
                Err(ReconnectFailure::Failed(failure)) => {
                    say(&format!("cannot connect to {} again: {failure}", options.daemon))
                }
                Err(ReconnectFailure::TooLate) => {}
            }
        }
        let nothing_came = shared.blocks.get() == 0 && matches!(options.daemon, Daemon::Lines(_));
        let ending = ending.explained(shared.waiting.borrow().last_word(), nothing_came);
        let was_asked = shared.has_asked.get();
        if !was_asked && !input_ended {
            // Input is in flight, and the editor would not learn why it gets no answer.
            shared.has_ended.set(true);
            sink.close(Some(&ending)).await;
            first_request(&shared).await;
        }
        let input_ended = input_ended || shared.input_ended.get();
        // Only a daemon could have answered; and what was not sent was not delivered.
        let was_taken = was_asked && !ending.is_elsewhere() && !ending.is_refusal();
        let delivered = if was_taken { Delivered::Yes } else { Delivered::No };
        let code = ended(options, &connection, &stdout, &shared, input_ended, &ending, delivered).await;
        sink.close(Some(&ending)).await;
        if let Some(sender) = sender {
            // What was being sent again may not have arrived, which it says.
            let _ = sender.await;
        }
        return code;
    }
}

/// The connection has ended: keeps what no worker got, to send it again, and answers at once what is not sent again.
async fn answer_undelivered(options: &Options, shared: &Shared, ending: &Ending) {
    let answers = {
        let undelivered = LinkRefusal::over(options, ending, Delivered::No);
        let mut waiting = shared.waiting.borrow_mut();
        shared
            .repeat
            .borrow_mut()
            .take_undelivered(ending.refuses_unanswered(), &mut waiting, |id| undelivered.error(id))
    };
    if answers.is_empty() {
        return;
    }
    let _writing = shared.writing.lock().await;
    let broken_line = if shared.waiting.borrow().at_line_start() { &b""[..] } else { b"\n" };
    // If the editor has left, that is noticed by all who wait for it.
    let (_, answers) = shared.stdout.write([broken_line, &answers].concat()).await;
    shared.waiting.borrow_mut().passed(&answers);
}

/// Why there is no new connection.
enum ReconnectFailure {
    /// The last attempt failed.
    Failed(Failure),
    /// None was made in time.
    TooLate,
    /// Nobody is there any more for whom to make one: the exit code.
    EditorLeft(u8),
}

/// There is no connection, and nothing that needs one: waits for the next message of the editor.
///
/// # Errors
/// None comes any more, since the editor has left: the exit code.
async fn next_message(shared: &Shared) -> Result<(), u8> {
    let left = async {
        shared.stdout.reader_gone().await;
        Err(exit::OK)
    };
    let comes = async {
        while shared.repeat.borrow().has_nothing_to_send() {
            if shared.has_read_all.get() {
                return Err(exit::OK);
            }
            shared.was_read.notified().await;
        }
        Ok(())
    };
    first(left, comes).await?;
    // From now on somebody waits.
    shared.repeat.borrow_mut().hold_all();
    Ok(())
}

/// The daemon has ended the connection, and there are messages for a new one, which this makes: what it has refused, or what
/// has come since. What else is pending may have been delivered, and gets an error.
///
/// # Errors
/// See [`ReconnectFailure`].
async fn connect_again(
    options: &Options,
    backend: Backend,
    shared: &Shared,
    stdout: &Stream,
    ending: &Ending,
) -> Result<LinkSource, ReconnectFailure> {
    // The editor may read slowly, and gets what follows before anything else.
    let writing = shared.writing.lock().await;
    let was_answered = shared.waiting.borrow().has_answered();
    let over = LinkRefusal::over(options, ending, Delivered::Yes);
    let mut last = {
        let mut waiting = shared.waiting.borrow_mut();
        let mut last = if waiting.at_line_start() { Vec::new() } else { b"\n".to_vec() };
        waiting.begin_again();
        if waiting.is_mid_line() {
            match waiting.take_unfinished() {
                Ok(begun) => shared.repeat.borrow_mut().hold_first(begun),
                Err(id) => {
                    shared.drops_line.set(!shared.repeat.borrow_mut().drop_begun());
                    last.extend(id.iter().flat_map(|id| LinkRefusal::over(options, ending, Delivered::No).error(id)));
                }
            }
        }
        last
    };
    for id in shared.waiting.borrow_mut().take() {
        last.extend(over.error(&id));
    }
    stdout.write(last).await.0.map_err(|error| ReconnectFailure::EditorLeft(output_failed(&error)))?;
    drop(writing);
    let round = shared.repeat.borrow_mut().next_round(was_answered, Instant::now());
    let connecting = async {
        if shared.connection.get() > 0 {
            sleep(round.pause).await;
        }
        loop {
            if Instant::now() >= round.until {
                return Err(ReconnectFailure::TooLate);
            }
            match link::connect(options, backend, CONNECT_LIMIT).await {
                Ok(link) => return Ok(link),
                Err(failure) if !failure.may_pass() || Instant::now() + RETURN_EVERY >= round.until => {
                    return Err(ReconnectFailure::Failed(failure));
                }
                Err(_) => sleep(RETURN_EVERY).await,
            }
        }
    };
    let left = async {
        stdout.reader_gone().await;
        Err(ReconnectFailure::EditorLeft(exit::OK))
    };
    let (sink, source) = first(left, connecting).await?;
    let count = shared.repeat.borrow().count();
    if round.is_first {
        let daemon = &options.daemon;
        let again = |what: &str| format!("the daemon at {daemon} shuts down; {what} sent again on a new connection");
        say(&match count {
            0 => format!("connected to the daemon at {daemon} anew"),
            1 => again("a request that it has refused is"),
            count => again(&format!("{count} requests that it has refused are")),
        });
    }
    shared.connection.set(shared.connection.get() + 1);
    shared.sink.replace(sink);
    shared.is_over.set(false);
    let opening = shared.waiting.borrow().opening();
    let mut repeat = shared.repeat.borrow_mut();
    // It may be among what is sent again.
    let initialize = opening.initialize.filter(|(_, line)| !repeat.lines().any(|other| other == line));
    repeat.begin_again(initialize.map(|(id, _)| id));
    shared.reconnected.notify_waiters();
    Ok(source)
}

/// The result of the one that ends first; the other one is dropped.
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => other.as_mut().poll(context),
    })
    .await
}

/// Sends on a new connection what was refused on the one before, and what stdin has brought since. Without an `initialize`
/// to repeat, it looks first whether the connection lasts for `settle_time`.
async fn send_again(sink: Sink, shared: Rc<Shared>, settle_time: Duration) {
    let (opening, connection) = (shared.waiting.borrow().opening(), shared.connection.get());
    let is_awaited = matches!(shared.repeat.borrow().initialize(), Initialize::Awaited(_));
    if is_awaited && let Some((_, line)) = opening.initialize {
        let _ = sink.send(line).await;
        let refused = match timeout(OPENING_LIMIT, answer_to_initialize(&shared)).await {
            Ok(Initialize::Refused(word)) => Some(Some(word)),
            Ok(_) => None,
            Err(_) => Some(None),
        };
        if let Some(why) = refused {
            let _ = shared.events.send(BridgeEvent::DaemonEnded(connection, Ending::Uninitialized(why))).await;
            return;
        }
        if !shared.is_over.get()
            && let Some(line) = opening.initialized
        {
            let _ = sink.send(line).await;
        }
    } else {
        let _ = timeout(settle_time, until_over(&shared)).await;
    }
    send_held(&sink, &shared).await;
    if shared.input_ended.get() && !shared.repeat.borrow().is_holding() {
        sink.end().await;
        shared.close_if_done(&sink);
    }
}

/// Waits for the answer to the repeated `initialize`, or the end of the connection.
async fn answer_to_initialize(shared: &Shared) -> Initialize {
    loop {
        let initialize = shared.repeat.borrow().initialize().clone();
        if !matches!(initialize, Initialize::Awaited(_)) || shared.is_over.get() {
            return initialize;
        }
        shared.was_opened.notified().await;
    }
}

/// Waits for the end of the connection.
async fn until_over(shared: &Shared) {
    while !shared.is_over.get() {
        shared.was_opened.notified().await;
    }
}

/// Sends all that is held, until something is refused anew or the connection has ended.
async fn send_held(sink: &Sink, shared: &Shared) {
    while !shared.is_over.get() {
        let is_mid_line = shared.waiting.borrow().is_mid_line();
        let next = shared.repeat.borrow_mut().next(is_mid_line);
        shared.reconnected.notify_waiters();
        let Some((lines, tries)) = next else { return };
        shared.waiting.borrow_mut().sending_again(&lines, tries);
        let (result, lines) = shared.send(sink, lines).await;
        if result.is_err() {
            return lost(&lines);
        }
    }
}

/// Waits until the daemon has ended, or what was refused has waited for too long. Returns how, and notes whether stdin has
/// ended before.
///
/// # Errors
/// The editor has left first: the exit code.
async fn until_ended(
    reports: &mut Receiver<BridgeEvent>,
    shared: &Rc<Shared>,
    stdout: &Rc<Stream>,
    sink: &Sink,
    input_ended: &mut bool,
) -> Result<Ending, u8> {
    let mut failed_until = None;
    let mut silent_since = shared.blocks.get();
    let ending = loop {
        let has_pending = !shared.waiting.borrow().is_empty();
        let held_until = shared.repeat.borrow_mut().deadline(has_pending, Instant::now());
        // What is pending may be answered meanwhile.
        let look = held_until.map(|until| until.min(Instant::now() + HELD_LOOK));
        let linger = input_ended.then(|| Instant::now() + LINGER);
        let report = match [failed_until, look, linger].into_iter().flatten().min() {
            Some(until) => timeout_at(until, reports.recv()).await,
            None => Ok(reports.recv().await),
        };
        match report {
            Ok(Some(BridgeEvent::InputEnded)) => *input_ended = true,
            Ok(Some(BridgeEvent::Held)) => {}
            // Its last output, before it stopped reading, may still be in flight.
            Ok(Some(BridgeEvent::SendFailed(connection))) if connection == shared.connection.get() => {
                failed_until = Some(Instant::now() + LAST_WORDS_LIMIT);
            }
            Ok(Some(BridgeEvent::DaemonEnded(connection, ending))) if connection == shared.connection.get() => {
                break ending;
            }
            // Of a connection that has ended before.
            Ok(Some(BridgeEvent::SendFailed(_) | BridgeEvent::DaemonEnded(..))) => {}
            // An editor that leaves is not a failure.
            Ok(Some(BridgeEvent::ReaderGone)) => {
                on_editor_gone(sink, shared).await;
                return Err(exit::OK);
            }
            Ok(Some(BridgeEvent::OutputFailed(error))) => {
                on_editor_gone(sink, shared).await;
                return Err(output_failed(&error));
            }
            Ok(None) => break Ending::Closed,
            Err(_) if failed_until.is_some_and(|until| until <= Instant::now()) => break Ending::Closed,
            Err(_) if held_until.is_some_and(|until| until <= Instant::now()) => {
                shared.repeat.borrow_mut().give_up();
                let (sink, stdout, shared) = (sink.clone(), Rc::clone(stdout), Rc::clone(shared));
                spawn(async move { hold_no_longer(&sink, &stdout, &shared).await });
            }
            Err(_) if held_until.is_some() => {}
            Err(_) => {
                let blocks = shared.blocks.get();
                let has_all = shared.waiting.borrow().is_empty() && !shared.repeat.borrow().is_holding();
                if has_all && blocks == silent_since {
                    sink.close(None).await;
                    return Err(exit::OK);
                }
                silent_since = blocks;
            }
        }
    };
    Ok(ending)
}

/// The daemon still has the connection open long after it has refused requests: the editor gets these errors of it, and
/// what has come since is sent.
async fn hold_no_longer(sink: &Sink, stdout: &Stream, shared: &Shared) {
    let writing = shared.between_lines().await;
    if !shared.repeat.borrow().has_given_up() {
        // All was sent meanwhile.
        return;
    }
    let errors = shared.repeat.borrow_mut().take_errors();
    // Whether stdout can be written, `from_daemon` notices.
    let _ = stdout.write(errors).await;
    drop(writing);
    let is_ours = {
        let mut repeat = shared.repeat.borrow_mut();
        repeat.has_given_up() && repeat.starts_sending()
    };
    if is_ours {
        send_held(sink, shared).await;
    }
}

/// Waits for a request or the end of stdin, for a limited time.
async fn first_request(shared: &Shared) {
    if io::stdin().is_terminal() {
        return;
    }
    let until = Instant::now() + FIRST_REQUEST_LIMIT;
    while shared.waiting.borrow().is_empty() && !shared.input_ended.get() {
        if timeout_at(until, shared.was_read.notified()).await.is_err() {
            return;
        }
    }
}

/// Answers pending requests after the end of the connection.
async fn ended(
    options: &Options,
    connection: &str,
    stdout: &Stream,
    shared: &Shared,
    input_ended: bool,
    ending: &Ending,
    delivered: Delivered,
) -> u8 {
    let (overlong, requests, broken_line) = {
        let mut waiting = shared.waiting.borrow_mut();
        (ending.is_too_long().then(|| waiting.take_overlong()), waiting.take(), !waiting.at_line_start())
    };
    let (refused, errors, held) = {
        let mut repeat = shared.repeat.borrow_mut();
        (repeat.count(), repeat.take_errors(), repeat.take_held())
    };
    if requests.is_empty() && input_ended && !broken_line && overlong.is_none() && errors.is_empty() && held.is_empty()
    {
        return exit::OK;
    }
    let mut last = Vec::new();
    if broken_line {
        last.push(b'\n');
    }
    last.extend(errors);
    let mut unanswered = requests.len() + refused;
    match &overlong {
        Some(Overlong { length, asker: Asker::Waits(id) }) => {
            unanswered += 1;
            last.extend(LinkRefusal::too_long(options, ending, *length, Delivered::No).error(id));
        }
        Some(Overlong { length, asker: Asker::Unknown }) => {
            last.extend(LinkRefusal::too_long(options, ending, *length, Delivered::Nothing).error(b"null"));
        }
        Some(Overlong { asker: Asker::Knows, .. }) | None => {}
    }
    let over = LinkRefusal::over(options, ending, delivered);
    for id in &requests {
        last.extend(over.error(id));
    }
    let mut unsent = Waiting::default();
    unsent.sending(&held);
    let over = LinkRefusal::over(options, ending, Delivered::No);
    for id in unsent.take() {
        last.extend(over.error(&id));
        unanswered += 1;
    }
    let write = async {
        let _writing = shared.writing.lock().await;
        stdout.write(last).await
    };
    match timeout(LAST_WORDS_LIMIT, write).await {
        Ok((Err(error), _)) if error.kind() != ErrorKind::BrokenPipe => say(&format!("cannot write stdout: {error}")),
        _ => {}
    }
    let line = overlong.map(|line| format!("; a line of {} bytes was too long", line.length)).unwrap_or_default();
    let waited = match unanswered {
        0 => String::new(),
        1 => "; 1 request was not answered".to_owned(),
        count => format!("; {count} requests were not answered"),
    };
    let what = ending.headline();
    let (daemon, remedy) = (&options.daemon, ending.remedy(options));
    say(&format!("{what} {daemon}{connection}: {ending}{line}{waited}\n{remedy}"));
    exit::FAILURE
}

/// Handles a closed stdout: notifies the daemon that the outstanding answers are not wanted, so that no agent works on
/// them any longer.
async fn on_editor_gone(sink: &Sink, shared: &Shared) {
    if shared.waiting.borrow().is_empty() {
        sink.close(None).await;
    } else {
        sink.abandon().await;
    }
}

fn output_failed(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return exit::OK;
    }
    say(&format!("cannot write stdout: {error}"));
    exit::FAILURE
}

/// Waits until stdout is closed, after the end of stdin: the editor has left. While stdin is not read, its end is seen by
/// that nobody writes it any more.
fn watch_reader(shared: Rc<Shared>) -> AbortHandle {
    let watches = async move {
        if !shared.has_read_all.get() {
            shared.stdin.writer_gone().await;
        }
        shared.stdout.reader_gone().await;
        let _ = shared.events.send(BridgeEvent::ReaderGone).await;
    };
    spawn(watches).abort_handle()
}

/// Waits for something that a daemon which accepts nothing may block for good, and reports meanwhile if the editor leaves.
async fn watched<T>(shared: &Rc<Shared>, may_block: impl Future<Output = T>) -> T {
    let mut may_block = pin!(may_block);
    if let Ok(result) = timeout(BLOCKED_LIMIT, &mut may_block).await {
        return result;
    }
    let watcher = watch_reader(Rc::clone(shared));
    let result = may_block.await;
    watcher.abort();
    result
}

/// Copies stdin to the daemon.
async fn to_daemon(shared: Rc<Shared>) {
    let mut buffer = Vec::with_capacity(BLOCK);
    let (mut begun, mut mark) = (BegunLine::default(), Mark::default());
    loop {
        let read = shared.stdin.read(buffer).await;
        buffer = read.1;
        match read.0 {
            Ok(0) => break,
            Ok(_) => {}
            // A terminal reports a hang-up by an error; any error ends the input.
            Err(error) => {
                say(&format!("cannot read stdin: {error}"));
                break;
            }
        }
        mark.skip(&mut buffer);
        shared.has_asked.set(true);
        if shared.has_ended.get() {
            let before = begun.take();
            let mut waiting = shared.waiting.borrow_mut();
            waiting.sending(&before);
            waiting.sending(&buffer);
            shared.was_read.notify_one();
            continue;
        }
        let before = begun.hold_back(&mut buffer);
        if !before.is_empty() {
            watched(&shared, pass_on(&shared, before)).await;
        }
        if !buffer.is_empty() {
            buffer = watched(&shared, pass_on(&shared, buffer)).await;
        }
        shared.was_read.notify_one();
    }
    let mut rest = begun.take();
    let was_holding = shared.repeat.borrow().is_holding();
    if was_holding {
        let mut last = Waiting::default();
        last.sending(&rest);
        if !last.sent_all().is_whole {
            ends_within_a_line(rest.len());
        } else if !rest.is_empty() {
            rest.push(b'\n');
            shared.repeat.borrow_mut().hold(&rest);
        }
        rest.clear();
        if !shared.repeat.borrow().is_sending() && !shared.waiting.borrow().is_mid_line() {
            // The daemon still has these; what waits for another one is cancelled there.
            let lines = shared.waiting.borrow_mut().cancel_prompts();
            shared.waiting.borrow_mut().sending(&lines);
            // That the connection is lost, the receiving side notices.
            let _ = watched(&shared, shared.send(&shared.sink(), lines)).await;
        }
        // What waits is for nobody if the editor leaves.
        watch_reader(Rc::clone(&shared));
    }
    shared.has_read_all.set(true);
    shared.was_read.notify_one();
    while shared.repeat.borrow().is_holding() {
        shared.reconnected.notified().await;
    }
    let sink = shared.sink();
    let UnsentAtEnd { lines, is_whole } = {
        let mut waiting = shared.waiting.borrow_mut();
        waiting.sending(&rest);
        waiting.sent_all()
    };
    let last = match (is_whole, begun.has_gone()) {
        (true, _) => [rest, lines].concat(),
        // Each line has a request of its own there, which gets an error.
        (false, false) if sink.answers_each_line() => [rest, b"\n".to_vec(), lines].concat(),
        // Half a message would end the connection before the outstanding answers.
        (false, false) => {
            ends_within_a_line(rest.len());
            lines
        }
        // Nothing can follow the partial line that the daemon has. The daemon drops it, and answers the rest.
        (false, true) => Vec::new(),
    };
    let sending = async {
        if !last.is_empty() {
            // It fails only if the connection is lost, which the receiving side notices.
            let _ = sink.send(last).await;
        }
        sink.end().await;
    };
    watched(&shared, sending).await;
    shared.input_ended.set(true);
    shared.was_read.notify_one();
    shared.close_if_done(&sink);
    let _ = shared.events.send(BridgeEvent::InputEnded).await;
    if !was_holding {
        watch_reader(shared);
    }
}

fn ends_within_a_line(length: usize) {
    say(&format!("stdin has ended within a line; {length} bytes of it are dropped"));
}

/// Sends a part of stdin, or holds it. Returns the buffer.
async fn pass_on(shared: &Rc<Shared>, mut bytes: Vec<u8>) -> Vec<u8> {
    if shared.drops_line.get() {
        let Some(end) = memchr(b'\n', &bytes) else { return bytes };
        bytes.drain(..=end);
        shared.drops_line.set(false);
    }
    if shared.repeat.borrow().is_holding() {
        hold(shared, &bytes).await;
        return bytes;
    }
    let (sink, connection) = (shared.sink(), shared.connection.get());
    shared.waiting.borrow_mut().sending(&bytes);
    let (result, bytes) = shared.send(&sink, bytes).await;
    if result.is_err() {
        let _ = shared.events.send(BridgeEvent::SendFailed(connection)).await;
        while shared.connection.get() == connection {
            shared.reconnected.notified().await;
        }
        lost(&bytes);
    }
    bytes
}

/// Says what was not sent, or only in part, and is not sent again either: its requests get an error, but nobody waits for
/// an answer to the rest.
fn lost(bytes: &[u8]) {
    // An incomplete line is sent again.
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    // What would be cancelled is not pending any more.
    let is_blank = |line: &[u8]| line.trim_ascii().is_empty();
    let is_missed = |line: &&[u8]| !is_blank(line) && !is_request(line) && Cancelled::by(line).is_none();
    let count = lines.filter(is_missed).count();
    if count > 0 {
        let what =
            if count == 1 { "a notification or an answer" } else { &format!("{count} notifications or answers") };
        say(&format!("the connection was lost while it was written to; {what} of the client may not have arrived"));
    }
}

/// Holds a part of stdin, but for what is about something that the daemon still has.
async fn hold(shared: &Rc<Shared>, mut bytes: &[u8]) {
    let is_sending = shared.repeat.borrow().is_sending();
    let mut urgent = Vec::new();
    if !is_sending && shared.waiting.borrow().is_mid_line() {
        let end = memchr(b'\n', bytes).map_or(bytes.len(), |end| end + 1);
        urgent.extend_from_slice(&bytes[..end]);
        bytes = &bytes[end..];
    }
    let has_pending = !shared.waiting.borrow().is_empty();
    // In ACP a turn may go on after its prompt was answered.
    let may_have_turn = if is_sending { has_pending } else { !shared.is_over.get() };
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let mut repeat = shared.repeat.borrow_mut();
        let is_whole = !repeat.is_mid_held_line() && line.ends_with(b"\n");
        let cancelled = Cancelled::by(line).filter(|_| is_whole);
        let may_be_there = may_have_turn && cancelled.as_ref().is_some_and(Cancelled::is_turn);
        if let Some(answers) = cancelled.and_then(|cancelled| repeat.cancel(&cancelled)) {
            answer(shared, answers);
            if !may_be_there {
                continue;
            }
        }
        let urgency = match is_sending || !is_whole {
            true => Urgency::Held,
            false => Urgency::of(line, has_pending || may_be_there),
        };
        match urgency {
            Urgency::Held => repeat.hold(line),
            Urgency::Sent => urgent.extend_from_slice(line),
        }
    }
    if !urgent.is_empty() {
        shared.waiting.borrow_mut().sending(&urgent);
        // That the connection is lost, the receiving side notices.
        let (result, urgent) = shared.send(&shared.sink(), urgent).await;
        if result.is_err() {
            lost(&urgent);
        }
    }
    while shared.repeat.borrow().is_full() {
        shared.reconnected.notified().await;
    }
}

/// Answers what the editor has cancelled, as soon as that can be done.
fn answer(shared: &Rc<Shared>, answers: Vec<u8>) {
    if !answers.is_empty() {
        let shared = Rc::clone(shared);
        spawn(async move {
            let _writing = shared.between_lines().await;
            // Whether stdout can be written, `from_daemon` notices.
            let _ = shared.stdout.write(answers).await;
        });
    }
}

/// Copies the daemon's output to stdout.
async fn from_daemon(mut source: LinkSource, sink: Sink, stdout: Rc<Stream>, shared: Rc<Shared>) {
    let connection = shared.connection.get();
    // A request over HTTP is repeated by its own exchange.
    let sifts = !matches!(source, LinkSource::Mcp(_));
    let mut buffer = Vec::with_capacity(BLOCK);
    let mut guard = Guard::default();
    let event = loop {
        let received = source.receive(buffer).await;
        buffer = received.1;
        let mut ended = None;
        match received.0 {
            Ok(()) => shared.blocks.set(shared.blocks.get() + 1),
            Err(ending) => {
                buffer = shared.repeat.borrow_mut().take_tail();
                ended = Some(BridgeEvent::DaemonEnded(connection, ending));
            }
        }
        let checked = if ended.is_none() { guard.check(&mut buffer) } else { Ok(()) };
        if sifts && ended.is_none() {
            let held_before = shared.repeat.borrow().is_holding();
            shared.repeat.borrow_mut().sift(&mut buffer, &mut shared.waiting.borrow_mut());
            if !held_before && shared.repeat.borrow().is_holding() {
                let _ = shared.events.send(BridgeEvent::Held).await;
            }
            shared.was_opened.notify_one();
        }
        let writing = shared.writing.lock().await;
        let written = stdout.write(buffer).await;
        buffer = written.1;
        match written.0 {
            Ok(()) => shared.waiting.borrow_mut().passed(&buffer),
            Err(error) => break BridgeEvent::OutputFailed(error),
        }
        drop(writing);
        if let Some(ended) = ended {
            break ended;
        }
        for id in source.given_up() {
            shared.waiting.borrow_mut().forget(&id);
        }
        if let Err(foreign) = checked {
            break BridgeEvent::DaemonEnded(connection, Ending::NonJsonOutput(foreign));
        }
        shared.close_if_done(&sink);
    };
    let _ = shared.events.send(event).await;
}

/// Answers each request with an error, until stdin ends or for a limited time.
async fn refuse(stdin: &Stream, stdout: &Stream, refusal: &LinkRefusal) {
    if io::stdin().is_terminal() {
        // An interactive user does not type JSON-RPC just to have it refused.
        return;
    }
    let (mut waiting, mut mark) = (Waiting::default(), Mark::default());
    let mut until = Instant::now() + FIRST_REQUEST_LIMIT;
    let mut refused = false;
    let mut buffer = Vec::with_capacity(BLOCK);
    loop {
        let Ok(read) = timeout_at(until, stdin.read(buffer)).await else { return };
        buffer = read.1;
        let ended = !matches!(read.0, Ok(1..));
        if ended {
            let _ = waiting.sent_all();
        } else {
            mark.skip(&mut buffer);
            waiting.sending(&buffer);
        }
        let errors: Vec<u8> = waiting.take().iter().flat_map(|id| refusal.error(id)).collect();
        if !refused && !errors.is_empty() {
            // Not extended by further requests: an editor that continues to send has to see the end, too.
            until = Instant::now() + NEXT_REQUEST_LIMIT;
            refused = true;
        }
        let written = timeout(LAST_WORDS_LIMIT, stdout.write(errors)).await;
        if ended || !matches!(written, Ok((Ok(()), _))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    const REQUEST: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n";
    const REFUSAL: &str = concat!(
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32016,"message":"","#,
        r#""data":{"reason":"shutting_down","delivered":false}}}"#,
        "\n"
    );

    #[test]
    fn without_an_initialize_a_request_is_sent_again_only_on_a_connection_that_lasts() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let (socket, mut peer) = UnixStream::pair().expect("two sockets");
            let sink = Sink::Lines(Rc::new(Stream::new(socket.into(), Backend::Threads).expect("a descriptor")));
            let open = |fd: BorrowedFd<'_>| {
                Stream::new(fd.try_clone_to_owned().expect("a descriptor"), Backend::Threads).expect("a descriptor")
            };
            let (stdin, stdout) = (Rc::new(open(io::stdin().as_fd())), Rc::new(open(io::stdout().as_fd())));
            let shared = Shared::new(sink.clone(), stdin, stdout, channel(8).0);
            shared.waiting.borrow_mut().sending(REQUEST.as_bytes());
            let mut refusal = REFUSAL.into();
            shared.repeat.borrow_mut().sift(&mut refusal, &mut shared.waiting.borrow_mut());
            shared.repeat.borrow_mut().begin_again(None);
            let again = spawn(send_again(sink.clone(), Rc::clone(&shared), Duration::MAX));
            yield_now().await;
            shared.end_sending();
            again.await.expect("it ends with the connection");
            assert_eq!(shared.repeat.borrow().count(), 1, "it can be sent on another one");
            shared.is_over.set(false);
            send_again(sink, Rc::clone(&shared), Duration::ZERO).await;
            let mut sent = vec![0; REQUEST.len()];
            peer.read_exact(&mut sent).expect("it was sent");
            assert_eq!((sent, shared.repeat.borrow().count()), (REQUEST.into(), 0));
        });
    }

    #[test]
    fn a_repeated_initialize_is_awaited_for_longer_than_systemd_lets_the_old_daemon_drain() {
        let unit = include_str!("../../../../config/systemd/stdio_bus.service");
        let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("the unit limits it");
        let stop = Duration::from_secs(stop.parse().expect("seconds"));
        assert!(OPENING_LIMIT >= stop + Duration::from_secs(30), "an agent may need some time, too");
    }
}
