//! The daemon as a service (sd_notify(3), sd_listen_fds(3), systemd.kill(5)): its messages to the manager, inherited
//! sockets, and restarts that neither refuse a connection nor lose an answer.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::ioctl_fionbio;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use stdio_bus::bus::settings::Limits;

use crate::client::Client;
use crate::harness::{PATIENCE, Setup, children, echo, inheritable, is_socket, skip, worker};
use crate::steady::repeated;

/// A service manager that receives notifications.
pub struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    pub fn new(setup: Setup) -> (Self, Setup) {
        let path = setup.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = path.display().to_string();
        (Self { socket, heard: Vec::new() }, setup.variable("NOTIFY_SOCKET", &name))
    }

    /// Waits until a line has this prefix, and returns it. Earlier lines are skipped.
    pub fn forget(&mut self) {
        self.heard.clear();
    }

    pub fn hears(&mut self, begin: &str) -> String {
        loop {
            if let Some(line) = self.heard.iter().find(|line| line.starts_with(begin)) {
                return line.clone();
            }
            self.listens().unwrap_or_else(|error| panic!("no {begin} in {:?}: {error}", self.heard));
        }
    }

    fn listens(&mut self) -> std::io::Result<()> {
        let mut bytes = [0; 4096];
        let length = repeated(|| self.socket.recv(&mut bytes))?;
        self.heard.extend(String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned));
        Ok(())
    }
}

#[test]
fn the_manager_is_notified_of_readiness_status_and_shutdown() {
    let (mut manager, setup) = Manager::new(Setup::new([worker("agents", 2, &[]), echo("echo", 1)]));
    let mut daemon = setup.start();
    manager.hears("READY=1");
    assert!(!manager.heard.iter().any(|line| line == "STOPPING=1"), "{:?}", manager.heard);
    manager.hears("STATUS=3 of 3 workers run, 0 clients");
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    manager.hears("STATUS=3 of 3 workers run, 1 clients");
    daemon.signal(Signal::TERM);
    manager.hears("STOPPING=1");
    manager.hears("STATUS=stopping: ");
    daemon.wait();
    let ready = manager.heard.iter().filter(|line| *line == "READY=1").count();
    assert_eq!(ready, 1, "{:?}", manager.heard);
    daemon.ends_well();
}

#[test]
fn it_is_ready_though_one_pool_of_three_cannot_start() {
    let setup = Setup::new([]);
    let late = setup.path("late");
    // It exists, but cannot be run.
    crate::harness::script(&late, "#!/nowhere/interpreter\n");
    let pools = json!([echo("echo", 1), { "id": "late", "command": late, "instances": 1 }, worker("agents", 1, &[])]);
    let (mut manager, setup) = Manager::new(setup.set("pools", pools).limit("max_restarts", 1));
    let daemon = setup.start();
    daemon.logs(&["reason=spawn_failed", "worker=late/0"]);
    manager.hears("READY=1");
    daemon.logs(&["reason=pool_degraded", "worker=late/0"]);
    daemon.stop();
}

#[test]
fn it_is_not_ready_before_a_worker_shows_that_it_lives() {
    let setup = Setup::new([]);
    let ends = setup.path("ends");
    // Each process starts, and exits at once until this file exists.
    let script = format!("test -e {} && exec cat", ends.display());
    let pools = [crate::harness::shell("agents", &script)];
    let (mut manager, setup) = Manager::new(setup.set("pools", json!(pools)).limit("max_restarts", 1000));
    let daemon = setup.start();
    daemon.logs_times("reason=worker_exited", 3);
    manager.socket.set_nonblocking(true).unwrap();
    while manager.listens().is_ok() {}
    assert!(!manager.heard.iter().any(|line| line == "READY=1"), "{:?}", manager.heard);
    manager.socket.set_nonblocking(false).unwrap();
    fs::write(&ends, "").unwrap();
    manager.hears("READY=1");
    daemon.stop();
}

#[test]
fn the_watchdog_is_fed_while_the_loop_turns_and_only_then() {
    let (mut manager, setup) = Manager::new(Setup::new([echo("echo", 1)]).variable("WATCHDOG_USEC", "40000"));
    let daemon = setup.start();
    for _ in 0..20 {
        manager.heard.clear();
        manager.hears("WATCHDOG=1");
    }
    daemon.stand_still();
    manager.socket.set_nonblocking(true).unwrap();
    while manager.listens().is_ok() {}
    manager.heard.clear();
    crate::harness::seconds_go_by(1);
    assert!(manager.listens().is_err(), "{:?}", manager.heard);
    daemon.signal(Signal::CONT);
    manager.socket.set_nonblocking(false).unwrap();
    manager.hears("WATCHDOG=1");
    daemon.stop();
}

#[test]
fn a_manager_that_does_not_read_blocks_nothing() {
    let (manager, setup) = Manager::new(Setup::new([worker("agents", 1, &[])]).variable("WATCHDOG_USEC", "2000"));
    let mut daemon = setup.start();
    // Its queue is full after some of these.
    let sent = |socket: &UnixDatagram| rustix::io::ioctl_fionread(socket).unwrap();
    daemon.until("it is sent something", || sent(&manager.socket) > 0);
    let mut client = daemon.connect();
    for id in 0..1000 {
        client.request(id, "m", json!({}));
    }
    crate::harness::seconds_go_by(2);
    client.request("last", "m", json!({}));
    daemon.stop();
}

/// A daemon with these inherited sockets, as from systemd. They stay open here.
fn activated(setup: Setup, sockets: &[&dyn AsRawFd]) -> Setup {
    let numbers: Vec<i32> = sockets.iter().map(|socket| socket.as_raw_fd()).collect();
    let count = numbers.len();
    // The shell becomes the daemon, and knows its process id.
    setup
        .under(&["sh", "-c", "LISTEN_PID=$$ exec \"$@\"", "sh"])
        .variable("LISTEN_FDS", &count.to_string())
        .before_exec(move || {
            // None may be overwritten before it was moved: first they go to unused numbers.
            for (at, number) in numbers.iter().enumerate() {
                // SAFETY: dup2 takes numbers.
                if unsafe { libc::dup2(*number, 900 + at as i32) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            for at in 0..count as i32 {
                // SAFETY: dup2 and close take numbers.
                if unsafe { libc::dup2(900 + at, 3 + at) } < 0 || unsafe { libc::close(900 + at) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        })
}

#[test]
fn a_restart_refuses_no_connection_and_serves_pending_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bus");
    let (tcp, unix) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
    let address = tcp.local_addr().unwrap();
    // systemd's do not block.
    ioctl_fionbio(&tcp, true).unwrap();
    ioctl_fionbio(&unix, true).unwrap();
    let listeners = json!([{ "tcp": address.to_string() }, { "unix": path }]);
    let mut waiting: Vec<Client> = Vec::new();
    for turn in 0..3 {
        let setup = Setup::new([worker("agents", 1, &[])]).no_listener().set("listeners", listeners.clone());
        let mut daemon = activated(setup, &[&tcp, &unix]).start();
        for client in &mut waiting {
            client.answer("early");
        }
        let mut clients = [Client::over_tcp(address), Client::over_unix(&path)];
        for client in &mut clients {
            client.request(turn, "m", json!({}));
        }
        daemon.logs(&["listening on", "passed on by the service manager"]);
        daemon.signal(Signal::TERM);
        for client in &mut clients {
            client.ends();
        }
        daemon.wait();
        assert!(is_socket(&path), "it is not ours to remove");
        daemon.ends_well();
        // There is no daemon now.
        waiting = vec![Client::over_tcp(address), Client::over_unix(&path)];
        for client in &mut waiting {
            client.ask("early", "m", json!({}));
        }
    }
}

#[test]
fn inherited_sockets_are_the_default_listeners() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = activated(Setup::bare(), &[&tcp]).start();
    let mut client = Client::over_tcp(tcp.local_addr().unwrap());
    client.request(1, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_daemon_with_an_inherited_socket_idles_without_clients() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    ioctl_fionbio(&tcp, true).unwrap();
    let daemon = activated(Setup::bare(), &[&tcp]).start();
    Client::over_tcp(tcp.local_addr().unwrap()).request(1, "m", json!({}));
    let before = daemon.ticks();
    crate::harness::seconds_go_by(2);
    let used = daemon.ticks() - before;
    assert!(used < 100, "it has used {used} ticks of 200 for nothing");
    daemon.stop();
}

#[test]
fn an_inherited_socket_that_was_shut_down_listens_again() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = activated(Setup::bare(), &[&tcp]).start();
    Client::over_tcp(tcp.local_addr().unwrap()).request(1, "m", json!({}));
    // As `ss --kill` does.
    shutdown(&tcp, Shutdown::Both).unwrap();
    daemon.logs(&["listening on", "again"]);
    Client::over_tcp(tcp.local_addr().unwrap()).request(2, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_socket_that_no_listener_has_or_that_does_not_listen_is_refused() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let outcome = activated(Setup::new([echo("echo", 1)]), &[&tcp]).run();
    assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
    let said = format!("descriptor 3: it listens on tcp://{address}, and no listener does");
    assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
    let (connected, _other) = UnixStream::pair().unwrap();
    let outcome = activated(Setup::new([echo("echo", 1)]), &[&connected]).run();
    assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("Accept=no"), "{}", outcome.stderr);
    let outcome = activated(Setup::bare().args(&["--config-fd", "3"]), &[&tcp]).run();
    assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("use --config PATH"), "{}", outcome.stderr);
}

#[test]
fn sockets_that_were_passed_to_another_process_are_not_ours() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = inheritable(&tcp);
    let setup = Setup::new([echo("echo", 1)]).variable("LISTEN_PID", "1").variable("LISTEN_FDS", &number.to_string());
    let mut daemon = setup.start();
    assert_ne!(daemon.address(), tcp.local_addr().unwrap());
    daemon.connect().request(1, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_malformed_count_of_inherited_sockets_is_a_start_error_that_names_the_variable() {
    for (process, name) in [("$$", "LISTEN_FDS"), ("x", "LISTEN_PID")] {
        let line = format!("LISTEN_PID={process} LISTEN_FDS=one exec \"$@\"");
        let outcome = Setup::new([echo("echo", 1)]).under(&["sh", "-c", &line, "sh"]).run();
        assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(name) && outcome.stderr.contains("has to be a number"), "{}", outcome.stderr);
    }
}

#[test]
fn systemd_socket_activate_passes_its_socket_on() {
    if Command::new("systemd-socket-activate").arg("--version").output().is_err() {
        return skip("systemd-socket-activate is not installed");
    }
    let setup = Setup::new([worker("agents", 1, &[])]).no_listener();
    let path = setup.path("bus");
    let name = path.display().to_string();
    let setup = setup.set("listeners", json!([{ "unix": path }]));
    let daemon = setup.under(&["systemd-socket-activate", "-l", &name]).start();
    daemon.until("it listens", || UnixStream::connect(&path).is_ok());
    let mut client = Client::over_unix(&path);
    client.request(1, "m", json!({}));
    daemon.stop();
}

/// As systemd does with KillMode=control-group: SIGTERM to the daemon and all its workers at once.
#[test]
fn sigterm_to_the_daemon_and_its_workers_at_once_loses_no_answer_and_no_error() {
    for daemon_first in [true, false] {
        let pools = [worker("late", 2, &["--answer-late"]), worker("hasty", 2, &[])];
        let mut daemon = Setup::new(pools).start();
        let mut client = daemon.connect();
        let ask = |client: &mut Client, pool: &str, id: usize| {
            client.send(&json!({ "id": format!("{pool} {id}"), "method": "hold", "pool": pool, "params": {} }));
        };
        for id in 0..50 {
            ask(&mut client, "late", id);
            ask(&mut client, "hasty", id);
        }
        // Each worker has read the earlier requests.
        for pool in ["late", "hasty"] {
            for id in 0..2 {
                client.send(&json!({ "id": format!("sync {pool} {id}"), "method": "who", "pool": pool }));
                client.answer(format!("sync {pool} {id}"));
            }
        }
        let workers: Vec<u32> = children(daemon.pid()).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(workers.len(), 4);
        let mut all = vec![daemon.pid()];
        all.extend(workers);
        if !daemon_first {
            all.rotate_left(1);
        }
        for pid in all {
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::TERM);
        }
        let mut answered = std::collections::BTreeMap::new();
        for line in client.rest().lines() {
            let answer: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = answer["id"].as_str().expect("an id of ours").to_owned();
            if id.starts_with("late") {
                assert_eq!(answer["result"]["held"], true, "{line}");
            } else {
                let reason = answer["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("{line}"));
                assert!(["shutting_down", "worker_exited"].contains(&reason), "{line}");
            }
            *answered.entry(id).or_insert(0) += 1;
        }
        assert_eq!(answered.len(), 100, "daemon first {daemon_first}");
        assert!(answered.values().all(|count| *count == 1), "{answered:?}");
        daemon.ends_well();
    }
}

fn unit(name: &str) -> (PathBuf, Vec<(String, String, String)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/systemd").join(name);
    let text = fs::read_to_string(&path).unwrap();
    let mut section = String::new();
    let mut settings = Vec::new();
    let mut has_comment = false;
    for line in text.lines() {
        match line.trim() {
            "" => has_comment = false,
            comment if comment.starts_with('#') => has_comment = true,
            name if name.starts_with('[') => name.trim_matches(['[', ']']).clone_into(&mut section),
            setting => {
                let (key, value) = setting.split_once('=').unwrap_or_else(|| panic!("{setting:?}"));
                let says = has_comment || section != "Service" && section != "Socket";
                assert!(says, "{name}: there is no comment on {key}");
                settings.push((section.clone(), key.to_owned(), value.to_owned()));
            }
        }
    }
    (path, settings)
}

fn setting<'a>(settings: &'a [(String, String, String)], name: &str) -> Vec<&'a str> {
    settings.iter().filter(|(_, key, _)| key == name).map(|(_, _, value)| value.as_str()).collect()
}

#[test]
fn the_units_fit_to_the_daemon() {
    let (_, service) = unit("stdio_bus.service");
    let one = |name: &str| *setting(&service, name).first().unwrap_or_else(|| panic!("{name} is missing"));
    let limits = Limits::default();
    let stop: u64 = one("TimeoutStopSec").parse().expect("seconds");
    assert!(stop >= (limits.lame_duck + limits.quiesce + limits.drain_timeout).as_secs() + 10, "TimeoutStopSec={stop}");
    assert_eq!((one("Type"), one("KillMode"), one("NotifyAccess")), ("notify", "mixed", "main"));
    assert!(one("WatchdogSec").parse::<u64>().is_ok_and(|seconds| seconds >= 10));
    assert!(setting(&service, "MemoryDenyWriteExecute").is_empty(), "V8 could not compile");
    assert!(!setting(&service, "RestartPreventExitStatus").is_empty());
    let (_, socket) = unit("stdio_bus.socket");
    assert_eq!(setting(&socket, "ListenStream").len(), 1);
    assert!(setting(&socket, "Accept").iter().all(|value| *value == "no"));
}

#[test]
fn the_template_is_the_unit_with_a_name_in_its_paths() {
    let [(_, one), (_, template)] = ["stdio_bus.service", "stdio_bus@.service"].map(unit);
    // What only one of them has: the template's socket is optional, and its instances are one user.
    let own =
        |(_, key, _): &(String, String, String)| ["Description", "Requires", "After", "User"].contains(&key.as_str());
    let said = |settings: &[(String, String, String)], from: &str, to: &str| -> Vec<String> {
        let settings = settings.iter().filter(|setting| !own(setting));
        settings.map(|(section, key, value)| format!("[{section}] {key}={}", value.replace(from, to))).collect()
    };
    let template = said(&template, "/etc/stdio_bus/%i", "/etc/stdio_bus");
    let template: Vec<String> = template.iter().map(|line| line.replace("stdio_bus-%i", "stdio_bus")).collect();
    assert_eq!(template, said(&one, "", ""));
    assert!(setting(&unit("stdio_bus@.socket").1, "ReusePort").contains(&"yes"));
}

#[test]
fn systemd_takes_the_units_as_they_are() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip("systemd-analyze is not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for name in ["stdio_bus.service", "stdio_bus.socket", "stdio_bus@.service", "stdio_bus@.socket"] {
        let (path, _) = unit(name);
        // The program is not at its final path.
        let text = fs::read_to_string(path).unwrap().replace("/usr/local/bin/stdio_bus", "/bin/true");
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        paths.push(path);
    }
    let drop_ins = directory.path().join("stdio_bus.service.d");
    fs::create_dir(&drop_ins).unwrap();
    for name in ["users.conf", "sandbox.conf"] {
        fs::copy(unit(name).0, drop_ins.join(name)).unwrap();
    }
    let output = Command::new("systemd-analyze").arg("verify").args(["--man=no"]).args(&paths).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Keys of systemd 254, which earlier ones ignore: there the pause between crashes does not grow.
    let is_newer = |line: &str| line.contains("'RestartSteps'") || line.contains("'RestartMaxDelaySec'");
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("stdio_bus") && !is_newer(line)).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}
