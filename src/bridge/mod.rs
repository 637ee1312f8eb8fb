//! The bridge, `stdio_bus acp`: an editor starts it as its agent, and it connects the editor's two pipes to a running
//! daemon. What comes in on stdin goes to the daemon's socket and what the daemon says goes to stdout, to the byte.
//!
//! It never writes anything to stdout but lines of the daemon and JSON-RPC errors for requests whose answers can no
//! longer come, it never changes a flag of the files that it was given, and it holds at most one block in each
//! direction: a reader that is slow slows the daemon.
//!
//! | what happens | what the bridge does |
//! |---|---|
//! | stdin ends | tells the daemon so (half-close), passes on what is still answered, exits with 0 when the daemon closes |
//! | stdin has ended and nobody reads stdout | exits with 0: the editor is gone |
//! | the daemon closes | an error for each request that waits; exits with 1, or 0 if stdin had ended and nothing waited |
//! | the daemon cannot be reached | an error for each request that comes, for a while; exits with 1 |
//! | nobody reads stdout | exits with 0 |
//! | SIGTERM, SIGINT | ends at once: their default is not changed, and the kernel closes the socket |
//!
//! Reading order: this file is the life of a bridge; `stream.rs` reads and writes, `dial.rs` connects, `waiting.rs`
//! knows what waits, by what `follow.rs` reads along.

mod dial;
mod follow;
mod stream;
mod waiting;

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IsTerminal};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{Shutdown, connect_unspec, shutdown};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::{LocalSet, spawn_local as spawn};
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::Address;
use crate::bus::reply::{self, Delivered};
use crate::error::{StartError, exit};
use stream::{Means, Stream};
use waiting::Waiting;

/// Bytes that are read at once; measured best for pipes and sockets alike.
const BLOCK: usize = 64 * 1024;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long requests are awaited that can only be refused, so that the editor can show why.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long further requests are awaited after one was refused.
const NEXT_REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// How long the daemon may be silent after the end of stdin when nothing waits, before the bridge closes by itself.
const LINGER: Duration = Duration::from_secs(10);

/// How long the last errors may take to be read, and the daemon's last words to come after it stopped listening.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(2);

/// Why a request is refused, as its error says.
#[derive(Clone, Copy)]
struct Refusal {
    code: i32,
    message: &'static str,
    reason: &'static str,
    delivered: Delivered,
}

/// The daemon closed the connection, or was ended.
const GONE: Refusal = Refusal {
    code: -32017,
    message: "the connection to the bus was lost",
    reason: "daemon_gone",
    delivered: Delivered::Yes,
};

/// There was no connection to begin with.
const UNREACHABLE: Refusal = Refusal {
    code: -32018,
    message: "the bus cannot be reached",
    reason: "daemon_unreachable",
    delivered: Delivered::No,
};

/// Bridges stdin and stdout and the daemon until one of them ends, and returns what the program exits with. What went
/// wrong was said on stderr. The caller is expected to exit: reads may still be under way on stdin.
///
/// # Errors
/// Stdin or stdout cannot be used.
pub fn run(daemon: &Address) -> Result<u8, StartError> {
    // Editors run in containers that block io_uring; a bridge can do without.
    // Three reads or writes are under way at most, and a small ring fits into a small limit of locked memory.
    let ring = probe_ring().and_then(|()| tokio_uring::Runtime::new(tokio_uring::builder().entries(16)));
    // Dropping a runtime would wait for the read of stdin, which may never end.
    match ring {
        Ok(runtime) => {
            let runtime = ManuallyDrop::new(runtime);
            runtime.block_on(serve(daemon, Means::Ring))
        }
        Err(_) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = ManuallyDrop::new(runtime.map_err(StartError::io("wait for stdin"))?);
            LocalSet::new().block_on(&runtime, serve(daemon, Means::Threads))
        }
    }
}

async fn serve(daemon: &Address, means: Means) -> Result<u8, StartError> {
    let connection = dial::dial(daemon, CONNECT_LIMIT);
    let open = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().and_then(|fd| Stream::new(fd, means));
    let stdin = Rc::new(open(io::stdin().as_fd()).map_err(StartError::io("use stdin"))?);
    let stdout = Rc::new(open(io::stdout().as_fd()).map_err(StartError::io("use stdout"))?);
    match connection.and_then(|socket| Stream::new(socket, means)) {
        Ok(socket) => {
            let socket = Rc::new(socket);
            let code = bridge(daemon, stdin, stdout, Rc::clone(&socket)).await;
            // The kernel takes its time with a socket that a read is still under way on.
            let _ = shutdown(socket.fd(), Shutdown::Both);
            Ok(code)
        }
        Err(error) => {
            say(&format!("cannot connect to {daemon}: {error}\n{}", dial::remedy(daemon, &error)));
            refuse(&stdin, &stdout).await;
            Ok(exit::FAILURE)
        }
    }
}

/// Sends one operation through a ring: a sandbox may allow the setup and then refuse the rest.
fn probe_ring() -> io::Result<()> {
    let mut ring = io_uring::IoUring::new(2)?;
    let nothing = io_uring::opcode::Nop::new().build();
    // SAFETY: the operation has no buffer and no file that would have to outlive it, and a new ring is not full.
    unsafe { ring.submission().push(&nothing) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    Ok(())
}

/// What the tasks of a bridge report to its life.
enum Event {
    /// Stdin has ended; the daemon knows.
    InputEnded,
    /// The daemon takes nothing more.
    NotHeard,
    /// The daemon says nothing more; an error if it was not a proper end.
    DaemonEnded(Option<io::Error>),
    /// Stdout cannot be written.
    OutputFailed(io::Error),
    /// Stdin has ended and nobody reads stdout.
    ReaderGone,
}

/// What the tasks of a bridge share.
struct Shared {
    waiting: RefCell<Waiting>,
    /// Blocks that came from the daemon.
    blocks: Cell<u64>,
    events: Sender<Event>,
}

async fn bridge(daemon: &Address, stdin: Rc<Stream>, stdout: Rc<Stream>, socket: Rc<Stream>) -> u8 {
    // Each task reports once, and no report waits for another to be taken.
    let (events, mut reports) = channel(4);
    let shared = Rc::new(Shared { waiting: RefCell::default(), blocks: Cell::new(0), events });
    spawn(to_daemon(stdin, Rc::clone(&socket), Rc::clone(&shared)));
    spawn(from_daemon(Rc::clone(&socket), Rc::clone(&stdout), Rc::clone(&shared)));

    let mut input_ended = false;
    let mut not_heard = None;
    let mut silent_since = shared.blocks.get();
    let cause = loop {
        let report = match not_heard {
            Some(until) => timeout_at(until, reports.recv()).await,
            None if input_ended => timeout(LINGER, reports.recv()).await,
            None => Ok(reports.recv().await),
        };
        match report {
            Ok(Some(Event::InputEnded)) => {
                input_ended = true;
                let (stdout, shared) = (Rc::clone(&stdout), Rc::clone(&shared));
                spawn(async move {
                    stdout.reader_gone().await;
                    let _ = shared.events.send(Event::ReaderGone).await;
                });
            }
            // What it said before it stopped listening may still be under way.
            Ok(Some(Event::NotHeard)) => not_heard = Some(Instant::now() + LAST_WORDS_LIMIT),
            Ok(Some(Event::DaemonEnded(cause))) => break cause,
            // An editor that leaves is no failure of ours.
            Ok(Some(Event::ReaderGone)) => {
                abandon(&socket, &shared);
                return exit::OK;
            }
            Ok(Some(Event::OutputFailed(error))) => {
                abandon(&socket, &shared);
                return output_failed(&error);
            }
            Ok(None) => break None,
            Err(_) if not_heard.is_some() => break None,
            Err(_) => {
                let blocks = shared.blocks.get();
                if shared.waiting.borrow().is_empty() && blocks == silent_since {
                    return exit::OK;
                }
                silent_since = blocks;
            }
        }
    };
    ended(daemon, &stdout, &shared, input_ended, cause).await
}

/// The daemon is gone: answers what waits.
async fn ended(daemon: &Address, stdout: &Stream, shared: &Shared, input_ended: bool, cause: Option<io::Error>) -> u8 {
    let (requests, broken_line) = {
        let mut waiting = shared.waiting.borrow_mut();
        (waiting.take(), !waiting.at_line_start())
    };
    if requests.is_empty() && input_ended && !broken_line {
        return exit::OK;
    }
    let mut last = Vec::new();
    if broken_line {
        last.push(b'\n');
    }
    for id in &requests {
        last.extend(error(id, GONE));
    }
    match timeout(LAST_WORDS_LIMIT, stdout.write(last)).await {
        Ok((Err(error), _)) if error.kind() != ErrorKind::BrokenPipe => say(&format!("cannot write stdout: {error}")),
        _ => {}
    }
    let cause = cause.map_or_else(|| "it closed the connection".to_owned(), |error| error.to_string());
    let waited = match requests.len() {
        0 => String::new(),
        1 => "; 1 request was not answered".to_owned(),
        count => format!("; {count} requests were not answered"),
    };
    say(&format!("the daemon at {daemon} is gone: {cause}{waited}\nits log says why; start it again if it has ended"));
    exit::FAILURE
}

/// Lets the daemon know that nobody wants the answers that it still owes, so that no agent works for them any more.
fn abandon(socket: &Stream, shared: &Shared) {
    if !shared.waiting.borrow().is_empty() {
        // After the end of stdin, closing a TCP connection sends nothing more; a reset does. A Unix socket refuses
        // this, and shows its closing anyway.
        let _ = connect_unspec(socket.fd());
    }
}

fn output_failed(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return exit::OK;
    }
    say(&format!("cannot write stdout: {error}"));
    exit::FAILURE
}

/// Passes stdin on to the daemon.
async fn to_daemon(stdin: Rc<Stream>, socket: Rc<Stream>, shared: Rc<Shared>) {
    let mut buffer = Vec::with_capacity(BLOCK);
    loop {
        let read = stdin.read(buffer).await;
        buffer = read.1;
        match read.0 {
            Ok(0) => break,
            Ok(_) => {}
            // A terminal that is hung up says so with an error; whatever it is, nothing more comes.
            Err(error) => {
                say(&format!("cannot read stdin: {error}"));
                break;
            }
        }
        shared.waiting.borrow_mut().sending(&buffer);
        let written = socket.write(buffer).await;
        buffer = written.1;
        if written.0.is_err() {
            let _ = shared.events.send(Event::NotHeard).await;
            return;
        }
    }
    shared.waiting.borrow_mut().sent_all();
    // It fails only if the connection is lost, which the other direction sees.
    let _ = shutdown(socket.fd(), Shutdown::Write);
    let _ = shared.events.send(Event::InputEnded).await;
}

/// Passes on to stdout what the daemon says.
async fn from_daemon(socket: Rc<Stream>, stdout: Rc<Stream>, shared: Rc<Shared>) {
    let mut buffer = Vec::with_capacity(BLOCK);
    let event = loop {
        let read = socket.read(buffer).await;
        buffer = read.1;
        match read.0 {
            Ok(0) => break Event::DaemonEnded(None),
            Ok(_) => shared.blocks.set(shared.blocks.get() + 1),
            Err(error) => break Event::DaemonEnded(Some(error)),
        }
        let written = stdout.write(buffer).await;
        buffer = written.1;
        match written.0 {
            Ok(()) => shared.waiting.borrow_mut().passed(&buffer),
            Err(error) => break Event::OutputFailed(error),
        }
    };
    let _ = shared.events.send(event).await;
}

/// Answers each request that comes with an error, until stdin ends or for a while.
async fn refuse(stdin: &Stream, stdout: &Stream) {
    if io::stdin().is_terminal() {
        // Nobody types JSON-RPC just to have it refused.
        return;
    }
    let mut waiting = Waiting::default();
    let mut until = Instant::now() + FIRST_REQUEST_LIMIT;
    let mut refused = false;
    let mut buffer = Vec::with_capacity(BLOCK);
    loop {
        let Ok(read) = timeout_at(until, stdin.read(buffer)).await else { return };
        buffer = read.1;
        let ended = !matches!(read.0, Ok(1..));
        if ended {
            waiting.sent_all();
        } else {
            waiting.sending(&buffer);
        }
        let errors: Vec<u8> = waiting.take().iter().flat_map(|id| error(id, UNREACHABLE)).collect();
        if !refused && !errors.is_empty() {
            // Not put off by each further request: an editor that goes on asking must see the end too.
            until = Instant::now() + NEXT_REQUEST_LIMIT;
            refused = true;
        }
        let written = timeout(LAST_WORDS_LIMIT, stdout.write(errors)).await;
        if ended || !matches!(written, Ok((Ok(()), _))) {
            return;
        }
    }
}

fn error(id: &[u8], refusal: Refusal) -> Vec<u8> {
    reply::error(id, None, refusal.code, refusal.message, refusal.reason, refusal.delivered)
}

/// Says something to the person who reads the editor's log of its agent.
fn say(message: &str) {
    use std::io::Write;
    // Without a reader of stderr there is nobody to tell, and nothing to do about it.
    let _ = writeln!(io::stderr(), "stdio_bus acp: {message}");
}
