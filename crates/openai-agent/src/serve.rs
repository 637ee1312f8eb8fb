//! The shell: the one place where the agent meets stdin, stdout, the network, the disk and the signals.
//!
//! One thread runs everything; each turn is its own task. Blocking work (history files, name resolution) is done on a
//! helper thread that lives as long as needed. The agent is never borrowed across an await.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::timeout;

use super::acp::{Agent, Effect, ToStore};
use super::answer::{Ending, Piece};
use super::client::{Client, Opened};
use super::config::Config;
use super::dialect;
use super::failure::Failure;
use super::history::Store;
use super::session::TurnId;
use super::stdio::{self, Line, Lines, STOP_READING, Stdio, note};

/// How long to wait for the end of a response after its answer is complete, to reuse the connection.
const TAIL: Duration = Duration::from_secs(1);

/// Number of sessions read from disk at once, to bound the memory for it.
const LARGE_WORKS: usize = 4;

/// Maximum number of log lines about skipped events of one answer.
const SKIPPED_LINES: usize = 3;

struct Shell {
    config: Rc<Config>,
    agent: RefCell<Agent>,
    client: Client,
    store: Option<Store>,
    tasks: RefCell<HashMap<TurnId, Task>>,
    large_works: Semaphore,
    /// Something was put into the outbox.
    has_lines: Notify,
    /// The outbox became shorter.
    has_room: Notify,
}

struct Task {
    abort: AbortHandle,
    resume: Rc<Notify>,
}

/// Raises the limit of open files to the maximum: a session that streams over HTTP/1.1 has a socket, and the usual soft
/// limit of 1,024 is only a convention.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        note!(Info, "The limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// Returns the memory of a large answer to the system when it is freed. glibc by itself keeps tens of megabytes once
/// one was freed: it adapts its threshold to the size (M_MMAP_THRESHOLD in mallopt(3)).
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) takes two numbers and is called before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// Whether the parent process has SIGHUP ignored (the first bit of a mask in proc(5)).
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Runs the agent on stdin and stdout until the input ends, a signal arrives or stdout is closed.
pub fn serve(config: Config) -> ExitCode {
    raise_open_files();
    give_memory_back();
    block_on(run(config)).unwrap_or_else(|code| code)
}

/// Runs a task, and those that it starts, on this thread.
///
/// # Errors
/// There is no event loop; that was logged.
pub fn block_on<T>(task: impl Future<Output = T>) -> Result<T, ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        eprintln!("openai-agent: error: The event loop cannot be started: {error}");
        ExitCode::FAILURE
    })?;
    let outcome = LocalSet::new().block_on(&runtime, task);
    // Pending disk writes have had their time; nothing else is worth waiting for.
    runtime.shutdown_background();
    Ok(outcome)
}

/// What cannot be used, and the exit code.
type Unusable = (String, u8);

/// Prepares everything before the first line is read. Certificates, keys and proxies are checked now, so that a mistake
/// shows at startup and not at the first prompt.
fn prepare(config: Rc<Config>) -> Result<(Rc<Shell>, Stdio, Stdio, impl Future<Output = ()>), Unusable> {
    let store = config.history_dir.as_deref().map(|dir| Store::open(dir, config.limits.history)).transpose();
    let store = store.map_err(|error| (format!("OPENAI_HISTORY_DIR cannot be used: {error}"), 78))?;
    let unusable = |error: io::Error| (format!("stdin and stdout have to be open: {error}"), 1);
    let (stdin, stdout) = (Stdio::stdin().map_err(unusable)?, Stdio::stdout().map_err(unusable)?);
    let signals = signals().map_err(|error| (format!("Signals cannot be handled: {error}"), 1))?;
    let client = Client::new(config.clone()).map_err(|problem| (problem, 78))?;
    let secrets = client.secrets().clone();
    stdio::hide(Box::new(move |line| secrets.mask(line)));
    if config.endpoint.tls_insecure {
        note!(Warn, "{}", super::config::INSECURE);
    }
    let shell = Shell {
        agent: RefCell::new(Agent::new(config.clone(), Box::new(stdio::random))),
        client,
        store,
        tasks: RefCell::default(),
        large_works: Semaphore::new(LARGE_WORKS),
        has_lines: Notify::new(),
        has_room: Notify::new(),
        config,
    };
    Ok((Rc::new(shell), stdin, stdout, signals))
}

async fn run(config: Config) -> ExitCode {
    let prepared = prepare(Rc::new(config)).map_err(|(problem, code)| {
        note!(Error, "{problem}");
        ExitCode::from(code)
    });
    let (shell, stdin, stdout, signals) = match prepared {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    if shell.config.fetch_models {
        spawn_local(fetch_models(shell.clone()));
    }
    let writer = spawn_local(write(shell.clone(), stdout));
    let code = tokio::select! {
        outcome = read(&shell, &stdin) => match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                note!(Error, "stdin cannot be read: {error}");
                ExitCode::FAILURE
            }
        },
        () = signals => ExitCode::SUCCESS,
        // Stdout is closed, so nothing can be reported.
        _ = gone(&shell, &writer) => return ExitCode::SUCCESS,
    };
    shell.agent.borrow_mut().cancel_all();
    shell.act();
    let farewell = async {
        while !shell.agent.borrow().is_idle() && !writer.is_finished() {
            shell.has_room.notified().await;
        }
    };
    // Time limit for the last lines.
    let _ = timeout(Duration::from_millis(500), farewell).await;
    code
}

/// Waits for one of the signals that end the process. SIGHUP is ignored if it was ignored at startup: under nohup the
/// agent must outlive the terminal.
fn signals() -> io::Result<impl Future<Output = ()>> {
    let mut signals = vec![signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    if !hangups_are_ignored() {
        signals.extend(signal(SignalKind::hangup()));
    }
    Ok(poll_fn(move |context| match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }))
}

/// Waits for the end of the writer, which ends only when stdout is broken.
async fn gone(shell: &Shell, writer: &tokio::task::JoinHandle<()>) {
    while !writer.is_finished() {
        shell.has_room.notified().await;
    }
}

impl Shell {
    /// Performs the agent's effects and wakes the writer.
    fn act(self: &Rc<Self>) {
        loop {
            let effect = self.agent.borrow_mut().next_effect();
            let Some(effect) = effect else { break };
            match effect {
                Effect::Start(turn) => {
                    let resume = Rc::new(Notify::new());
                    let task = spawn_local(run_turn(self.clone(), turn, resume.clone()));
                    self.tasks.borrow_mut().insert(turn, Task { abort: task.abort_handle(), resume });
                }
                // Dropping the task drops the response, and with it the connection or the stream.
                Effect::Stop(turn) => {
                    if let Some(task) = self.tasks.borrow_mut().remove(&turn) {
                        task.abort.abort();
                    }
                }
                Effect::Resume(turn) => {
                    if let Some(task) = self.tasks.borrow().get(&turn) {
                        task.resume.notify_one();
                    }
                }
                Effect::Load(load) => {
                    let session_id = load.session_id.clone();
                    let then = |agent: &mut Agent, found| agent.loaded(load, found);
                    self.on_disk(true, move |store| store.load(&session_id), then);
                }
                Effect::List(reply, cwd) => {
                    let then = move |agent: &mut Agent, found| agent.listed(&reply, cwd.as_deref(), found);
                    self.on_disk(false, Store::list, then);
                }
                Effect::Delete(reply, session_id) => {
                    let then = move |agent: &mut Agent, outcome| agent.deleted(&reply, outcome);
                    self.on_disk(false, move |store| store.delete(&session_id), then);
                }
                Effect::Log(level, message) => stdio::log(level, format_args!("{message}")),
                Effect::FetchModels => drop(spawn_local(fetch_models(self.clone()))),
            }
        }
        if !self.agent.borrow().outbox().is_empty() {
            self.has_lines.notify_one();
        }
    }

    /// Runs work on the history on another thread, and continues with its result. Reading whole sessions is large work:
    /// at most [`LARGE_WORKS`] run at once.
    fn on_disk<T: Send + 'static>(
        self: &Rc<Self>,
        is_large: bool,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
        then: impl FnOnce(&mut Agent, Result<T, String>) + 'static,
    ) {
        let shell = self.clone();
        spawn_local(async move {
            let permit = if is_large { shell.large_works.acquire().await.ok() } else { None };
            // For a client that does not read, it is read later.
            while is_large && shell.agent.borrow().outbox().len() > STOP_READING {
                shell.has_room.notified().await;
            }
            let outcome = shell.store_work(work).await;
            then(&mut shell.agent.borrow_mut(), outcome);
            drop(permit);
            shell.act();
        });
    }

    async fn store_work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let Some(store) = self.store.clone() else { return Err("no history is kept".to_owned()) };
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Reads lines until the input ends.
async fn read(shell: &Rc<Shell>, stdin: &Stdio) -> io::Result<()> {
    let mut lines = Lines::new(shell.config.limits.line);
    loop {
        // A client that asks without reading the answers is not read from until it reads.
        while shell.agent.borrow().outbox().len() > STOP_READING {
            shell.has_room.notified().await;
        }
        let count = stdin.read(lines.space()).await?;
        lines.received(count);
        let is_over = count == 0;
        let last = |lines: &mut Lines| if is_over { lines.last_line() } else { None };
        while let Some(line) = lines.next_line().or_else(|| last(&mut lines)) {
            let now = SystemTime::now();
            match line {
                Line::Whole(range) => shell.agent.borrow_mut().handle_line(lines.bytes(range), now),
                Line::TooLong(envelope) => shell.agent.borrow_mut().handle_long_line(&envelope),
            }
            shell.act();
        }
        if is_over {
            return Ok(());
        }
        // Lines that follow each other without a pause must not starve the streams.
        tokio::task::yield_now().await;
    }
}

/// Writes the outbox, as much at once as the reader takes.
async fn write(shell: Rc<Shell>, stdout: Stdio) {
    loop {
        let outcome = {
            let agent = shell.agent.borrow();
            let waiting = agent.outbox().waiting();
            if waiting.is_empty() {
                Ok(Some((0, 0)))
            } else {
                stdout.try_write(waiting).map(|count| count.map(|count| (count, waiting.len())))
            }
        };
        match outcome {
            Ok(Some((0, 0))) => shell.has_lines.notified().await,
            Ok(Some((count, asked))) => {
                // A partial write shows that the reader is behind, though it did not block.
                shell.agent.borrow_mut().wrote(count, count < asked);
                shell.has_room.notify_waiters();
                shell.act();
            }
            Ok(None) => {
                shell.agent.borrow_mut().wrote(0, true);
                if stdout.writable().await.is_err() {
                    break;
                }
            }
            Err(error) => {
                note!(Info, "stdout is closed: {error}");
                break;
            }
        }
    }
    // Tasks that wait for room check whether the reader is gone; that is visible only after this task has ended.
    spawn_local(async move {
        tokio::task::yield_now().await;
        shell.has_room.notify_waiters();
        shell.has_room.notify_one();
    });
}

async fn fetch_models(shell: Rc<Shell>) {
    let models = shell.client.models().await;
    let rest = models.as_ref().map_or_else(|(_, rest)| *rest, |_| dialect::FRESH);
    if let Err((problem, _)) = &models {
        note!(Warn, "The list of models cannot be fetched: {problem}");
    }
    shell.agent.borrow_mut().models_known(models.ok(), SystemTime::now() + rest);
    shell.act();
}

/// One turn, from the prompt to its answer.
async fn run_turn(shell: Rc<Shell>, turn: TurnId, resume: Rc<Notify>) {
    let header = shell.agent.borrow().header(turn);
    if let Some(header) = header {
        // If that fails, it is reported when the turn is stored.
        let _ = shell.store_work(move |store| store.create(&header)).await;
    }
    let outcome = loop {
        match ask(&shell, turn, &resume).await {
            Err(failure) if shell.agent.borrow_mut().lighten(turn, &failure) => {
                note!(Info, "{} It is asked again with less.", failure.text(&shell.config.endpoint.shown_url()));
            }
            outcome => break outcome,
        }
    };
    let tail = match outcome {
        Ok((ending, opened)) => {
            finish(&shell, turn, ending).await;
            opened
        }
        Err(failure) => {
            let failure = failure.masked(shell.client.secrets());
            let (text, detail) = (failure.text(&shell.config.endpoint.shown_url()), failure.detail());
            if text.contains(detail) {
                note!(Warn, "{text}")
            } else {
                note!(Warn, "{text} {detail}")
            }
            shell.agent.borrow_mut().fail(turn, &failure);
            None
        }
    };
    shell.tasks.borrow_mut().remove(&turn);
    shell.act();
    // The answer is out. The rest of the response is read so that the connection can be reused.
    if let Some(mut opened) = tail {
        let _ = timeout(TAIL, async { while let Ok(Some(_)) = opened.next().await {} }).await;
    }
}

/// Asks the endpoint and forwards its answer, piece by piece.
async fn ask(shell: &Rc<Shell>, turn: TurnId, resume: &Notify) -> Result<(Ending, Option<Opened>), Failure> {
    let model = shell.agent.borrow().model(turn).unwrap_or_else(|| "".into());
    let body = |dialect| shell.agent.borrow().request_body(turn, dialect);
    let mut opened = shell.client.ask(&model, body).await?;
    let mut skipped = 0;
    let mut forward = |piece: Piece<'_>| match piece {
        Piece::Delta(kind, text) => shell.agent.borrow_mut().delta(turn, kind, text),
        Piece::Skipped(data) => {
            skipped += 1;
            note_skipped(skipped, data);
        }
    };
    let forwarded = async || {
        shell.act();
        while shell.agent.borrow().is_paused(turn) {
            resume.notified().await;
        }
        let limit = shell.config.limits.history;
        if shell.agent.borrow().answer_length(turn) > limit { Err(Failure::TooLong(limit)) } else { Ok(()) }
    };
    let (ending, is_over) = opened.read(shell.config.limits.line, &mut forward, forwarded).await?;
    if skipped > SKIPPED_LINES {
        note!(Warn, "{} more events were passed over.", skipped - SKIPPED_LINES);
    }
    Ok((ending?, is_over.then_some(opened)))
}

/// Logs a skipped event: an endpoint that sends hundreds of them gets few lines.
fn note_skipped(count: usize, data: &[u8]) {
    if count <= SKIPPED_LINES {
        let shown = String::from_utf8_lossy(&data[..data.len().min(80)]);
        note!(Warn, "An event of {} bytes that says nothing is passed over: {shown}", data.len());
    }
}

/// Stores a turn if histories are kept, and then answers its prompt.
async fn finish(shell: &Rc<Shell>, turn: TurnId, ending: Ending) {
    let to_store = shell.agent.borrow_mut().complete(turn, ending, SystemTime::now());
    shell.act();
    let Some(ToStore { header, entry }) = to_store else { return };
    let outcome = shell.store_work(move |store| store.append(&header, &entry)).await;
    shell.agent.borrow_mut().stored(turn, outcome);
}
