//! Kernels that lack or forbid something: the daemon works without it, or reports what is missing.
//!
//! A seccomp filter decides by the numbers in a call's arguments. Those in memory, the flags of a ring and the features
//! returned, are changed by a tracer (ptrace(2)) while the ring is created.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use serde_json::json;

use crate::harness::{Daemon, Outcome, PATIENCE, Setup, shell, worker};
use crate::seccomp::forbid;

/// Offsets of the low halves of a call's first two arguments (seccomp(2), struct seccomp_data).
const FIRST: u32 = 16;
const SECOND: u32 = 24;
/// IORING_REGISTER_BUFFERS and IORING_REGISTER_PBUF_RING (io_uring_register(2)).
const REGISTER_BUFFERS: u32 = 0;
const REGISTER_BUFFER_RING: u32 = 22;
/// IORING_REGISTER_RESTRICTIONS.
const REGISTER_RESTRICTIONS: u32 = 11;

/// Runs the daemon where a call is forbidden, and checks that it refuses to start without io_uring if that is required,
/// and otherwise runs on epoll and says why.
fn there_is_no_ring(call: libc::c_long, second: Option<u32>, errno: i32) -> String {
    let argument = second.map(|second| (SECOND, second));
    let mut daemon = Setup::new([worker("agents", 1, &[])])
        .args(&["--io", "auto"])
        .before_exec(move || forbid(call, argument, errno))
        .start();
    all_are_answered(&mut daemon);
    let said = daemon.stop().stderr;
    let line = said.lines().find(|line| line.contains("epoll is used instead")).expect("it says so");
    assert!(line.contains("INFO") && line.contains("io_uring cannot be used here"), "{line}");
    let outcome = Setup::bare().tcp().args(&["--io", "ring"]).before_exec(move || forbid(call, argument, errno)).run();
    // The remedy is the same in both.
    assert!(
        line.ends_with(outcome.stderr.trim_end().rsplit('\n').next().expect("a remedy").trim()),
        "{line}\n{}",
        outcome.stderr
    );
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(69), ""), "{call} {second:?}: {}", outcome.stderr);
    assert!(outcome.stderr.contains("io_uring cannot be used here"), "{call} {second:?}: {}", outcome.stderr);
    outcome.stderr
}

#[test]
fn where_any_call_of_io_uring_is_blocked_epoll_serves_and_it_says_how_to_allow_the_ring() {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter] {
        let said = there_is_no_ring(call, None, libc::EPERM);
        for part in ["kernel.io_uring_disabled", "seccomp", "io_uring_enter and io_uring_register"] {
            assert!(said.contains(part), "{call}: {part} is missing in\n{said}");
        }
    }
}

#[test]
fn on_a_kernel_that_knows_no_close_range_epoll_serves_and_no_worker_inherits_a_descriptor() {
    let pool = shell("agents", "ls /proc/self/fd >&2; exec cat");
    let mut daemon = Setup::new([pool])
        .args(&["--io", "epoll"])
        .before_exec(|| {
            // A descriptor that is open in the daemon, and inherited by its children. SAFETY: the call takes no memory.
            unsafe { libc::dup2(2, 77) };
            forbid(libc::SYS_close_range, None, libc::ENOSYS)
        })
        .start();
    let mut client = daemon.connect();
    client.ask(1, "m", json!({}));
    assert_eq!(client.message()["method"], "m");
    let said = daemon.stop().stderr;
    assert!(said.contains("[agents/0] 2") && !said.contains("[agents/0] 77"), "{said}");
}

#[test]
fn where_io_uring_is_missing_epoll_serves_and_it_asks_for_the_kernel() {
    let said = there_is_no_ring(libc::SYS_io_uring_setup, None, libc::ENOSYS);
    assert!(said.contains("uname -r"), "{said}");
}

#[test]
fn where_buffers_cannot_be_provided_epoll_serves_and_it_says_how_to_find_the_call() {
    let said = there_is_no_ring(libc::SYS_io_uring_register, Some(REGISTER_BUFFER_RING), libc::EINVAL);
    assert!(said.contains("strace") && said.contains("io_uring_register"), "{said}");
}

/// Requests of every size over several connections at once, and one to a worker that dies.
fn all_are_answered(daemon: &mut Daemon) {
    let mut clients: Vec<_> = (0..20).map(|_| daemon.connect()).collect();
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            let fill = "x".repeat(number * number * 100 * round);
            client.ask(round, "m", json!({ "client": number, "fill": fill }));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.answer(round)["result"]["echo"]["client"], number);
        }
    }
    clients[0].ask(9, "exit", json!({ "code": 1 }));
    clients[0].error(9, "worker_exited");
    daemon.until("there is another worker", || clients[1].request(9, "m", json!({}))["result"].is_object());
}

#[test]
fn where_buffers_cannot_be_registered_the_daemon_does_without_and_says_so_once() {
    let refuse = || forbid(libc::SYS_io_uring_register, Some((SECOND, REGISTER_BUFFERS)), libc::EPERM);
    let mut daemon = Setup::new([worker("agents", 1, &[])]).args(&["--io", "ring"]).before_exec(refuse).start();
    all_are_answered(&mut daemon);
    let outcome = daemon.stop();
    let told: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("not registered")).collect();
    assert_eq!(told.len(), 1, "{}", outcome.stderr);
    // More locked memory does not help if the call is forbidden.
    assert!(told[0].contains("Operation not permitted") && !told[0].contains("RLIMIT_MEMLOCK"), "{}", told[0]);
}

#[test]
fn where_the_ring_cannot_be_restricted_the_daemon_does_the_same_and_says_so() {
    let refuse = || forbid(libc::SYS_io_uring_register, Some((SECOND, REGISTER_RESTRICTIONS)), libc::EINVAL);
    let mut daemon = at_debug().before_exec(refuse).start();
    all_are_answered(&mut daemon);
    let outcome = daemon.stop();
    assert!(in_use(&outcome).contains("not restricted (Invalid argument"), "{outcome:?}");
}

#[test]
fn without_ipv6_a_port_alone_is_all_ipv4_interfaces() {
    let no_ipv6 = || forbid(libc::SYS_socket, Some((FIRST, libc::AF_INET6 as u32)), libc::EAFNOSUPPORT);
    for flag in ["--tcp", "--ws", "--http"] {
        let setup = Setup::bare().args(&[flag, ":0"]).before_exec(no_ipv6);
        let mut daemon = setup.start();
        assert!(daemon.address().ip().is_unspecified() && daemon.address().is_ipv4(), "{flag}: {}", daemon.log());
        if flag == "--tcp" {
            let mut client = daemon.connect();
            assert_eq!(client.request(1, "m", json!({ "a": 1 }))["result"]["echo"]["a"], 1);
        }
    }
    // A requested IPv6 address is not replaced by others.
    let outcome = Setup::bare().args(&["--tcp", "[::1]:0"]).before_exec(no_ipv6).run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    let mut setup = Setup::bare().args(&["check", "--environment", "--config"]).before_exec(no_ipv6);
    let path = setup.text_path("bus.json");
    let config = json!({ "pools": [worker("agents", 1, &[])], "listeners": [{ "tcp": ":0" }] });
    std::fs::write(&path, config.to_string()).expect("there is room for it");
    setup = setup.args(&[&path]);
    let outcome = setup.run();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}

/// Flags of io_uring_setup(2).
const DEFER_TASKRUN: u32 = 1 << 13;
const NO_SQARRAY: u32 = 1 << 16;
/// An unknown flag.
const UNKNOWN: u32 = 1 << 31;
/// The features that Linux 6.1 reports: the last is IORING_FEAT_LINKED_FILE.
const FEATURES_OF_6_1: u32 = (1 << 13) - 1;
/// Offsets of the flags and features in struct io_uring_params.
const FLAGS: u64 = 8;
const FEATURES: u64 = 20;

/// Starts the daemon on a kernel that refuses these flags of a ring, and reports at most `features`.
fn start_on_kernel(setup: Setup, refused: u32, features: u32) -> Daemon {
    // SAFETY: ptrace(2) with PTRACE_TRACEME takes nothing else.
    let setup = setup.before_exec(|| match unsafe { libc::ptrace(libc::PTRACE_TRACEME) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    });
    let daemon = setup.start_without_waiting();
    let mut daemon = Traced { pid: daemon.pid() as i32, daemon, deadline: Instant::now() + PATIENCE };
    daemon.go_on_to_a_stop(None);
    daemon.trace(libc::PTRACE_SETOPTIONS, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize);
    // It tries once with the best flags and once without one of them.
    let mut refusals = 0;
    loop {
        let at = daemon.go_on_to_io_uring_setup();
        let flags = daemon.word(at + FLAGS);
        if flags & refused != 0 {
            daemon.set_word(at + FLAGS, flags | UNKNOWN);
        }
        let result = daemon.go_on_to_its_end();
        if result >= 0 {
            assert_eq!(flags & refused, 0, "it was to be refused");
            daemon.set_word(at + FEATURES, daemon.word(at + FEATURES) & features);
            break;
        }
        assert_eq!(result, -i64::from(libc::EINVAL));
        refusals += 1;
        if refusals == 2 {
            break;
        }
    }
    daemon.trace(libc::PTRACE_DETACH, 0);
    daemon.daemon
}

/// A daemon traced by this thread. It only runs within the `go_on_` functions.
struct Traced {
    pid: i32,
    daemon: Daemon,
    /// When it has to be released.
    deadline: Instant,
}

impl Traced {
    fn trace(&self, request: libc::c_uint, data: usize) {
        // SAFETY: these requests take a number; the process is stopped.
        let result = unsafe { libc::ptrace(request, self.pid, 0_usize, data) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Resumes it with this request, and waits until it stops. Returns the signal.
    fn go_on_to_a_stop(&mut self, request: Option<libc::c_uint>) -> i32 {
        if let Some(request) = request {
            self.trace(request, 0);
        }
        let mut status = 0;
        // SAFETY: waitpid(2) fills `status`.
        let mut look = || unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
        let waited = loop {
            assert!(Instant::now() < self.deadline, "it makes no ring: {}", self.daemon.log());
            match look() {
                // It is about to stop, as it does hundreds of times: sleeping would take longer than everything it
                // does.
                0 => std::thread::yield_now(),
                waited => break waited,
            }
        };
        assert!(waited == self.pid && libc::WIFSTOPPED(status), "it has ended: {}", self.daemon.log());
        libc::WSTOPSIG(status)
    }

    /// Runs to the next entry or exit of a system call.
    fn go_on_to_a_call(&mut self) -> libc::ptrace_syscall_info {
        while self.go_on_to_a_stop(Some(libc::PTRACE_SYSCALL)) != libc::SIGTRAP | 0x80 {}
        // SAFETY: the structure is plain data, of which the kernel fills at most the given size.
        unsafe {
            let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
            let size = size_of_val(&info);
            let filled = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.pid, size, &raw mut info);
            assert!(filled > 0, "{}", io::Error::last_os_error());
            info
        }
    }

    /// Returns the address of its parameters.
    fn go_on_to_io_uring_setup(&mut self) -> u64 {
        loop {
            let call = self.go_on_to_a_call();
            if call.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
                // SAFETY: this is the entry of a call.
                let entry = unsafe { call.u.entry };
                if entry.nr == libc::SYS_io_uring_setup as u64 {
                    return entry.args[1];
                }
            }
        }
    }

    /// Returns the result of the current call.
    fn go_on_to_its_end(&mut self) -> i64 {
        let call = self.go_on_to_a_call();
        assert_eq!(call.op, libc::PTRACE_SYSCALL_INFO_EXIT);
        // SAFETY: this is the exit of a call.
        unsafe { call.u.exit.sval }
    }

    fn memory(&self) -> File {
        File::options().read(true).write(true).open(format!("/proc/{}/mem", self.pid)).expect("it is traced")
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.memory().read_exact_at(&mut bytes, at).expect("it is mapped");
        u32::from_ne_bytes(bytes)
    }

    fn set_word(&self, at: u64, word: u32) {
        self.memory().write_all_at(&word.to_ne_bytes(), at).expect("it is mapped");
    }
}

/// The flags and features in the log.
fn in_use(outcome: &Outcome) -> &str {
    let line = outcome.stderr.lines().find_map(|line| line.split_once("ring: "));
    line.unwrap_or_else(|| panic!("it does not say what is in use: {}", outcome.stderr)).1
}

fn at_debug() -> Setup {
    Setup::new([worker("agents", 1, &[])]).args(&["--log-level", "debug", "--io", "ring"])
}

#[test]
fn on_a_kernel_without_no_sqarray_the_daemon_steps_down_and_says_what_is_in_use() {
    let mut daemon = start_on_kernel(at_debug(), NO_SQARRAY, u32::MAX);
    all_are_answered(&mut daemon);
    let outcome = daemon.stop();
    assert!(in_use(&outcome).starts_with("DEFER_TASKRUN") && !in_use(&outcome).contains("NO_SQARRAY"), "{outcome:?}");
}

#[test]
fn on_a_kernel_with_the_features_of_6_1_everybody_is_served() {
    let mut daemon = start_on_kernel(at_debug(), NO_SQARRAY, FEATURES_OF_6_1);
    all_are_answered(&mut daemon);
    assert_eq!(in_use(&daemon.stop()), "DEFER_TASKRUN RESTRICTED");
}

#[test]
fn on_a_kernel_without_defer_taskrun_there_is_no_ring_and_the_first_one_that_has_it_is_named() {
    let mut daemon = start_on_kernel(at_debug(), DEFER_TASKRUN, u32::MAX);
    assert_eq!(daemon.wait().code(), Some(69), "{}", daemon.log());
    daemon.logs(&["lacks DEFER_TASKRUN"]);
    daemon.logs(&["needs Linux 6.1 or newer"]);
}
