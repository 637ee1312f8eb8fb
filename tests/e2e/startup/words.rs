//! The command line and the environment, and the sources of the configuration.

use super::*;

#[test]
fn help_and_version_go_to_stdout_with_exit_code_0() {
    for (flag, part) in [("--help", "--config"), ("-h", "--config"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let outcome = Setup::bare().args(&[flag]).run();
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{flag}");
        assert!(outcome.stdout.contains(part), "{flag}: {}", outcome.stdout);
    }
}

#[test]
fn a_wrong_command_line_exits_with_2_and_says_what_is_wrong() {
    for (arguments, part) in [
        (&["--config", "a", "--config-fd", "3"][..], "--config-fd"),
        (&["--tcp", "9000"], "9000"),
        (&["--bogus"], "--bogus"),
        (&["--log-level", "loud"], "loud"),
    ] {
        let (code, stderr) = refused(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_configuration_that_does_not_exist_exits_with_78() {
    let (code, stderr) = refused(&["--config", "/no/such/agents.json"]);
    assert_eq!(code, Some(78));
    assert!(stderr.contains("/no/such/agents.json"), "{stderr}");
}

#[test]
fn flags_that_are_given_twice_are_no_error_and_the_last_one_holds() {
    let setup = Setup::bare().tcp();
    let path = setup.text_path("c");
    fs::write(&path, json!({ "pools": [worker("last", 1, &["--name", "by descriptor"])] }).to_string()).unwrap();
    let arguments = ["--config", "/no/such.json", "--tcp", "127.0.0.1:1", "--config", &path, "--tcp", "127.0.0.1:0"];
    answers_by_its_name(setup.args(&arguments));
}

#[test]
fn of_several_flags_that_say_where_to_listen_each_one_listens() {
    let setup = Setup::bare();
    let path = setup.text_path("both");
    let unix = format!("unix:{path}");
    let daemon = setup.args(&["--unix", &unix, "--tcp", "tcp://127.0.0.1:0"]).start_unheard();
    assert_eq!(Client::over_tcp(daemon.address()).request(1, "m", json!({}))["id"], 1);
    assert_eq!(Client::over_unix(path.as_ref()).request(2, "m", json!({}))["id"], 2);
    daemon.stop();
}

#[test]
fn a_missing_script_is_reported_at_the_start_as_by_check() {
    let setup = Setup::new([json!({ "id": "a", "command": "sh", "args": ["/no/such/agent.py"], "instances": 1 })]);
    let daemon = setup.start_unheard();
    daemon.logs(&["WARN", "pools[0].args[0]: /no/such/agent.py does not exist"]);
    daemon.stop();
}

#[test]
fn the_environment_can_ask_for_debug() {
    for (value, arguments, told) in [("1", &[][..], true), ("1", &["--log-level", "info"], false), ("0", &[], false)] {
        let setup = Setup::new([worker("agents", 1, &[])]).variable("DEBUG_STDIO", value).args(arguments);
        let mut daemon = setup.start();
        daemon.connect().request(1, "who", json!({}));
        let log = daemon.log();
        assert_eq!(log.contains("DEBUG"), told, "{value} {arguments:?}:\n{log}");
    }
}

#[test]
fn the_environment_chooses_the_backend_only_for_the_daemon() {
    let with = |value: &str, arguments: &[&str]| Setup::bare().variable("STDIO_BUS_IO", value).args(arguments);
    let mut daemon = with("", &["--tcp", "127.0.0.1:0"]).start();
    assert!(daemon.connect().request(1, "m", json!({}))["result"].is_object());
    let daemon = with("epoll", &["--tcp", "127.0.0.1:0", "--log-level", "debug"]).start();
    daemon.address();
    let log = daemon.stop().stderr;
    assert!(log.contains("epoll"), "{log}");
    let outcome = with("nonsense", &["--tcp", "127.0.0.1:0"]).run();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("STDIO_BUS_IO") && outcome.stderr.contains("ring"), "{}", outcome.stderr);
    for arguments in [&["worker", "echo"][..], &["check"], &["--version"]] {
        let outcome = with("nonsense", arguments).run();
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn a_port_alone_is_open_to_every_network_of_both_protocols() {
    let daemon = Setup::new([worker("agents", 1, &[])]).args(&["--tcp", ":0"]).start();
    let port = daemon.address().port();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    if TcpListener::bind("[::1]:0").is_ok() {
        assert!(TcpStream::connect(("::1", port)).is_ok());
    }
    daemon.stop();
}

#[test]
fn the_configuration_may_come_through_a_descriptor() {
    let setup = Setup::bare().tcp();
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(setup.path("c")).unwrap();
    file.write_all(json!({ "pools": [worker("passed", 1, &["--name", "by descriptor"])] }).to_string().as_bytes())
        .unwrap();
    file.rewind().unwrap();
    let number = inheritable(&file).to_string();
    answers_by_its_name(setup.args(&["--config-fd", &number]));
}

#[test]
fn the_configuration_may_come_through_stdin_but_not_with_the_clients_messages() {
    let setup = Setup::bare();
    let path = setup.path("c");
    let pools = json!([worker("passed", 1, &["--name", "by descriptor"])]);
    fs::write(&path, json!({ "pools": pools }).to_string()).unwrap();
    let outcome = setup.args(&["--config", "-"]).stdin(File::open(&path).unwrap()).run();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("add --tcp or --unix"), "{}", outcome.stderr);
    let with_listener = json!({ "pools": pools, "listeners": [{ "tcp": "127.0.0.1:0" }] });
    let setup = Setup::bare();
    let path = setup.path("c");
    fs::write(&path, with_listener.to_string()).unwrap();
    answers_by_its_name(setup.args(&["--config", "-"]).stdin(File::open(&path).unwrap()));
}

#[test]
fn check_says_whether_a_configuration_is_good_and_starts_nothing() {
    let setup = Setup::bare();
    let marker = setup.path("started");
    let path = setup.path("c.json");
    let config = json!({ "pools": [shell("a", &format!("touch {}", marker.display()))] });
    fs::write(&path, config.to_string()).unwrap();
    let file = path.display().to_string();
    let outcome = setup.args(&["check", "--config", &file]).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!marker.exists());
}

#[test]
fn check_warns_of_missing_files_and_checks_this_machine_if_requested() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.json");
    let pool = json!({ "id": "a", "command": "sh", "args": ["/no/such/worker.py"], "instances": 1 });
    let config = json!({ "pools": [pool], "listeners": [{ "unix": "/no/such/directory/bus" }] });
    fs::write(&path, config.to_string()).unwrap();
    let file = path.display().to_string();
    let outcome = Setup::bare().args(&["check", "--config", &file]).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("warning: pools[0].args[0]: /no/such/worker.py does not exist"), "{outcome:?}");
    let outcome = Setup::bare().args(&["check", "--environment", "--config", &file]).run();
    assert_eq!(outcome.code, Some(73), "{outcome:?}");
    assert!(outcome.stderr.contains("mkdir -p /no/such/directory"), "{outcome:?}");
    let outcome = Setup::bare().args(&["check", "--environment"]).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("io_uring works: DEFER_TASKRUN"), "{outcome:?}");
}

#[test]
fn unwritable_output_ends_in_failure() {
    for arguments in [["check"].as_slice(), &["--help"], &["--version"], &["-h"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let outcome = Setup::bare().no_listener().args(arguments).stdout(full).run();
        assert_eq!(outcome.code, Some(1), "{arguments:?}: {}", outcome.stderr);
    }
}
