//! The start, or the reason for its failure: command line, configuration, listeners, and requirements of the machine
//! (spec 4.1.1, 9; decisions 15, 16).

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketType, bind, listen, shutdown, socket};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{
    Log, Setup, as_another_user, complaints, echo, end_of, is_socket, program, program_for_all, run_to_its_end, script,
    shell, skip, with, worker,
};
use crate::seccomp::forbid;

/// Runs it with only these arguments.
pub fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let outcome = Setup::bare().args(arguments).run();
    assert_eq!(outcome.stdout, "", "a refusal belongs on stderr");
    (outcome.code, outcome.stderr)
}

#[test]
fn without_a_configuration_two_echo_workers_answer_and_stderr_says_so() {
    let mut daemon = Setup::bare().tcp().start();
    daemon.logs(&["echo"]);
    let mut client = daemon.connect();
    let answer = client.request(1, "hello", json!({ "a": 1 }));
    assert_eq!(answer["result"], json!({ "echo": { "a": 1 }, "method": "hello" }));
    daemon.until("there are two workers", || daemon.descendants().len() == 2);
    daemon.stop();
}

/// With threads, each growth of the table would wait for an RCU grace period: in the loop at the 257th client, for example.
#[test]
fn the_table_of_descriptors_has_room_for_all_clients_from_the_start() {
    let daemon = Setup::bare().tcp().start();
    daemon.address();
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).expect("the kernel reports it");
    assert!(size.trim().parse::<usize>().expect("a number") >= 1024, "{size}");
    daemon.stop();
}

#[test]
fn a_wrong_configuration_exits_with_78_and_names_line_column_and_path() {
    let setup = Setup::bare();
    let path = setup.path("agents.json");
    fs::write(&path, "{\n  \"pools\": [\n    {\"id\":\"a\", \"comand\":\"cat\", \"instances\":0}\n  ]\n}\n").unwrap();
    let file = path.display().to_string();
    let outcome = setup.args(&["--config", &file, "--tcp", "127.0.0.1:0"]).run();
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""));
    for part in ["agents.json:3:", "pools[0].comand", "did you mean \"command\"?", "pools[0].instances"] {
        assert!(outcome.stderr.contains(part), "{part} is missing in\n{}", outcome.stderr);
    }
}

#[test]
fn every_validation_rule_of_the_spec_is_enforced_at_the_start() {
    let pool = |id: &str| json!({ "id": id, "command": "cat", "instances": 1 });
    for (pools, part) in [
        (json!([]), "pools"),
        (json!([pool("a"), pool("a")]), "pools[1].id"),
        (json!([{ "id": "a", "command": "/no/such/program", "instances": 1 }]), "/no/such/program"),
        (json!([{ "id": "a", "command": "no-such-program-in-path", "instances": 1 }]), "PATH"),
        (json!([{ "id": "a", "command": "cat", "instances": 0 }]), "pools[0].instances"),
        (json!([with(pool("a"), "cwd", "/no/such/directory")]), "pools[0].cwd"),
    ] {
        let outcome = Setup::new([]).set("pools", pools).run();
        assert_eq!(outcome.code, Some(78), "{part}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{part} is missing in\n{}", outcome.stderr);
    }
}

#[test]
fn limits_may_be_left_out_and_then_have_their_defaults() {
    // max_input_buffer is 1 MiB then: a line of that size passes, and one byte more does not.
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let line = |size: usize| {
        let frame = json!({ "jsonrpc": "2.0", "id": 1, "method": "who", "params": { "x": "" } }).to_string().len();
        json!({ "jsonrpc": "2.0", "id": 1, "method": "who", "params": { "x": "x".repeat(size - frame) } })
    };
    client.send(&line(1 << 20));
    assert!(client.answer(1)["result"]["pid"].is_number());
    client.send(&line((1 << 20) + 1));
    assert_eq!(client.error(json!(null), "client_line_too_long"), -32600);
    client.ends();
    daemon.stop();
}

#[test]
fn a_port_in_use_exits_with_73_and_names_the_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stderr) = refused(&["--tcp", &address]);
    assert_eq!(code, Some(73), "{stderr}");
    assert!(stderr.contains(&address) && stderr.contains("ss -ltnp"), "{stderr}");
}

#[test]
fn a_port_is_free_again_as_soon_as_the_daemon_has_ended() {
    let mut daemon = Setup::bare().tcp().start();
    let address = daemon.address();
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    // The daemon closes first, so its end of the connection stays in TIME_WAIT.
    daemon.stop();
    client.ends();
    let again = Setup::bare().args(&["--tcp", &address.to_string()]).start_without_waiting();
    again.address();
    again.stop();
}

#[test]
fn a_host_may_be_a_name_or_an_ipv6_address() {
    for host in ["localhost", "[::1]"] {
        if host == "[::1]" && TcpListener::bind("[::1]:0").is_err() {
            skip("no IPv6 here");
            continue;
        }
        let daemon = Setup::bare().args(&["--tcp", &format!("{host}:0")]).start_without_waiting();
        assert_eq!(Client::over_tcp(daemon.address()).request(1, "m", json!({}))["id"], 1);
        daemon.stop();
    }
}

#[test]
fn two_colons_are_every_network_ipv4_too() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("no IPv6 here");
    }
    let daemon = Setup::bare().args(&["--tcp", "[::]:0"]).start_without_waiting();
    for host in ["127.0.0.1", "::1"] {
        let address = std::net::SocketAddr::new(host.parse().unwrap(), daemon.address().port());
        assert_eq!(Client::over_tcp(address).request(1, "m", json!({}))["id"], 1);
    }
    daemon.stop();
}

#[test]
fn the_listeners_of_the_configuration_serve_beside_the_flag() {
    let setup = Setup::new([worker("one", 1, &["--name", "1"]), worker("two", 1, &["--name", "2"])]);
    let path = setup.path("second");
    let listeners = json!([{ "tcp": "127.0.0.1:0", "pool": "one" }, { "unix": path, "pool": "two", "mode": "0660" }]);
    let daemon = setup.set("listeners", listeners).no_listener().start_without_waiting();
    let mut one = Client::over_tcp(daemon.address());
    daemon.until("the Unix socket is there", || is_socket(&path));
    let mut two = Client::over_unix(&path);
    assert_eq!(one.request(1, "who", json!({}))["result"]["name"], "1");
    assert_eq!(two.request(1, "who", json!({}))["result"]["name"], "2");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    daemon.stop();
}

#[test]
fn a_unix_socket_is_for_its_owner_alone_and_is_removed_at_the_end() {
    let daemon = Setup::bare().unix().start();
    let path = daemon.path("socket");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.signal(Signal::TERM);
    let mut daemon = daemon;
    daemon.wait();
    assert!(!path.exists(), "the socket is removed");
    daemon.ends_well();
}

#[test]
fn a_socket_that_a_dead_daemon_left_is_replaced() {
    let setup = Setup::bare().unix();
    drop(UnixListener::bind(setup.path("socket")).unwrap());
    assert!(is_socket(&setup.path("socket")), "the file stays when its listener has gone");
    let mut daemon = setup.start();
    assert_eq!(daemon.connect().request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_stale_socket_that_may_not_be_removed_cannot_be_listened_on() {
    let keeper = Setup::bare();
    let path = keeper.path("socket");
    drop(UnixListener::bind(&path).unwrap());
    let setup = Setup::bare().args(&["--unix", &keeper.text_path("socket")]);
    // As in another user's directory.
    #[cfg(target_arch = "x86_64")]
    let setup = setup.before_exec(|| forbid(libc::SYS_unlink, None, libc::EACCES));
    let outcome = setup.before_exec(|| forbid(libc::SYS_unlinkat, None, libc::EACCES)).run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    for part in ["Permission denied", &path.display().to_string()] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    assert!(is_socket(&path));
}

#[test]
fn a_socket_in_use_is_not_taken_over() {
    let setup = Setup::bare().unix();
    let path = setup.path("socket");
    let _live = UnixListener::bind(&path).unwrap();
    let outcome = setup.run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("a running program listens on it already"), "{}", outcome.stderr);
}

#[test]
fn a_socket_that_another_daemon_is_about_to_listen_on_is_not_taken_over() {
    let setup = Setup::new([echo("echo", 1)]).unix();
    let path = setup.path("socket");
    let home = path.parent().expect("a directory").to_owned();
    // Another daemon, in the middle of its start.
    let directory = File::open(&home).expect("a directory");
    flock(&directory, FlockOperation::LockExclusive).expect("a lock");
    let other = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    bind(&other, &SocketAddrUnix::new(&path).expect("a short path")).expect("a free path");
    let mut daemon = setup.start_without_waiting();
    let waits = || {
        let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file == home)
    };
    daemon.until("it waits for the other one", || waits() || daemon.log().contains("listening on"));
    assert!(waits(), "{}", daemon.log());
    listen(&other, 8).expect("a bound socket");
    flock(&directory, FlockOperation::Unlock).expect("a lock");
    assert_eq!(daemon.wait().code(), Some(73), "{}", daemon.log());
    daemon.logs(&["a running program listens on it already"]);
    assert!(is_socket(&path));
}

#[test]
fn an_abstract_name_has_no_file_and_belongs_to_one_daemon() {
    let keeper = Setup::bare();
    let name = format!("@{}", keeper.text_path("abstract"));
    let daemon = Setup::bare().args(&["--unix", &name]).start();
    daemon.logs(&["listening on", &format!("unix:{name}")]);
    let address = SocketAddr::from_abstract_name(&name[1..]).expect("a good name");
    let mut client = Client::over(UnixStream::connect_addr(&address).expect("it listens"));
    assert_eq!(client.request(1, "m", json!({}))["id"], 1);
    // The bridge finds it by the same name.
    let mut bridge = Command::new(program());
    bridge.args(["acp", "--connect", &format!("unix:{name}")]);
    let mut bridge = bridge.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut client = Client::over_pipes(bridge.stdin.take(), bridge.stdout.take().unwrap());
    assert_eq!(client.request(7, "m", json!({}))["id"], 7);
    client.half_close();
    client.ends();
    assert!(end_of("the bridge", &mut bridge).success());
    let (code, stderr) = refused(&["--unix", &name]);
    assert_eq!(code, Some(73), "{stderr}");
    assert!(!std::path::Path::new(&name).exists() && !keeper.path("abstract").exists());
    daemon.stop();
}

#[test]
fn a_listener_that_was_shut_down_is_opened_again() {
    for setup in [Setup::bare().tcp(), Setup::bare().unix()] {
        let mut daemon = setup.start();
        daemon.connect().request(1, "m", json!({}));
        let mut ended = 0;
        for copy in daemon.copies_of_descriptors() {
            if socket_acceptconn(&copy) == Ok(true) {
                shutdown(&copy, Shutdown::Both).expect("it listens");
                ended += 1;
            }
        }
        assert_eq!(ended, 1);
        daemon.logs(&["reason=accept_paused"]);
        daemon.logs(&["listening on", "again"]);
        assert_eq!(daemon.connect().request(2, "m", json!({}))["id"], 2);
        daemon.stop();
    }
}

#[test]
fn a_restart_right_after_a_kill_takes_the_address_over() {
    let keeper = Setup::bare();
    let path = keeper.text_path("socket");
    let mut daemon = Setup::bare().args(&["--unix", &path]).start();
    for _ in 0..10 {
        daemon.logs(&["listening on"]);
        Client::over_unix(path.as_ref()).request(1, "m", json!({}));
        daemon.signal(Signal::KILL);
        daemon.wait();
        daemon = Setup::bare().args(&["--unix", &path]).start();
    }
    daemon.logs(&["listening on"]);
    daemon.stop();
    let mut daemon = Setup::bare().tcp().start();
    let address = daemon.address().to_string();
    for _ in 0..10 {
        daemon.logs(&["listening on"]);
        Client::over_tcp(daemon.address()).request(1, "m", json!({}));
        daemon.signal(Signal::KILL);
        daemon.wait();
        daemon = Setup::bare().args(&["--tcp", &address]).start();
    }
    daemon.logs(&["listening on"]);
    daemon.stop();
}

#[test]
fn a_socket_whose_queue_is_full_is_not_waited_for() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
    let setup = Setup::bare().unix();
    let address = SocketAddrUnix::new(setup.path("socket")).unwrap();
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let live = socket();
    bind(&live, &address).unwrap();
    listen(&live, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = socket();
        if connect(&client, &address).is_err() {
            break;
        }
        waiting.push(client);
    }
    let outcome = setup.run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("a running program listens on it already"), "{}", outcome.stderr);
}

#[test]
fn a_file_that_is_not_a_socket_is_not_removed() {
    let setup = Setup::bare().unix();
    fs::write(setup.path("socket"), "precious").unwrap();
    let mut daemon = setup.start_without_waiting();
    assert_eq!(daemon.wait().code(), Some(73));
    assert_eq!(fs::read_to_string(daemon.path("socket")).unwrap(), "precious");
    daemon.logs(&["the daemon does not remove it"]);
}

#[test]
fn a_socket_that_another_program_put_in_its_place_is_left_alone() {
    let mut daemon = Setup::bare().unix().start();
    let path = daemon.path("socket");
    fs::remove_file(&path).unwrap();
    let _other = UnixDatagram::bind(&path).unwrap();
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert!(is_socket(&path), "it is not the daemon's socket any more");
    daemon.ends_well();
}

#[test]
fn a_path_that_is_too_long_for_a_unix_socket_is_refused_with_the_length() {
    let path = format!("/tmp/{}", "x".repeat(120));
    let (code, stderr) = refused(&["--unix", &path]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("107"), "{stderr}");
}

#[test]
fn a_directory_that_does_not_exist_is_named_with_the_remedy() {
    let setup = Setup::bare();
    let path = setup.text_path("missing/socket");
    let outcome = setup.args(&["--unix", &path]).run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("mkdir -p"), "{}", outcome.stderr);
}

/// Sets both limits of a resource in the new process.
fn allow(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: setrlimit(2) reads `limit`, which lives until it returns.
    if unsafe { libc::setrlimit(resource, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[test]
fn too_few_descriptors_are_refused_with_the_required_number() {
    let outcome = Setup::new([echo("echo", 2)]).before_exec(|| allow(libc::RLIMIT_NOFILE, 30, 30)).run();
    assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
    for part in ["32 file descriptors", "30 are allowed", "RLIMIT_NOFILE", "LimitNOFILE=", "pools[].instances"] {
        assert!(outcome.stderr.contains(part), "{part} is missing in\n{}", outcome.stderr);
    }
}

#[test]
fn a_client_on_stdio_is_served_with_32_descriptors() {
    let setup = Setup::new([echo("echo", 2)]).no_listener().args(&["--stdio"]);
    let (theirs, ours) = UnixStream::pair().unwrap();
    let daemon = setup
        .stdin(std::os::fd::OwnedFd::from(theirs.try_clone().unwrap()))
        .stdout(std::os::fd::OwnedFd::from(theirs))
        .before_exec(|| allow(libc::RLIMIT_NOFILE, 32, 32))
        .start();
    let mut client = Client::over(ours);
    for id in 0..20 {
        assert!(client.request(id, "m", json!({}))["result"].is_object());
    }
    client.half_close();
    let outcome = daemon.ends_well();
    assert!(complaints(&outcome.stderr).is_empty(), "{}", outcome.stderr);
}

#[test]
fn as_many_clients_are_served_as_descriptors_allow_and_the_next_one_waits() {
    let setup = Setup::new([echo("echo", 1)]);
    let mut daemon = setup.before_exec(|| allow(libc::RLIMIT_NOFILE, 64, 64)).start();
    let said = daemon.logs(&["clients at once fit into the 64 descriptors", "LimitNOFILE="]);
    let fit: usize =
        said.split("WARN").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap().parse().unwrap();
    assert!((20..=60).contains(&fit), "{said}");
    let mut clients: Vec<_> = (0..fit).map(|_| daemon.connect_and_ask()).collect();
    let mut waiting = daemon.connect();
    waiting.ask(1, "m", json!({}));
    daemon.logs(&["connection_limit", &format!("all {fit} connections are in use")]);
    clients.pop();
    assert_eq!(waiting.answer(1)["result"]["method"], "m");
    assert!(!daemon.log().contains("accept_paused"), "nothing has failed");
    daemon.stop();
}

/// Daemons of one user share that user's limit of locked memory: 8 MiB for 60 of them, or the same share for fewer.
#[test]
fn many_daemons_of_one_user_start_with_little_locked_memory() {
    let daemons: u64 = std::env::var("STDIO_BUS_FIGURE_DAEMONS").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let directory = tempfile::tempdir().unwrap();
    let program = program_for_all(directory.path());
    let config = directory.path().join("c.json");
    let pool = json!({ "id": "a", "command": "cat", "instances": 1 });
    fs::write(&config, json!({ "pools": [pool] }).to_string()).unwrap();
    let mut all = Command::new("sh");
    // All of them run at once before the first one is shut down.
    let script = format!(
        "for n in $(seq {daemons}); do \"$0\" --config \"$1\" --io auto --tcp 127.0.0.1:0 2>\"$2/$n\" & all=\"$all $!\"; \
         done; for n in $(seq {daemons}); do tries=0; until grep -Eq 'listening on|ERROR' \"$2/$n\"; do \
         tries=$((tries + 1)); [ $tries -lt 2000 ] || break; sleep 0.05; done; done; kill $all; wait; cat \"$2\"/*"
    );
    let logs = tempfile::tempdir().unwrap();
    fs::set_permissions(logs.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    all.args(["-c", &script]).arg(&program).arg(&config).arg(logs.path());
    if !as_another_user(&mut all, libc::RLIMIT_MEMLOCK, (8 << 20) * daemons / 60, || Ok(())) {
        return;
    }
    let (_, said) = run_to_its_end(&mut all);
    assert_eq!(said.matches("INFO  stopped: ").count() as u64, daemons, "{said}");
    assert!(!said.contains("ERROR"), "{said}");
}

#[test]
fn the_soft_limit_of_descriptors_is_raised_for_the_daemon_and_given_back_to_the_workers() {
    let setup = Setup::new([]);
    let limit = setup.text_path("limit");
    let pool = shell("echo", &format!("ulimit -Sn > {limit}; exec \"$0\" worker echo"));
    let args = json!([pool["args"][0], pool["args"][1], program()]);
    let setup = setup.set("pools", json!([with(pool, "args", args)]));
    let mut daemon = setup.before_exec(|| allow(libc::RLIMIT_NOFILE, 200, 4096)).start();
    daemon.connect().request(1, "m", json!({}));
    assert_eq!(fs::read_to_string(limit).unwrap().trim(), "200");
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("the line is always there");
    let soft: u64 = files.split_whitespace().nth(3).and_then(|soft| soft.parse().ok()).expect("a number");
    assert!(soft >= 1024, "the daemon needs one for each connection: {files}");
    daemon.stop();
}

/// The daemon's start for a user with this limit of locked memory.
struct Locked {
    /// Whether the kernel permits that user a ring.
    has_ring: bool,
    /// Whether the daemon listens.
    listens: bool,
    /// Its output until it listened or exited, and afterwards.
    said: String,
    code: Option<i32>,
}

/// Starts the daemon with this limit, and shuts it down once it listens.
fn with_locked_memory(bytes: u64) -> Option<Locked> {
    let directory = tempfile::tempdir().unwrap();
    let mut probe = Command::new("true");
    let mut daemon = Command::new(program_for_all(directory.path()));
    daemon
        .args(["--tcp", "127.0.0.1:0", "--io", "auto", "--log-level", "debug"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let may = as_another_user(&mut probe, libc::RLIMIT_MEMLOCK, bytes, || {
        // SAFETY: io_uring_setup(2) fills the 120 bytes of its parameters; the ring is closed with the process.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1024, [0_u64; 15].as_mut_ptr()) };
        if ring >= 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    });
    if !may || !as_another_user(&mut daemon, libc::RLIMIT_MEMLOCK, bytes, || Ok(())) {
        return None;
    }
    let has_ring = match probe.status() {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => false,
        Err(error) => panic!("{error}"),
    };
    let mut daemon = daemon.spawn().unwrap();
    let log = Log::of(daemon.stderr.take().unwrap());
    let listens = log.wait(|line| line.contains("listening on")).is_some();
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
    let code = end_of("the daemon", &mut daemon).code();
    log.until_end();
    Some(Locked { has_ring, listens, said: log.text(), code })
}

#[test]
fn without_locked_memory_the_daemon_runs_and_names_the_limit_to_raise() {
    let Some(Locked { has_ring, listens, said, code }) = with_locked_memory(0) else { return };
    assert!(listens, "{said}");
    assert_eq!(code, Some(0), "{said}");
    // Older kernels account for the memory of a ring elsewhere.
    let advice = if has_ring { "raise RLIMIT_MEMLOCK for" } else { "LimitMEMLOCK=infinity" };
    assert!(said.contains(advice), "{said}");
    assert_eq!(said.contains("epoll is used instead"), !has_ring, "{said}");
}

#[test]
fn little_locked_memory_means_a_smaller_ring() {
    let Some(Locked { has_ring, listens, said, code }) = with_locked_memory(64 << 10) else { return };
    assert!(listens && !said.contains("epoll"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.contains("ring: 256 entries") || said.contains("ring: 64 entries"), !has_ring, "{said}");
}

#[test]
fn locked_memory_for_the_ring_alone_means_no_registered_buffers() {
    let Some(Locked { has_ring, listens, said, code }) = with_locked_memory(256 << 10) else { return };
    assert!(has_ring && listens, "{said}");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("buffers are not registered") && said.contains("raise RLIMIT_MEMLOCK for"), "{said}");
}

#[test]
fn a_missing_command_of_one_pool_leaves_the_others_running_unless_it_is_strict() {
    let missing = || json!({ "id": "gone", "command": "/no/such/agent", "instances": 1 });
    let mut daemon = Setup::new([worker("agents", 1, &[]), missing()]).start();
    daemon.logs(&["ERROR", "pools[1].command", "\"/no/such/agent\" of pool \"gone\" does not exist"]);
    let mut client = daemon.connect();
    client.send(&json!({ "id": 1, "method": "m", "pool": "agents" }));
    assert!(client.answer(1)["result"].is_object());
    client.send(&json!({ "id": 2, "method": "m", "pool": "gone" }));
    assert!(client.answer(2)["error"]["code"].is_i64(), "no request waits for a worker that cannot start");
    daemon.stop();
    let refused = Setup::new([worker("agents", 1, &[]), missing()]).args(&["--strict"]).run();
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(refused.stderr.contains("pools[1].command"), "{}", refused.stderr);
}

#[test]
fn a_command_that_disappears_is_reported_with_pool_and_reason_and_others_go_on() {
    let setup = Setup::new([]);
    let agent = setup.path("agent");
    script(&agent, "#!/bin/sh\necho the script is open >&2\nread line\nexit 1\n");
    let pools = json!([{ "id": "moved", "command": agent, "instances": 1 }, echo("good", 1)]);
    let mut daemon = setup.set("pools", pools).limit("max_restarts", 2).start();
    daemon.logs(&["the script is open"]);
    fs::remove_file(&agent).unwrap();
    let mut client = daemon.connect();
    client.send(&json!({ "id": 1, "method": "m", "pool": "moved" }));
    client.error(1, "worker_exited");
    daemon.logs(&["ERROR", "spawn_failed", "moved/", "No such file"]);
    daemon.logs(&["given up after 2 restarts"]);
    assert_eq!(client.request(2, "m", json!({}))["result"]["method"], "m");
    client.send(&json!({ "id": 3, "method": "m", "pool": "moved" }));
    assert_eq!(client.error(3, "no_worker"), -32010);
    daemon.stop();
}

#[test]
fn a_configuration_that_is_broken_or_removed_later_changes_nothing_for_a_running_daemon() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    for damage in ["{\"pools\":[", "{}", ""] {
        let path = daemon.path("config.json");
        fs::write(&path, damage).unwrap();
        if damage.is_empty() {
            fs::remove_file(&path).unwrap();
        }
        // The next worker is started like the first one.
        client.ask(1, "exit", json!({ "code": 1 }));
        client.error(1, "worker_exited");
        daemon.until("there is another worker", || client.request(2, "who", json!({}))["result"].is_object());
    }
    daemon.stop();
}

#[test]
fn a_configuration_that_is_changed_later_is_for_the_next_daemon() {
    let mut daemon = Setup::new([worker("agents", 1, &["--name", "old"])]).start();
    let mut client = daemon.connect();
    let path = daemon.path("config.json");
    let changed = fs::read_to_string(&path).unwrap().replace("\"old\"", "\"new\"");
    fs::write(&path, &changed).unwrap();
    client.ask(1, "exit", json!({ "code": 1 }));
    client.error(1, "worker_exited");
    let mut who = Value::Null;
    daemon.until("there is another worker", || {
        who = client.request(2, "who", json!({}));
        who["result"].is_object()
    });
    assert_eq!(who["result"]["name"], "old");
    daemon.stop();
    let mut next = Setup::bare().tcp();
    *next.config() = serde_json::from_str(&changed).unwrap();
    let mut next = next.start();
    assert_eq!(next.connect().request(1, "who", json!({}))["result"]["name"], "new");
    next.stop();
}

#[test]
fn a_closed_stdin_does_not_stop_a_daemon_with_listeners() {
    let mut daemon = Setup::bare()
        .tcp()
        .before_exec(|| {
            // SAFETY: close(2) takes a number; the new process does not use its stdin otherwise.
            unsafe { libc::close(0) };
            Ok(())
        })
        .start();
    assert_eq!(daemon.connect().request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn the_least_configuration_answers_a_request() {
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/config/minimal.json");
    let mut daemon = Setup::bare().tcp().args(&["--config", minimal]).start();
    let mut client = daemon.connect();
    assert_eq!(client.request(1, "hello", json!({ "a": 1 }))["result"]["echo"]["a"], 1);
    daemon.stop();
}

#[test]
fn a_worker_that_echoes_its_requests_answers_with_them() {
    let mut daemon = Setup::new([json!({ "id": "cat", "command": "cat", "instances": 2 })]).start();
    let (mut first, mut second) = (daemon.connect(), daemon.connect());
    for id in 0..4 {
        for client in [&mut first, &mut second] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"hello","params":{{"sessionId":"s{id}"}}}}"#);
            let line = if id % 2 == 0 { line.replace("sessionId", "name") } else { line };
            client.send_line(&line);
            // The name that both use belongs to the first one.
            match client.line() {
                answer if answer.contains("session_denied") => assert_eq!(id % 2, 1),
                answer => assert_eq!(answer, line),
            }
        }
    }
    daemon.stop();
}

#[test]
fn a_stack_that_is_too_small_is_named_instead_of_a_signal() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 64; exec \"$0\" --version"]).arg(program());
    let output = command.output().expect("sh is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("64 KiB") && said.contains("ulimit -s"), "{said}");
}
