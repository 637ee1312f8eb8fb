//! Starts the real daemon, watches it, and leaves nothing of it behind.
//!
//! Every daemon gets a unique environment variable, which all its descendants inherit: any process with it after the
//! daemon has ended was left behind. Nothing here waits for time to pass: it waits for conditions, and a condition that
//! does not hold within [`PATIENCE`] fails the test with the daemon's log.

mod gate;
mod log;
mod processes;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once, OnceLock};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, kill_process_group, pidfd_getfd, pidfd_open,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::gate::Gate;
pub use self::log::{Log, complaints};
pub use self::processes::{children, lives, state};
pub use crate::client::PATIENCE;

use self::processes::processes;
use crate::client::Client;
use crate::descriptors;
use crate::misbehaving::WORKER;
use crate::sockets::close_ended;
use crate::waiting::comes_true;

const MARK: &str = "STDIO_BUS_TEST_MARK";

/// The daemon's executable.
pub fn program() -> PathBuf {
    std::env::var_os("STDIO_BUS_UNDER_TEST").map_or_else(|| env!("CARGO_BIN_EXE_stdio_bus").into(), PathBuf::from)
}

/// The I/O backend in this run of the tests.
pub fn io() -> &'static str {
    if std::env::var("STDIO_BUS_IO").is_ok_and(|io| io == "epoll") { "epoll" } else { "ring" }
}

/// Reports that a test cannot run here, and why: in the test's own output, and to `scripts/test`, which repeats it in
/// its summary.
pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("STDIO_BUS_SKIPPED") {
        let mut file = File::options().append(true).create(true).open(path).expect("it can be written to");
        file.write_all(format!("{why}\n").as_bytes()).expect("there is room for it");
    }
}

/// Makes a command run as a user without other processes, with this limit, and then runs `then` in the new process,
/// which only makes system calls. False without root.
pub fn as_another_user(
    command: &mut Command,
    resource: libc::__rlimit_resource_t,
    most: u64,
    then: fn() -> io::Result<()>,
) -> bool {
    static USERS: AtomicU32 = AtomicU32::new(0);
    // SAFETY: geteuid(2) cannot fail and takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        skip("only root can become another user");
        return false;
    }
    // Limits of processes and of locked memory count everything of a user.
    let user = 20_000 + (std::process::id() * 16 + USERS.fetch_add(1, Ordering::Relaxed)) % 40_000;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the closure only makes system calls, and `limit` lives in it.
    unsafe {
        command.pre_exec(move || {
            let is_limited = libc::setrlimit(resource, &raw const limit) == 0;
            let is_other = libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(user) == 0;
            if is_limited && is_other && libc::setuid(user) == 0 { then() } else { Err(io::Error::last_os_error()) }
        });
    }
    true
}

/// A copy of the daemon's executable in this directory, where every user may run it.
pub fn program_for_all(directory: &Path) -> PathBuf {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = directory.join("stdio_bus");
    install(&program(), &path);
    path
}

/// An executable script at this path.
pub fn script(path: &Path, text: &str) {
    let source = path.with_extension("source");
    fs::write(&source, text).expect("there is room for it");
    install(&source, path);
}

/// Copies a program in a separate process. If this process had it open for writing, another test that forks at that
/// moment would have it, too, and it could not be run (ETXTBSY).
fn install(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).arg(from).arg(to).status().expect("there is install");
    assert!(status.success(), "{}: {status}", to.display());
}

/// Polls a condition that no event reports, such as the contents of /proc or of a file.
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(PATIENCE, condition), "in vain: {what}");
}

/// Waits for a child to exit. If it does not, it is killed, and the test fails.
pub fn end_of(what: &str, child: &mut Child) -> ExitStatus {
    if !comes_true(PATIENCE, || child.try_wait().expect("it is our child").is_some()) {
        let _ = child.kill();
        panic!("{what} does not end");
    }
    child.wait().expect("it is our child")
}

/// Runs a program to its end: its exit status, and its stdout.
pub fn run_to_its_end(command: &mut Command) -> (ExitStatus, String) {
    /// Kills what it has started if the test fails.
    struct Group(Child);
    impl Drop for Group {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
                let _ = self.0.wait();
            }
        }
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut group = Group(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
    let said = Client::over_pipes(None, group.0.stdout.take().expect("stdout is a pipe")).rest();
    (end_of(&format!("{command:?}"), &mut group.0), said)
}

/// A pool of misbehaving workers (`misbehaving.rs`).
pub fn worker(id: &str, instances: usize, flags: &[&str]) -> Value {
    let program = std::env::current_exe().expect("the tests have a program file");
    let args: Vec<&str> = [WORKER].iter().chain(flags).copied().collect();
    json!({ "id": id, "command": program, "args": args, "instances": instances })
}

/// A pool of built-in echo workers.
pub fn echo(id: &str, instances: usize) -> Value {
    json!({ "id": id, "command": program(), "args": ["worker", "echo"], "instances": instances })
}

/// A pool of workers that run a shell script.
pub fn shell(id: &str, script: &str) -> Value {
    json!({ "id": id, "command": "sh", "args": ["-c", script], "instances": 1 })
}

/// A worker that stores what it reads in a file and writes nothing.
pub fn sink(id: &str, file: &Path) -> Value {
    // Not the shell's last command: the shell stays, and keeps stdout open.
    shell(id, &format!("tee {} > /dev/null; :", file.display()))
}

/// Adds a key to a pool.
pub fn with(mut pool: Value, key: &str, value: impl Into<Value>) -> Value {
    pool[key] = value.into();
    pool
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Tcp,
    Unix,
    Stdio,
    /// The test supplies it.
    Given,
}

type BeforeExec = Box<dyn FnMut() -> io::Result<()> + Send + Sync>;

/// A daemon to be started.
pub struct Setup {
    config: Option<Value>,
    mode: Mode,
    arguments: Vec<String>,
    wrapper: Vec<String>,
    variables: Vec<(String, String)>,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    own_group: bool,
    before_exec: Vec<BeforeExec>,
    dir: TempDir,
}

impl Setup {
    /// With these pools, over TCP on a port chosen by the kernel.
    pub fn new(pools: impl IntoIterator<Item = Value>) -> Self {
        let pools: Vec<Value> = pools.into_iter().collect();
        // A shutdown does not wait; tests that let requests finish set this.
        let limits = json!({ "quiesce_sec": 0 });
        Self { config: Some(json!({ "pools": pools, "limits": limits })), ..Self::bare().tcp() }
    }

    /// Without a configuration and flags.
    pub fn bare() -> Self {
        static ALLOWED: Once = Once::new();
        ALLOWED.call_once(descriptors::allow);
        Self {
            config: None,
            mode: Mode::Given,
            arguments: Vec::new(),
            wrapper: Vec::new(),
            variables: Vec::new(),
            stdin: None,
            stdout: None,
            stderr: None,
            own_group: false,
            before_exec: Vec::new(),
            dir: TempDir::new().expect("a temporary directory"),
        }
    }

    /// The configuration, for settings without a method here.
    pub fn config(&mut self) -> &mut Value {
        self.config.get_or_insert_with(|| json!({}))
    }

    /// Sets `limits.<key>`.
    pub fn limit(mut self, key: &str, value: u64) -> Self {
        self.config()["limits"][key] = value.into();
        self
    }

    /// Sets a key of the configuration.
    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.config()[key] = value;
        self
    }

    pub fn tcp(mut self) -> Self {
        self.mode = Mode::Tcp;
        self
    }

    pub fn unix(mut self) -> Self {
        self.mode = Mode::Unix;
        self
    }

    pub fn stdio(mut self) -> Self {
        self.mode = Mode::Stdio;
        self
    }

    /// Without a listener flag.
    pub fn no_listener(mut self) -> Self {
        self.mode = Mode::Given;
        self
    }

    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Started by another program, which gets the daemon's command line.
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.stdin = Some(stdin.into());
        self
    }

    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Sends the log there instead of to the harness.
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }

    /// As the leader of a process group, like a foreground job of a shell.
    pub fn own_group(mut self) -> Self {
        self.own_group = true;
        self
    }

    /// Does not ignore SIGHUP, which may be ignored where the tests run (nohup).
    pub fn hears_hangups(self) -> Self {
        self.before_exec(|| {
            // SAFETY: the call takes no memory.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            Ok(())
        })
    }

    /// Runs this in the new process before the daemon. It may only make system calls.
    pub fn before_exec(mut self, action: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> Self {
        self.before_exec.push(Box::new(action));
        self
    }

    /// A path in this daemon's own directory, which is removed with it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same as text, for arguments.
    pub fn text_path(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn spawn(&mut self) -> (Child, String) {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let mut line = self.wrapper.clone();
        line.push(program().display().to_string());
        if let Some(config) = &self.config {
            let path = self.path("config.json");
            fs::write(&path, config.to_string()).expect("the configuration can be written");
            line.extend(["--config".to_owned(), path.display().to_string()]);
        }
        match self.mode {
            Mode::Tcp => line.extend(["--tcp".to_owned(), "127.0.0.1:0".to_owned()]),
            Mode::Unix => line.extend(["--unix".to_owned(), self.text_path("socket")]),
            Mode::Stdio => line.push("--stdio".to_owned()),
            Mode::Given => {}
        }
        line.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).env(MARK, &mark).envs(self.variables.drain(..));
        let idle = if self.mode == Mode::Stdio { Stdio::piped } else { Stdio::null };
        command.stdin(self.stdin.take().unwrap_or_else(idle));
        command.stdout(self.stdout.take().unwrap_or_else(Stdio::piped));
        command.stderr(self.stderr.take().unwrap_or_else(Stdio::piped));
        if self.own_group {
            command.process_group(0);
        }
        for action in self.before_exec.drain(..) {
            // SAFETY: the actions only make system calls, as `before_exec` requires (fork(2), signal-safety(7)).
            unsafe { command.pre_exec(action) };
        }
        (command.spawn().expect("the daemon's program can be started"), mark)
    }

    /// Starts it and waits until it accepts clients.
    pub fn start(self) -> Daemon {
        let mode = self.mode;
        let daemon = self.start_without_waiting();
        match mode {
            Mode::Tcp => drop(daemon.address()),
            Mode::Unix => {
                daemon.until("the Unix socket is there", || UnixStream::connect(daemon.path("socket")).is_ok())
            }
            Mode::Stdio | Mode::Given => {}
        }
        daemon
    }

    /// Starts it without waiting.
    pub fn start_without_waiting(mut self) -> Daemon {
        let (mut child, mark) = self.spawn();
        // If the test has stderr, its end is not awaited here.
        let log = child.stderr.take().map_or_else(|| Log::of(io::empty()), Log::of);
        let client = match (self.mode, child.stdin.take(), child.stdout.take()) {
            (Mode::Stdio, stdin, Some(stdout)) => Some(Client::over_pipes(stdin, stdout)),
            (_, _, stdout) => {
                child.stdout = stdout;
                None
            }
        };
        let first_address = OnceLock::new();
        Daemon { child, mark, log, client, first_address, setup: self, ended: None, left_nothing: false }
    }

    /// Runs it to its end: for refused starts, and programs that only print something.
    pub fn run(self) -> Outcome {
        let mut daemon = self.start_without_waiting();
        let code = daemon.wait().code();
        let stdout = daemon.rest_of_stdout();
        daemon.log.until_end();
        daemon.nothing_is_left();
        Outcome { code, stdout, stderr: daemon.log.text() }
    }
}

/// The output and exit status of a daemon that has ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running daemon. Dropping it kills it and everything it started.
pub struct Daemon {
    child: Child,
    mark: String,
    log: Arc<Log>,
    client: Option<Client>,
    /// Its first TCP address, once it is known: a test with a thousand connections does not read the log for each.
    first_address: OnceLock<SocketAddr>,
    setup: Setup,
    ended: Option<ExitStatus>,
    /// No process of its tree was left after its end.
    left_nothing: bool,
}

impl Daemon {
    /// Its first TCP address, for NDJSON, WebSocket or MCP, as printed on stderr.
    pub fn address(&self) -> SocketAddr {
        *self.first_address.get_or_init(|| self.addresses(1)[0])
    }

    /// The first `count` TCP addresses that it prints.
    pub fn addresses(&self, count: usize) -> Vec<SocketAddr> {
        let find = || -> Vec<SocketAddr> {
            let text = self.log();
            let told = text.lines().filter_map(|line| line.split_once("listening on ")?.1.split_once("://"));
            let told = told.filter(|(kind, _)| ["tcp", "ws", "http"].contains(kind)).map(|(_, rest)| rest);
            told.map(|rest| {
                let address = rest.split(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c))).next();
                address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("no address: {rest}"))
            })
            .collect()
        };
        self.until("the daemon logs where it listens", || find().len() >= count || self.log.has_ended());
        let found = find();
        assert!(found.len() >= count, "the daemon ended before it listened:\n{}", self.log());
        found
    }

    /// A new connection, or in stdio mode the only client.
    pub fn connect(&mut self) -> Client {
        match self.setup.mode {
            Mode::Tcp | Mode::Given => Client::over_tcp(self.address()),
            Mode::Unix => Client::over_unix(&self.path("socket")),
            Mode::Stdio => self.client.take().expect("stdio has one client"),
        }
    }

    /// A client that has its answer: a silent one may be evicted when all slots are taken.
    pub fn connect_and_ask(&mut self) -> Client {
        let mut client = self.connect();
        let answer = client.request(1, "m", json!({}));
        assert!(answer["error"].is_null(), "{answer}");
        client
    }

    /// The client on its stdin and stdout, if the test gave it pipes.
    pub fn pipes(&mut self) -> Client {
        Client::over_pipes(self.child.stdin.take(), self.child.stdout.take().expect("stdout is a pipe"))
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.setup.path(name)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Waits for a line of the log that contains all of `parts`.
    pub fn logs(&self, parts: &[&str]) -> String {
        let found = self.log.wait(|line| parts.iter().all(|part| line.contains(part)));
        found.unwrap_or_else(|| panic!("no line of the log has {parts:?}:\n{}", self.log()))
    }

    /// Waits until `count` lines of the log contain `part`.
    pub fn logs_times(&self, part: &str, count: usize) {
        self.until(&format!("{count} lines with {part:?}"), || {
            self.log().lines().filter(|line| line.contains(part)).count() >= count
        });
    }

    /// [`until`], with the log in the message of the failure.
    pub fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(comes_true(PATIENCE, condition), "in vain: {what}; the log:\n{}", self.log());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Stops it with SIGSTOP.
    pub fn stand_still(&self) {
        self.signal(Signal::STOP);
        // Also where a tracer (strace) slows it down.
        self.until("it stands still", || state(self.pid().into()).is_some_and(|state| "Tt".contains(state)));
    }

    /// The CPU time that it has used, in ticks (proc(5)).
    pub fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        let fields = stat.rsplit_once(") ").expect("the name is in brackets").1.split(' ');
        fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
    }

    /// How often it has gone to sleep (proc_pid_status(5)).
    pub fn sleeps(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it is not reaped");
        number_in(&status.replace(":\t", "="), "\nvoluntary_ctxt_switches")
    }

    /// The number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }

    /// The number of its open sockets: a worker that starts meanwhile has none of them.
    pub fn sockets(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").filter_map(Result::ok);
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// The number of its threads, including kernel threads that work for it.
    pub fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs").count()
    }

    /// Copies of its descriptors, with the same open files.
    pub fn copies_of_descriptors(&self) -> impl Iterator<Item = OwnedFd> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("it runs");
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs");
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.filter_map(move |number| match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            // The daemon has closed it since.
            Err(Errno::BADF) => None,
            copy => Some(copy.unwrap_or_else(|error| panic!("a descriptor cannot be copied (pidfd_getfd): {error}"))),
        })
    }

    /// Sends a signal to its process group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        assert!(self.setup.own_group, "it would hit the tests themselves");
        kill_process_group(Pid::from_child(&self.child), signal).expect("the group is there");
    }

    /// Its stdout that was not read.
    fn rest_of_stdout(&mut self) -> String {
        let stdout = self.child.stdout.take();
        stdout.map(|stdout| Client::over_pipes(None, stdout).rest()).unwrap_or_default()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.ended {
            return status;
        }
        let status = end_of("the daemon", &mut self.child);
        self.ended = Some(status);
        status
    }

    /// Whether it is still running.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Shuts it down, and checks that it exits with 0 and leaves nothing behind.
    pub fn stop(self) -> Outcome {
        self.signal(Signal::TERM);
        self.ends_well()
    }

    /// Checks that it exits with 0 and leaves nothing behind.
    pub fn ends_well(mut self) -> Outcome {
        // Its clients close as programs do.
        comes_true(PATIENCE, || {
            close_ended();
            self.ended.is_some() || !self.runs()
        });
        let status = self.wait();
        self.nothing_is_left();
        self.left_nothing = true;
        self.log.until_end();
        let stdout = self.rest_of_stdout();
        assert_eq!(status.code(), Some(0), "{status}; the log:\n{}", self.log());
        Outcome { code: status.code(), stdout, stderr: self.log() }
    }

    /// Checks that no process of its tree is left.
    pub fn nothing_is_left(&self) {
        // A process that was just killed may still be exiting.
        self.until("nothing of the daemon's process tree is left", || self.descendants().is_empty());
    }

    /// The processes with its mark, except itself: pid and command line.
    pub fn descendants(&self) -> Vec<(u32, String)> {
        let mark = format!("{MARK}={}", self.mark);
        let own = if self.setup.wrapper.is_empty() { self.pid() } else { 0 };
        processes()
            .filter(|(pid, path)| {
                let environment = fs::read(path.join("environ")).unwrap_or_default();
                *pid != own && environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            })
            .map(|(pid, path)| {
                let line = fs::read(path.join("cmdline")).unwrap_or_default();
                (pid, String::from_utf8_lossy(&line).replace('\0', " "))
            })
            .collect()
    }

    /// Its zombie children.
    pub fn zombies(&self) -> Vec<u32> {
        children(self.pid()).into_iter().filter(|(_, state)| *state == 'Z').map(|(pid, _)| pid).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
        let left = if self.left_nothing { Vec::new() } else { self.descendants() };
        for (pid, _) in left {
            let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
        }
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}---", self.log());
        }
    }
}

/// What a worker wrote to its `--record` file.
pub fn recorded(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The number after `name=` in a line of a record.
pub fn number_in(line: &str, name: &str) -> u64 {
    let rest = line.split(&format!("{name}=")).nth(1).unwrap_or_else(|| panic!("no {name} in {line:?}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).expect("a number")
}

/// Whether a path is a socket.
pub fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Whether nothing listens on a TCP port now.
pub fn refuses_connections(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The number of a descriptor, for a child process that inherits it.
pub fn inheritable(file: &impl AsRawFd) -> i32 {
    // SAFETY: fcntl with F_SETFD takes no pointer, and the descriptor is open while `file` is borrowed.
    assert_ne!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, -1);
    file.as_raw_fd()
}

/// Tells another thread to end, even if this one fails.
pub struct SetAtTheEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets seconds pass: a request of another daemon that times out is a clock with a condition to wait for.
pub fn seconds_go_by(seconds: u64) {
    let mut clock = Setup::new([with(worker("clock", 1, &[]), "request_timeout_sec", seconds)]).start();
    let mut timed = clock.connect();
    timed.ask(1, "hold", json!({}));
    timed.error(1, "timeout");
    clock.stop();
}

/// The size of a figure: from the environment, or this default.
pub fn figure(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |count| count.parse().expect("a number"))
}
