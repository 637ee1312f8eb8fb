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
//! | stdin ends | cancels pending prompts (`session/cancel`), tells the daemon (half-close; a WebSocket is closed once all is answered), passes on outstanding answers, exits with 0 when the daemon closes |
//! | stdin has ended and stdout is closed | exits with 0: the editor is gone |
//! | the daemon closes | an error for each pending request; exits with 1, or 0 if stdin had ended and nothing was pending |
//! | the daemon cannot be reached, refuses, or closes before any request | an error for each further request, for a while; exits with 1 |
//! | received data is not JSON-RPC | none of it is passed on; an error for each pending request; exits with 1 |
//! | stdout is closed | exits with 0 |
//! | SIGTERM, SIGINT | ends at once: their default action is kept, and the kernel closes the socket |
//!
//! Reading order: this file is the life cycle of a bridge; `daemon.rs` has its options, `link.rs` the connection to the
//! daemon, `stream.rs` reads and writes, with threads or the ring of `ring.rs`, `failure.rs` describes failures and
//! `refusal.rs` answers requests with them; `waiting.rs` tracks pending requests, which `follow.rs` finds in the streams,
//! and `guard.rs` lets only messages through. `websocket.rs` is the WebSocket connection, with `frames.rs` and `tls.rs`.
//! `call.rs` is `stdio_bus call`, on the same connections; `run.rs` runs both.

mod begun;
mod call;
mod daemon;
mod failure;
mod follow;
mod frames;
mod guard;
mod http;
mod link;
mod mark;
mod refusal;
mod ring;
mod run;
mod stream;
mod terms;
mod tls;
mod waiting;
mod websocket;

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_local as spawn;
use tokio::time::{Instant, timeout, timeout_at};

use crate::bus::reply::Delivered;
use crate::error::{StartError, exit};
use begun::BegunLine;
use failure::Ending;
use guard::Guard;
use link::{Sink, Source};
use mark::Mark;
use refusal::Refusal;
use stream::{Backend, Stream};
use terms::{BLOCK, CONNECT_LIMIT, LAST_WORDS_LIMIT, say};
use waiting::{Asker, Farewell, Overlong, Waiting};

pub use call::{Call, Handshake, call};
pub use daemon::{Daemon, Options, Url, User};

/// How long to wait for requests that can only be refused, so that the editor can show why.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long to wait for further requests after one was refused.
const NEXT_REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// How long the daemon may be silent after the end of stdin with nothing pending, before the bridge closes the
/// connection.
const LINGER: Duration = Duration::from_secs(10);

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
        Ok((sink, source)) => Ok(bridge(options, stdin, stdout, sink, source).await),
        Err(failure) => {
            let remedy = failure.remedy(options);
            say(format!("cannot connect to {}: {failure}\n{remedy}", options.daemon).trim_end());
            refuse(&stdin, &stdout, &Refusal::of(options, &failure)).await;
            Ok(exit::FAILURE)
        }
    }
}

/// Events from the tasks of a bridge.
enum Event {
    /// Stdin has ended, and the daemon was told.
    InputEnded,
    /// The daemon has stopped reading.
    NotHeard,
    /// The daemon has stopped sending.
    DaemonEnded(Ending),
    /// Stdout cannot be written.
    OutputFailed(io::Error),
    /// Stdin has ended and stdout is closed.
    ReaderGone,
}

/// The state shared by the tasks of a bridge.
struct Shared {
    waiting: RefCell<Waiting>,
    /// Stdin has brought some input.
    has_asked: Cell<bool>,
    /// Stdin has ended, and all of it was sent to the daemon.
    input_ended: Cell<bool>,
    /// Stdin was read, or has ended.
    was_read: Notify,
    /// The connection has ended in both directions.
    has_ended: Cell<bool>,
    /// Number of blocks received from the daemon.
    blocks: Cell<u64>,
    events: Sender<Event>,
}

impl Shared {
    /// Closes the connection once stdin has ended and nothing is pending.
    fn close_if_done(&self, sink: &Sink) {
        if self.input_ended.get() && self.waiting.borrow().is_empty() {
            sink.all_is_answered();
        }
    }
}

async fn bridge(options: &Options, stdin: Rc<Stream>, stdout: Rc<Stream>, sink: Sink, source: Source) -> u8 {
    // Each task reports once, and no report waits for another to be handled.
    let (events, mut reports) = channel(4);
    let shared = Rc::new(Shared {
        waiting: RefCell::default(),
        has_asked: Cell::new(false),
        input_ended: Cell::new(false),
        was_read: Notify::new(),
        has_ended: Cell::new(false),
        blocks: Cell::new(0),
        events,
    });
    let connection = source.connection_id().map(|id| format!(" (connection {id})")).unwrap_or_default();
    spawn(to_daemon(stdin, sink.clone(), Rc::clone(&shared)));
    spawn(from_daemon(source, sink.clone(), Rc::clone(&stdout), Rc::clone(&shared)));

    let (ending, input_ended) = match until_ended(&mut reports, &shared, &stdout, &sink).await {
        Ok(ended) => ended,
        Err(code) => return code,
    };
    let nothing_came = shared.blocks.get() == 0 && matches!(options.daemon, Daemon::Lines(_));
    let ending = ending.explained(shared.waiting.borrow().last_word(), nothing_came);
    let was_asked = shared.has_asked.get();
    if !was_asked && !input_ended {
        // Input is in flight, and the editor would not learn why it gets no answer.
        shared.has_ended.set(true);
        sink.leave(Some(&ending)).await;
        first_request(&shared).await;
    }
    let input_ended = input_ended || shared.input_ended.get();
    // Only a daemon could have answered; and what was not sent was not delivered.
    let was_taken = was_asked && !ending.is_elsewhere() && !ending.is_refusal();
    let delivered = if was_taken { Delivered::Yes } else { Delivered::No };
    let code = ended(options, &connection, &stdout, &shared, input_ended, &ending, delivered).await;
    sink.leave(Some(&ending)).await;
    code
}

/// Waits until the daemon has ended. Returns how, and whether stdin had ended before.
///
/// # Errors
/// The editor has left first: the exit code.
async fn until_ended(
    reports: &mut Receiver<Event>,
    shared: &Rc<Shared>,
    stdout: &Rc<Stream>,
    sink: &Sink,
) -> Result<(Ending, bool), u8> {
    let mut input_ended = false;
    let mut not_heard = None;
    let mut silent_since = shared.blocks.get();
    let ending = loop {
        let report = match not_heard {
            Some(until) => timeout_at(until, reports.recv()).await,
            None if input_ended => timeout(LINGER, reports.recv()).await,
            None => Ok(reports.recv().await),
        };
        match report {
            Ok(Some(Event::InputEnded)) => {
                input_ended = true;
                let (stdout, shared) = (Rc::clone(stdout), Rc::clone(shared));
                spawn(async move {
                    stdout.reader_gone().await;
                    let _ = shared.events.send(Event::ReaderGone).await;
                });
            }
            // Its last output, before it stopped reading, may still be in flight.
            Ok(Some(Event::NotHeard)) => not_heard = Some(Instant::now() + LAST_WORDS_LIMIT),
            Ok(Some(Event::DaemonEnded(ending))) => break ending,
            // An editor that leaves is not a failure.
            Ok(Some(Event::ReaderGone)) => {
                left_alone(sink, shared).await;
                return Err(exit::OK);
            }
            Ok(Some(Event::OutputFailed(error))) => {
                left_alone(sink, shared).await;
                return Err(output_failed(&error));
            }
            Ok(None) => break Ending::Closed,
            Err(_) if not_heard.is_some() => break Ending::Closed,
            Err(_) => {
                let blocks = shared.blocks.get();
                if shared.waiting.borrow().is_empty() && blocks == silent_since {
                    sink.leave(None).await;
                    return Err(exit::OK);
                }
                silent_since = blocks;
            }
        }
    };
    Ok((ending, input_ended))
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
    if requests.is_empty() && input_ended && !broken_line && overlong.is_none() {
        return exit::OK;
    }
    let mut last = Vec::new();
    if broken_line {
        last.push(b'\n');
    }
    let mut unanswered = requests.len();
    match &overlong {
        Some(Overlong { length, asker: Asker::Waits(id) }) => {
            unanswered += 1;
            last.extend(Refusal::too_long(options, ending, *length, Delivered::No).error(id));
        }
        Some(Overlong { length, asker: Asker::Unknown }) => {
            last.extend(Refusal::too_long(options, ending, *length, Delivered::Nothing).error(b"null"));
        }
        Some(Overlong { asker: Asker::Knows, .. }) | None => {}
    }
    let over = Refusal::over(options, ending, delivered);
    for id in &requests {
        last.extend(over.error(id));
    }
    match timeout(LAST_WORDS_LIMIT, stdout.write(last)).await {
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

/// Handles a closed stdout: tells the daemon that the outstanding answers are not wanted, so that no agent works on
/// them any longer.
async fn left_alone(sink: &Sink, shared: &Shared) {
    if shared.waiting.borrow().is_empty() {
        sink.leave(None).await;
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

/// Copies stdin to the daemon.
async fn to_daemon(stdin: Rc<Stream>, sink: Sink, shared: Rc<Shared>) {
    let mut buffer = Vec::with_capacity(BLOCK);
    let (mut begun, mut mark) = (BegunLine::default(), Mark::default());
    loop {
        let read = stdin.read(buffer).await;
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
        shared.waiting.borrow_mut().sending(&buffer);
        shared.was_read.notify_one();
        if shared.has_ended.get() {
            continue;
        }
        let before = begun.hold_back(&mut buffer);
        if !before.is_empty() && sink.send(before).await.0.is_err() {
            let _ = shared.events.send(Event::NotHeard).await;
            return;
        }
        if buffer.is_empty() {
            continue;
        }
        let written = sink.send(buffer).await;
        buffer = written.1;
        if written.0.is_err() {
            let _ = shared.events.send(Event::NotHeard).await;
            return;
        }
    }
    let Farewell { lines, is_whole } = shared.waiting.borrow_mut().sent_all();
    let last = match (is_whole, begun.has_gone()) {
        (true, _) => [begun.take(), lines].concat(),
        // Each line has a request of its own there, which gets an error.
        (false, false) if sink.answers_each_line() => [begun.take(), b"\n".to_vec(), lines].concat(),
        // Half a message would end the connection before the outstanding answers.
        (false, false) => {
            say(&format!("stdin has ended within a line; {} bytes of it are dropped", begun.take().len()));
            lines
        }
        // Nothing can follow the partial line that the daemon has. The daemon drops it, and answers the rest.
        (false, true) => Vec::new(),
    };
    if !last.is_empty() {
        // It fails only if the connection is lost, which the receiving side notices.
        let _ = sink.send(last).await;
    }
    sink.end().await;
    shared.input_ended.set(true);
    shared.was_read.notify_one();
    shared.close_if_done(&sink);
    let _ = shared.events.send(Event::InputEnded).await;
}

/// Copies the daemon's output to stdout.
async fn from_daemon(mut source: Source, sink: Sink, stdout: Rc<Stream>, shared: Rc<Shared>) {
    let mut buffer = Vec::with_capacity(BLOCK);
    let mut guard = Guard::default();
    let event = loop {
        let received = source.receive(buffer).await;
        buffer = received.1;
        match received.0 {
            Ok(()) => shared.blocks.set(shared.blocks.get() + 1),
            Err(ending) => break Event::DaemonEnded(ending),
        }
        let checked = guard.check(&mut buffer);
        let written = stdout.write(buffer).await;
        buffer = written.1;
        match written.0 {
            Ok(()) => shared.waiting.borrow_mut().passed(&buffer),
            Err(error) => break Event::OutputFailed(error),
        }
        for id in source.given_up() {
            shared.waiting.borrow_mut().forget(&id);
        }
        if let Err(foreign) = checked {
            break Event::DaemonEnded(Ending::Foreign(foreign));
        }
        shared.close_if_done(&sink);
    };
    let _ = shared.events.send(event).await;
}

/// Answers each request with an error, until stdin ends or for a limited time.
async fn refuse(stdin: &Stream, stdout: &Stream, refusal: &Refusal) {
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
            // Not extended by further requests: an editor that goes on sending has to see the end, too.
            until = Instant::now() + NEXT_REQUEST_LIMIT;
            refused = true;
        }
        let written = timeout(LAST_WORDS_LIMIT, stdout.write(errors)).await;
        if ended || !matches!(written, Ok((Ok(()), _))) {
            return;
        }
    }
}
