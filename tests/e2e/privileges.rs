//! Workers of other users, with restricted rights: users, groups, limits, umask, CPUs, sandboxes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{said, start_ready};
use crate::client::Client;
use crate::harness::{Setup, as_another_user, children, lives, program_for_all, script, shell, skip, until, with};
use crate::reload::change;
use crate::workers::Lease;

/// Users without an account, outside the range of any `/etc/passwd`.
const ONE: &str = "1999999001";
const OTHER: &str = "1999999002";

fn may_be_others() -> bool {
    let may = rustix::process::geteuid().is_root();
    if !may {
        skip("only root can have workers of another user");
    }
    may
}

/// A pool whose workers answer each request, of id 1, with the output of this shell expression. `$line` is the request.
fn tells(id: &str, expression: &str) -> Value {
    let answer = r#"printf '{"jsonrpc":"2.0","id":1,"result":"%s"}\n'"#;
    shell(id, &format!("while read -r line; do {answer} \"$({{ {expression}; }} | tr '\\n\\t' '  ')\"; done"))
}

/// The pool with workers of this user.
fn of(user: &str, pool: Value) -> Value {
    with(with(pool, "user", user), "group", user)
}

fn told(client: &mut Client, pool: &str, about: &Value) -> String {
    client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "m", "pool": pool, "params": [about] }));
    let answer = client.answer(1);
    answer["result"].as_str().unwrap_or_else(|| panic!("{answer}")).trim().to_owned()
}

#[test]
fn a_worker_is_another_user_with_its_groups_and_home_and_no_privilege_or_terminal_of_ours() {
    if !may_be_others() {
        return;
    }
    let status = "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status";
    let setup = Setup::new([
        with(tells("status", status), "user", "nobody"),
        with(tells("environment", "echo $HOME $USER $LOGNAME"), "user", "nobody"),
        with(with(tells("other", "echo $HOME $USER"), "user", "nobody"), "env", json!({ "HOME": "/tmp" })),
        of(ONE, tells("nameless", "echo $HOME $USER-$LOGNAME; id -u; id -g; id -G")),
        of(ONE, tells("session", "cut -d ' ' -f 5,6 /proc/$$/stat; echo $$")),
        of(ONE, tells("stderr", "echo one line > /dev/stderr && echo written")),
        with(of(ONE, tells("sudo", "grep NoNewPrivs: /proc/self/status")), "no_new_privs", false),
    ]);
    let groups = [4, 27];
    let setup = setup.before_exec(move || {
        // With only the capabilities that config/systemd/users.conf leaves: KILL, SETGID and SETUID (capabilities(7)).
        // SAFETY: it only makes system calls, on what lives in the closure.
        let done = unsafe {
            libc::setgroups(2, groups.as_ptr()) == 0
                && (0..=40)
                    .filter(|capability| ![5, 6, 7].contains(capability))
                    .all(|capability| libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    });
    let mut daemon = setup.variable("USER", "somebody").variable("LOGNAME", "somebody").start();
    let mut client = daemon.connect();
    let mut told = |pool: &str| told(&mut client, pool, &json!(0));
    let passwd = fs::read_to_string("/etc/passwd").expect("it is there");
    let nobody: Vec<&str> =
        passwd.lines().find_map(|line| line.strip_prefix("nobody:")).expect("it is there").split(':').collect();
    let (user, group, home) = (nobody[1], nobody[2], nobody[4]);
    let status = told("status");
    for line in [
        format!("Uid: {user} {user} {user} {user} "),
        format!("Gid: {group} {group} {group} {group} "),
        format!("Groups: {group} "),
        "CapPrm: 0000000000000000 CapEff: 0000000000000000 ".to_owned(),
        "CapAmb: 0000000000000000 NoNewPrivs: 1".to_owned(),
    ] {
        assert!(status.contains(&line), "{line} is not in {status}");
    }
    assert_eq!(told("environment"), format!("{home} nobody nobody"));
    assert_eq!(told("other"), "/tmp nobody");
    assert_eq!(told("nameless"), format!("/ - {ONE} {ONE} {ONE}"));
    let session = told("session");
    let numbers: Vec<&str> = session.split_whitespace().collect();
    assert!(numbers.len() == 3 && numbers.iter().all(|number| *number == numbers[0]), "{session}");
    assert_eq!((told("stderr"), told("sudo")), ("written".to_owned(), "NoNewPrivs: 0".to_owned()));
    daemon.logs(&["[stderr/0] one line"]);
    daemon.stop();
}

#[test]
fn an_unprivileged_daemon_with_setuid_rights_gives_them_to_no_worker() {
    if !may_be_others() {
        return;
    }
    if Command::new("setpriv").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip("setpriv is not installed");
    }
    let status = "grep -E '^(Uid|CapPrm|CapEff|CapInh|CapAmb):' /proc/self/status";
    let setup = Setup::new([with(of(ONE, tells("agents", status)), "no_new_privs", false)]);
    let program = program_for_all(&setup.path("."));
    let rights = "+setuid,+setgid,+kill";
    let (inherited, ambient) = (format!("--inh-caps={rights}"), format!("--ambient-caps={rights}"));
    let (user, group) = (format!("--reuid={OTHER}"), format!("--regid={OTHER}"));
    // The daemon's program is in a place where that user can run it.
    let run = format!("shift; exec {} \"$@\"", program.display());
    let setup =
        setup.under(&["setpriv", &user, &group, "--clear-groups", &inherited, &ambient, "sh", "-c", &run, "sh"]);
    let mut daemon = setup.start();
    let told = told(&mut daemon.connect(), "agents", &json!(0));
    let none = "0000000000000000";
    let wanted = format!("Uid: {ONE} {ONE} {ONE} {ONE} CapInh: {none} CapPrm: {none} CapEff: {none} CapAmb: {none}");
    assert_eq!(told, wanted);
    daemon.stop();
}

#[test]
fn a_worker_has_the_limits_the_umask_and_the_cpus_of_its_pool() {
    let limits = "grep -E 'open files|core file|Max file size|cpu time' /proc/self/limits | tr -s ' '; \
        umask; grep -E 'NoNewPrivs:|Cpus_allowed_list:' /proc/self/status";
    let pool = with(tells("limited", limits), "umask", "0027");
    let pool = with(pool, "rlimits", json!({ "descriptors": 64, "core": 0, "file_size": 4096, "cpu_sec": 60 }));
    let pool = with(with(pool, "no_new_privs", true), "cpus", json!([0]));
    let mut daemon = Setup::new([pool]).start();
    let told = told(&mut daemon.connect(), "limited", &json!(0));
    for line in [
        "Max cpu time 60 61 seconds",
        "Max file size 4096 4096 bytes",
        "Max core file size 0 0 bytes",
        "Max open files 64 64 files",
        "0027 NoNewPrivs: 1 Cpus_allowed_list: 0",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
    daemon.stop();
}

#[test]
fn a_worker_that_has_used_up_its_cpu_time_ends_and_the_log_says_by_which_signal() {
    let busy = with(shell("busy", "while :; do :; done"), "rlimits", json!({ "cpu_sec": 1 }));
    let daemon = Setup::new([busy]).start();
    // SIGXCPU
    daemon.logs(&["a worker ended with signal 24", "worker=busy/0"]);
    daemon.stop();
}

#[test]
fn a_user_without_root_is_an_error_at_its_key_of_the_check_of_this_machine_and_of_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = program_for_all(directory.path());
    let config = directory.path().join("config.json");
    let text = json!({ "pools": [of(ONE, tells("a", "id")), tells("b", "id")] }).to_string();
    fs::write(&config, text).expect("there is room");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).arg("--config").arg(&config).stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            assert!(as_another_user(&mut command, libc::RLIMIT_CORE, 0, || Ok(())));
        }
        let output = command.output().expect("it can be started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for arguments in [&["check", "--environment"][..], &["--tcp", "127.0.0.1:0"]] {
        let (code, said) = run(arguments);
        let why = "pools[0].user: needs a daemon that was started as root (start it as root, with CAP_SETUID";
        assert!(code == Some(78) && said.contains(why), "{code:?}: {said}");
    }
    let (code, said) = run(&["check"]);
    assert_eq!(code, Some(0), "the machine that it is for is another one: {said}");
}

#[test]
fn a_failed_change_of_user_is_reported_with_the_failed_call() {
    if !may_be_others() {
        return;
    }
    let setup = Setup::new([]);
    let closed = setup.path("closed");
    fs::create_dir(&closed).expect("there is room");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let program = setup.path("agent.sh");
    script(&program, "#!/bin/sh\nexec cat\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let agent = json!({ "id": "program", "command": program, "instances": 1 });
    let pools = json!([with(of(ONE, tells("directory", "id")), "cwd", closed.display().to_string()), of(ONE, agent)]);
    let daemon = setup.set("pools", pools).start_without_waiting();
    let user = format!(" as user {ONE}: ");
    daemon.logs(&["spawn_failed", "worker=directory/0", &user, "chdir: Permission denied (os error 13)"]);
    daemon.logs(&["spawn_failed", "worker=program/0", &user, "execve: Permission denied (os error 13)"]);
    daemon.stop();
}

#[test]
fn a_worker_of_another_user_ends_with_a_daemon_that_stops_and_with_one_that_is_killed() {
    if !may_be_others() {
        return;
    }
    let stubborn = || {
        let setup = Setup::new([of(ONE, shell("stubborn", "trap '' TERM; echo here >&2; read line; exec sleep 1000"))]);
        let daemon = setup.limit("drain_timeout_sec", 1).start();
        daemon.logs(&["[stubborn/0] here"]);
        daemon
    };
    stubborn().stop();
    let mut killed = stubborn();
    let (worker, _) = children(killed.pid())[0];
    killed.signal(Signal::KILL);
    killed.wait();
    until("the worker has gone, too", || !lives(worker.into()));
}

#[test]
fn a_reload_with_another_user_replaces_the_workers() {
    if !may_be_others() {
        return;
    }
    let mut daemon = start_ready(Setup::new([of(ONE, tells("agents", "id -u"))]));
    let mut client = daemon.connect();
    assert_eq!(told(&mut client, "agents", &json!(0)), ONE);
    change(&daemon, |config| config["pools"][0] = of(OTHER, tells("agents", "id -u")));
    let changes = said(&daemon, &["reload"]);
    assert!(changes.contains("pools[\"agents\"].user"), "{changes}");
    daemon.until("the new one answers", || told(&mut client, "agents", &json!(0)) == OTHER);
    daemon.stop();
}

/// Tries to open files in `/proc` of the process whose number is between two `@` in the request.
const OPENS: &str = "of=${line#*@}; of=${of%%@*}; \
    for pipe in 0 1; do if ( : >> /proc/$of/fd/$pipe ) 2> /dev/null; then echo opened; else echo refused; fi; done";

/// The result of a worker's opening another one's pipes.
fn opening(one: Value, other: Value) -> String {
    let mut daemon = Setup::new([one, other]).start();
    let mut client = daemon.connect();
    let process = told(&mut client, "other", &json!(0));
    let opened = told(&mut client, "one", &json!(format!("@{process}@")));
    daemon.stop();
    opened
}

#[test]
fn a_worker_can_open_the_pipes_of_another_one_of_its_user() {
    assert_eq!(opening(tells("one", OPENS), tells("other", "echo $$")), "opened opened");
    if may_be_others() {
        let opened = opening(of(ONE, tells("one", OPENS)), of(ONE, tells("other", "echo $$")));
        assert_eq!(opened, "opened opened");
    }
}

#[test]
fn a_worker_cannot_open_the_pipes_of_one_of_another_user_or_of_the_daemons() {
    if !may_be_others() {
        return;
    }
    for other in [of(OTHER, tells("other", "echo $$")), tells("other", "echo $$"), tells("other", "echo $PPID")] {
        assert_eq!(opening(of(ONE, tells("one", OPENS)), other), "refused refused");
    }
}

#[test]
#[ignore = "scripts/test slow"]
fn a_delayed_start_of_one_users_worker_delays_no_other_users_and_is_limited() {
    if !may_be_others() {
        return;
    }
    let mut setup = Setup::new([]);
    let agent = setup.path("agent.sh");
    script(&agent, "#!/bin/sh\nexec cat\n");
    fs::set_permissions(setup.path("."), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let slow = of(ONE, json!({ "id": "slow", "command": agent, "instances": 1 }));
    setup.config()["pools"] = json!([slow, of(OTHER, tells("quick", "echo $$"))]);
    let mut daemon = start_ready(setup);
    let mut client = daemon.connect();
    let before = told(&mut client, "quick", &json!(0));
    daemon.logs(&["worker_started", "worker=slow/0"]);
    let Some(lease) = Lease::on(&agent) else { return skip("the file system of TMPDIR has no leases (fcntl(2))") };
    said(&daemon, &["restart", "pool", "slow"]);
    daemon.until("another one is being started", || !lease.is_undisturbed());
    said(&daemon, &["restart", "pool", "quick"]);
    daemon.until("the other pool has another worker", || told(&mut client, "quick", &json!(0)) != before);
    assert!(!daemon.log().contains("cannot start"), "it has waited for the end of the other start");
    daemon.logs(&["cannot start", "execve: not done within 10 s, and given up", "worker=slow/"]);
    assert!(!daemon.log().contains("ended with signal 9"), "{}", daemon.log());
    drop(lease);
    daemon.stop();
}

/// The example of a sandboxed pool, with an agent that does what is between two `@` in a request, and this socket.
fn sandboxed(socket: &Path) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/sandbox.json");
    let mut example: Value = serde_json::from_slice(&fs::read(path).expect("it is there")).expect("it is JSON");
    let mut pool = example["pools"][0].take();
    let agent = tells("", "x=${line#*@}; x=${x%%@*}; eval \"$x\"");
    let own = ["sh".into(), "-c".into(), agent["args"][1].clone()];
    let arguments = pool["args"].as_array_mut().expect("an array");
    let agent = arguments.iter().position(|argument| argument == "openai-agent").expect("the agent");
    arguments.splice(agent.., own);
    let source = arguments.iter_mut().find(|argument| *argument == "/run/model.sock").expect("the socket outside");
    *source = socket.display().to_string().into();
    pool
}

/// Why no sandbox can be created here, if that is so.
fn why_no_sandbox() -> Option<String> {
    for program in ["bwrap", "socat"] {
        if Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            return Some(format!("{program} is not installed"));
        }
    }
    let tried =
        Command::new("bwrap").args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]).output();
    let tried = tried.expect("it is there");
    (!tried.status.success()).then(|| format!("bwrap: {}", String::from_utf8_lossy(&tried.stderr).trim()))
}

/// Answers each line with another one, until the client leaves.
fn serve_model(listener: UnixListener) {
    std::thread::spawn(move || {
        for mut asker in listener.incoming().map_while(Result::ok) {
            let mut question = [0; 64];
            let length = asker.read(&mut question).unwrap_or_default();
            let _ = asker.write_all(&[b"the model heard ", &question[..length]].concat());
        }
    });
}

fn see_nothing_but_the_model(is_another_user: bool) {
    let mut setup = Setup::new([]);
    fs::set_permissions(setup.path("."), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let socket = setup.path("model");
    serve_model(UnixListener::bind(&socket).expect("a socket"));
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let pool = sandboxed(&socket);
    setup.config()["pools"] = json!([if is_another_user { of(ONE, pool) } else { pool }]);
    let mut daemon = setup.start();
    let (mut one, mut other) = (daemon.connect(), daemon.connect());
    let asks = |client: &mut Client, what: &str| told(client, "agents", &json!(format!("@{what}@")));
    assert_eq!(asks(&mut one, "pwd; echo $HOME; ls -A | wc -l; touch mine; ls -A"), "/home/agent /home/agent 0 mine");
    assert_eq!(asks(&mut other, "ls -A | wc -l; ls -A /home /tmp"), "0 /home: agent  /tmp:", "a home for each worker");
    let (process, config) = (daemon.pid(), daemon.path("config.json"));
    let exists =
        format!("for x in /etc/shadow /root /proc/{process} {}; do test -e $x && echo $x; done", config.display());
    assert_eq!(asks(&mut one, &exists), "", "neither files nor processes of others");
    assert_eq!(asks(&mut one, "touch /usr/x 2> /dev/null || echo no"), "no");
    assert_eq!(asks(&mut one, "tail -n +3 /proc/net/dev | cut -d : -f 1 | tr -d ' '"), "lo");
    let port = daemon.address().port();
    let reach = format!("socat -u /dev/null TCP:127.0.0.1:{port} 2> /dev/null && echo reached || echo not");
    assert_eq!(asks(&mut one, &reach), "not", "the daemon's own port is another network's");
    daemon.until("the model is reached, once socat listens", || {
        asks(&mut one, "echo hello | socat -t 5 - TCP:127.0.0.1:8080 2> /dev/null") == "the model heard hello"
    });
    daemon.stop();
}

#[test]
fn a_worker_in_the_sandbox_of_the_example_has_its_own_home_and_reaches_its_model_alone() {
    if let Some(why) = why_no_sandbox() {
        return skip(&why);
    }
    see_nothing_but_the_model(false);
    if may_be_others() {
        see_nothing_but_the_model(true);
    }
}
