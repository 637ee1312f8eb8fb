//! `doctor`: checks whether this machine can run the daemon, and lists its findings, each with a remedy. It changes
//! nothing and needs no daemon.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, getrlimit};
use rustix::system::uname;
use serde_json::json;

use crate::bus::settings::{MAX_CONNECTIONS, Start};
use crate::config::{Config, PoolConfig, may_change_users};
use crate::error::{StartError, exit};
use crate::io::Io;
use crate::io::kernel::{Choice, Kernel, Refused};
use crate::shell::descriptors::Need;
use crate::shell::listen::{MIGRATES, sharing_warning};
use crate::{cgroup, printable, scan};

/// Threads of an agent on Node.js.
const THREADS: u64 = 12;
const MIB: u64 = 1 << 20;
/// Minimum memory of an agent on Node.js or Python, and of our own, in MiB.
const AGENT: u64 = 50;
const SMALL_AGENT: u64 = 4;
/// Memory of a daemon without clients, in MiB (docs/operations.md, "Sizing").
const RESTING: u64 = 6;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    /// It works, but not as well as it could.
    Warning,
    /// The daemon does not start, or fails.
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    fn good(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Good, text: text.into(), remedy: None }
    }

    fn warning(what: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Warning, text: text.into(), remedy: Some(remedy.into()) }
    }

    /// A requirement of only some configurations is not reported for the others.
    fn missing(what: &'static str, is_needed: bool, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        let verdict = if is_needed { Verdict::Bad } else { Verdict::Good };
        Self { what, verdict, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn bad(what: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Bad, text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// Runs the checks, and prints the findings to stdout. Returns the exit code.
///
/// # Errors
/// Stdout cannot be written.
pub fn run(config: &Config, json: bool) -> Result<u8, StartError> {
    let findings = findings(config);
    let text = if json { as_json(&findings) } else { as_text(&findings) };
    io::stdout().write_all(text.as_bytes()).map_err(StartError::io("write stdout"))?;
    let is_bad = |finding: &&Finding| finding.verdict == Verdict::Bad;
    Ok(match findings.iter().find(is_bad) {
        Some(_) => exit::FAILURE,
        None => exit::OK,
    })
}

fn as_json(findings: &[Finding]) -> String {
    let rows: Vec<_> = findings
        .iter()
        .map(|Finding { what, verdict, text, remedy }| {
            let verdict = match verdict {
                Verdict::Good => "good",
                Verdict::Warning => "warning",
                Verdict::Bad => "bad",
            };
            json!({ "what": what, "verdict": verdict, "text": text, "remedy": remedy })
        })
        .collect();
    printable::json(&format!("{:#}\n", json!({ "findings": rows }))).into_owned()
}

fn as_text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for Finding { what, verdict, text, remedy } in findings {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Warning => "warn",
            Verdict::Bad => "BAD ",
        };
        let _ = writeln!(out, "{mark}  {what:<12}  {text}");
        for line in remedy.iter().flat_map(|remedy| remedy.lines()) {
            let _ = writeln!(out, "{:20}{line}", "");
        }
    }
    out
}

fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = vec![kernel(&uname().release().to_string_lossy())];
    findings.extend(ring(config));
    findings.push(descriptors(config));
    findings.push(locked_memory());
    findings.push(processes(config));
    findings.push(memory(config));
    findings.push(memory_of_all(config, cgroup::memory(), fs::read_to_string("/proc/meminfo").ok().as_deref()));
    findings.push(backlog(fs::read_to_string("/proc/sys/net/core/somaxconn").ok().as_deref()));
    findings.extend(sharing(config, fs::read_to_string(MIGRATES).ok().as_deref()));
    findings.push(Finding::good("processor", format!("lines are scanned with {:?}", scan::Scanner::new().set())));
    findings.push(container());
    findings.push(users(config, may_change_users()));
    findings.push(sandbox(config, &try_bwrap()));
    findings.push(groups(cgroup::may_divide()));
    findings
}

/// Optional kernel features that the daemon uses, by the release that has them.
const RELEASES: [((u32, u32), &str); 2] =
    [((6, 12), "a busy turn cannot wait for several completions"), ((6, 15), "an idle daemon shows as iowait in top")];

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Finding::good("kernel", format!("{release}, whatever that is"));
    };
    if (major, minor) < (6, 1) {
        let remedy = "upgrade to Linux 6.1 or newer, such as that of Debian 12 or Ubuntu 24.04";
        let text = format!("{release} is older than 6.1: epoll is used instead of io_uring");
        return Finding::warning("kernel", text, remedy);
    }
    let missing: Vec<&str> =
        RELEASES.iter().filter(|(since, _)| (major, minor) < *since).map(|(_, what)| *what).collect();
    let text = match missing.is_empty() {
        true => format!("{release} has everything that the daemon uses"),
        false => format!("{release} is new enough; {}", missing.join(", and ")),
    };
    Finding::good("kernel", text)
}

fn ring(config: &Config) -> Vec<Finding> {
    match Kernel::open(Choice::Auto, config.max_workers()) {
        Ok(Kernel::Ring(ring)) => {
            let (description, unregistered) = ring.describe();
            let mut findings = vec![Finding::good("io_uring", format!("works: {description}"))];
            if let Some(error) = unregistered {
                let remedy = "raise the limit of locked memory: LimitMEMLOCK=infinity in systemd, --ulimit memlock=-1 in \
                              Docker, ulimit -l unlimited in a shell";
                let text = format!("buffers cannot be registered ({error}), which costs a few percent of CPU");
                findings.push(Finding::warning("buffers", text, remedy));
            }
            findings
        }
        Ok(Kernel::Epoll(_, Some(Refused { why, remedy }))) => {
            let text = format!("{why}; epoll does the same and takes up to a fifth more CPU");
            vec![Finding::warning("io_uring", text, remedy)]
        }
        Ok(Kernel::Epoll(_, None)) => vec![Finding::good("epoll", "works")],
        Err(error) => vec![Finding::bad("epoll", error.to_string(), "allow more descriptors or memory")],
    }
}

/// What becomes of connections where daemons share a port and one of them ends.
fn sharing(config: &Config, migrates: Option<&str>) -> Option<Finding> {
    let migrates = migrates.filter(|_| config.listeners.iter().any(|listener| listener.reuse_port))?;
    Some(match sharing_warning(migrates) {
        Some(warning) => Finding::warning(
            "reuse_port",
            warning,
            "echo net.ipv4.tcp_migrate_req=1 > /etc/sysctl.d/60-stdio-bus.conf && sysctl --system",
        ),
        None => Finding::good("reuse_port", "connections of a daemon that ends go to others at its port"),
    })
}

fn limit(value: Option<u64>) -> String {
    value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string())
}

fn descriptors(config: &Config) -> Finding {
    let limits = getrlimit(Resource::Nofile);
    let need = Need::of(config);
    let needed = need.most();
    let text = format!(
        "{}; the limit is {}, and may be raised to {}",
        need.sum(),
        limit(limits.current),
        limit(limits.maximum)
    );
    let Some(most) = limits.maximum.filter(|most| *most < needed) else { return Finding::good("descriptors", text) };
    let remedy = format!(
        "LimitNOFILE={needed} in systemd, --ulimit nofile={needed} in Docker, ulimit -Hn {needed} in a shell; or \
         lower pools[].instances and max_instances"
    );
    match need.clients_within(most) {
        Some(clients) => {
            let text = format!("{text}: {clients} clients at once fit, and not {MAX_CONNECTIONS}");
            Finding::warning("descriptors", text, remedy)
        }
        None => Finding::bad("descriptors", text, remedy),
    }
}

fn locked_memory() -> Finding {
    let limits = getrlimit(Resource::Memlock);
    Finding::good("memlock", format!("{} bytes may be locked (for io_uring and its buffers)", limit(limits.current)))
}

fn processes(config: &Config) -> Finding {
    let of_kernel = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok();
    let limits = [
        ("RLIMIT_NPROC", getrlimit(Resource::Nproc).current),
        ("pids.max of the cgroup", cgroup::processes()),
        ("kernel.pid_max", of_kernel("pid_max")),
        ("kernel.threads-max", of_kernel("threads-max")),
    ];
    let lowest = limits.into_iter().filter_map(|(name, most)| Some((most?, name))).min();
    processes_within(config.max_workers() as u64, lowest)
}

/// Threads count as processes. `lowest` is the limit that is reached first.
fn processes_within(workers: u64, lowest: Option<(u64, &str)>) -> Finding {
    let needed = 1 + THREADS * workers;
    let sum = format!(
        "{workers} workers at most, and a thread of the daemon; with {THREADS} threads each, as agents in Node.js have, \
         {needed}"
    );
    let remedy = format!(
        "for {needed}: TasksMax= in systemd, --pids-limit in Docker, ulimit -u in a shell, sudo sysctl -w \
         kernel.pid_max= or kernel.threads-max="
    );
    match lowest {
        Some((most, name)) if most <= workers => {
            Finding::bad("processes", format!("{sum}; {name} allows {most}"), remedy)
        }
        Some((most, name)) if most < needed => {
            let text = format!("{sum}; {name} allows {most}, which is {} for each worker", (most - 1) / workers.max(1));
            Finding::warning("processes", text, remedy)
        }
        Some((most, name)) => Finding::good("processes", format!("{sum}; {name} allows {most}")),
        None => Finding::good("processes", format!("{sum}; without a limit")),
    }
}

fn memory(config: &Config) -> Finding {
    match cgroup::memory_warning(config.limits.max_memory) {
        Some(text) => {
            let remedy = "lower limits.max_memory, or allow more (MemoryMax= in systemd, --memory in Docker)";
            Finding::warning("memory", text, remedy)
        }
        None => Finding::good("memory", format!("limits.max_memory is {} bytes, and fits", config.limits.max_memory)),
    }
}

/// The memory that the daemon and all its workers need, as far as that can be known: an agent's use depends on its
/// requests. `allowed` is the limit of our control group, `meminfo` the kernel's file.
fn memory_of_all(config: &Config, allowed: Option<u64>, meminfo: Option<&str>) -> Finding {
    let ours = cgroup::memory_of_daemon(config.limits.max_memory as u64) / MIB;
    let is_small = |pool: &PoolConfig| {
        let name = pool.program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ["stdio_bus", "openai-agent"].contains(&name)
    };
    let of_one = |pool: &PoolConfig| if is_small(pool) { SMALL_AGENT } else { AGENT };
    let (mut resting, mut asleep, mut of_workers) = (0, 0, 0);
    for pool in &config.pools {
        match pool.core.start {
            Start::AtOnce => resting += pool.core.instances as u64 * of_one(pool),
            Start::OnDemand => asleep += 1,
        }
        // One that takes more than it may is replaced.
        of_workers += pool.core.max_instances as u64 * pool.recycle_memory.unwrap_or(of_one(pool));
    }
    let (workers, needed) = (config.max_workers() as u64, ours + of_workers);
    let asleep = match asleep {
        0 => "all pools are started".to_owned(),
        1 => "1 pool is asleep".to_owned(),
        count => format!("{count} pools are asleep"),
    };
    let sum = format!(
        "while nobody asks, about {} MiB ({asleep} then); at most the daemon takes {ours} MiB, and {workers} workers \
         {of_workers} MiB. That is estimated: {AGENT} MiB for a worker, as small agents in Node.js or Python take \
         ({SMALL_AGENT} MiB for our own), or at most its recycle_memory_mb. In all: {needed} MiB",
        RESTING + resting
    );
    let total = meminfo.and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        Some(line.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
    });
    let limits = [(allowed, "the control group may use"), (total, "this machine has")];
    match limits.into_iter().filter_map(|(most, what)| Some((most? / MIB, what))).min() {
        Some((most, what)) if most < needed => {
            let each = most.saturating_sub(ours) / workers.max(1);
            let text = format!("{sum}; {what} {most} MiB, which leaves {each} MiB for each worker");
            let remedy = "measure one of your workers (RSS in ps), and lower pools[].instances or max_instances, or allow \
                          more (MemoryMax= in systemd, --memory in Docker)";
            Finding::warning("memory", text, remedy)
        }
        Some((most, what)) => Finding::good("memory", format!("{sum}; {what} {most} MiB")),
        None => Finding::good("memory", format!("{sum}; how much there is cannot be seen here")),
    }
}

/// The kernel's limit of a listener's queue, from its file.
fn backlog(text: Option<&str>) -> Finding {
    match text.and_then(|text| text.trim().parse::<u32>().ok()) {
        Some(most) if most < 1024 => {
            let text = format!("net.core.somaxconn is {most}: more clients that come at once may be refused");
            Finding::warning("backlog", text, "sudo sysctl -w net.core.somaxconn=4096")
        }
        Some(most) => Finding::good("backlog", format!("net.core.somaxconn is {most}")),
        None => Finding::good("backlog", "net.core.somaxconn is not to be seen here"),
    }
}

fn container() -> Finding {
    let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
    let by_file = marks.into_iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| name.to_owned());
    let kubernetes = std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "Kubernetes".to_owned());
    let by_variable = std::env::var("container").ok().filter(|name| !name.is_empty());
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_filtered = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
    let filter = if is_filtered { "a seccomp filter is on" } else { "no seccomp filter is on" };
    match kubernetes.or(by_file).or(by_variable) {
        Some(name) => Finding::good("container", format!("this is one ({name}); {filter}")),
        None => Finding::good("container", format!("this is none, as far as can be seen; {filter}")),
    }
}

/// Whether workers can run as other users.
fn users(config: &Config, may_change: bool) -> Finding {
    if may_change {
        return Finding::good("users", "workers can be other users (pools[].user)");
    }
    let is_needed = config.pools.iter().any(|pool| pool.rights.identity.is_some());
    let text = "workers can only run as the daemon's user: pools[].user needs root";
    let remedy = "start the daemon as root, with CAP_SETUID, CAP_SETGID and CAP_KILL; under systemd with the drop-in \
                  config/systemd/users.conf";
    Finding::missing("users", is_needed, text, remedy)
}

/// The program for unprivileged sandboxes, as in config/sandbox.json.
const BWRAP: &str = "bwrap";

/// The result of a trial run in a bubblewrap sandbox.
#[derive(Debug)]
enum Tried {
    Works,
    NotInstalled,
    Failed(String),
}

fn try_bwrap() -> Tried {
    let Ok(program) = std::env::current_exe() else { return Tried::Failed("our own program is not found".to_owned()) };
    let mut command = Command::new(BWRAP);
    command.args("--unshare-all --die-with-parent --ro-bind / / --proc /proc --dev /dev --".split(' '));
    match command.arg(program).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Tried::Works,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().last().map(printable::text);
            Tried::Failed(last.unwrap_or_else(|| output.status.to_string()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Tried::NotInstalled,
        Err(error) => Tried::Failed(error.to_string()),
    }
}

/// Settings that forbid user namespaces: the kernel's file, its value then, and the remedy.
const FORBIDDEN: [(&str, &str, &str); 3] = [
    ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "allow userns to bwrap by an AppArmor profile, or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
];

/// Whether workers can be sandboxed with bubblewrap, which needs user namespaces unless it is setuid root.
fn sandbox(config: &Config, tried: &Tried) -> Finding {
    let is_bwrap = |pool: &PoolConfig| pool.program.file_name().is_some_and(|name| name == BWRAP);
    let is_needed = config.pools.iter().any(is_bwrap);
    let why = match tried {
        Tried::Works => {
            return Finding::good("sandbox", "bwrap works: workers can have a home and a network of their own");
        }
        Tried::NotInstalled => {
            let remedy = "sudo apt-get install bubblewrap; config/sandbox.json is an example";
            return Finding::missing("sandbox", is_needed, "bwrap is not installed", remedy);
        }
        Tried::Failed(why) => why,
    };
    let forbidden = FORBIDDEN.iter().find(|(file, value, _)| {
        fs::read_to_string(format!("/proc/sys/{file}")).is_ok_and(|text| text.trim() == *value)
    });
    let remedy = forbidden.map_or(
        "user namespaces are not allowed here by a container or a service: under systemd add the drop-in \
         config/systemd/sandbox.conf, in Docker allow unshare, mount and pivot_root (--security-opt seccomp=)",
        |(.., remedy)| remedy,
    );
    Finding::missing("sandbox", is_needed, format!("bwrap does not work: {why}"), remedy)
}

/// Whether a pool's command could give each worker a control group with limits of its own.
fn groups(may_divide: Option<bool>) -> Finding {
    match may_divide {
        Some(true) => {
            Finding::good("cgroup", "version 2, and ours may be divided: a pool's command can limit each worker")
        }
        Some(false) => Finding::missing(
            "cgroup",
            false,
            "version 2, and ours may not be divided: limits of memory and processes hold for all workers together",
            "Delegate=yes in systemd, for a pool's command that makes a group for each worker",
        ),
        None => Finding::missing(
            "cgroup",
            false,
            "version 2 is not to be seen here: limits of memory and processes are those of the whole container or service",
            "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 at /sys/fs/cgroup",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::config::{Listener, ListenerKind, UserAndGroups};

    #[test]
    fn an_old_kernel_is_reported_with_the_required_version() {
        let old = kernel("5.15.0-91-generic");
        assert_eq!(old.verdict, Verdict::Warning);
        assert!(old.remedy.is_some_and(|remedy| remedy.contains("6.1 or newer")));
        assert!(kernel("6.1.0-18-amd64").text.contains("cannot wait for several"));
        assert_eq!(kernel("6.18.2").text, "6.18.2 has everything that the daemon uses");
        assert_eq!(kernel("next").verdict, Verdict::Good);
    }

    #[test]
    fn what_a_thousand_workers_need_is_added_up() {
        let mut config = Config::embedded(Path::new("/proc/self/exe"));
        let [pool] = &mut config.pools[..] else { panic!("one pool is built in") };
        (pool.core.instances, pool.core.max_instances) = (1000, 1000);
        pool.program = "/usr/bin/node".into();
        let descriptors = Need::of(&config).sum();
        assert!(descriptors.contains("3000 for 1000 workers"), "{descriptors}");
        let processes = processes_within(1000, Some((4096, "pids.max")));
        assert_eq!(processes.verdict, Verdict::Warning, "{processes:?}");
        assert!(processes.text.contains("12001; pids.max allows 4096, which is 4 for each"), "{processes:?}");
        assert_eq!(processes_within(1000, Some((1000, "pids.max"))).verdict, Verdict::Bad);
        assert_eq!(processes_within(1000, Some((12_001, "pids.max"))).verdict, Verdict::Good);
        assert_eq!(processes_within(1000, None).verdict, Verdict::Good);
        let meminfo = Some("MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        let memory = memory_of_all(&config, None, meminfo);
        assert_eq!(memory.verdict, Verdict::Warning, "{memory:?}");
        assert!(memory.text.contains(": 50341 MiB; this machine has 16384 MiB, which leaves 16 MiB"), "{memory:?}");
        config.pools[0].program = "/usr/local/bin/openai-agent".into();
        assert_eq!(memory_of_all(&config, None, meminfo).verdict, Verdict::Good);
        let memory = memory_of_all(&config, Some(1 << 30), meminfo);
        assert!(memory.text.contains("the control group may use 1024 MiB, which leaves 0 MiB"), "{memory:?}");
        assert_eq!(memory_of_all(&config, None, None).verdict, Verdict::Good);
    }

    #[test]
    fn the_memory_of_pools_that_sleep_is_needed_only_at_most() {
        let mut config = Config::embedded(Path::new("/proc/self/exe"));
        let [pool] = &mut config.pools[..] else { panic!("one pool is built in") };
        pool.program = "/usr/bin/node".into();
        (pool.core.instances, pool.core.max_instances) = (2, 4);
        let mut asleep = config.pools[0].clone();
        asleep.core.start = Start::OnDemand;
        config.pools.extend([asleep.clone(), asleep]);
        config.pools[2].recycle_memory = Some(300);
        let said = memory_of_all(&config, None, None).text;
        assert!(said.starts_with("while nobody asks, about 106 MiB (2 pools are asleep then)"), "{said}");
        assert!(said.contains("12 workers 1600 MiB"), "{said}");
    }

    #[test]
    fn obstacles_to_confinement_are_bad_if_a_pool_needs_it_and_have_a_remedy() {
        let mut config = Config::embedded(Path::new("/proc/self/exe"));
        let failed = || Tried::Failed("No permissions to create new namespace".to_owned());
        let verdicts = |config: &Config| {
            let all = [users(config, false), sandbox(config, &Tried::NotInstalled), sandbox(config, &failed())];
            all.map(|finding| {
                assert!(finding.remedy.is_some(), "{finding:?}");
                finding.verdict
            })
        };
        assert_eq!(verdicts(&config), [Verdict::Good; 3], "no pool requires it");
        config.pools[0].rights.identity =
            Some(UserAndGroups { user: 7, group: 7, groups: Vec::new(), name: None, home: "/".into() });
        config.pools[0].program = "/usr/bin/bwrap".into();
        assert_eq!(verdicts(&config), [Verdict::Bad; 3]);
        assert!(sandbox(&config, &failed()).text.contains("No permissions to create new namespace"));
        assert_eq!(users(&config, true).remedy.or(sandbox(&config, &Tried::Works).remedy), None);
        for (divides, says) in [(Some(true), "may be divided"), (Some(false), "may not be"), (None, "not to be seen")] {
            let finding = groups(divides);
            assert!(finding.text.contains(says) && finding.verdict == Verdict::Good, "{finding:?}");
        }
    }

    #[test]
    fn each_problem_has_a_remedy() {
        let config = Config::embedded(Path::new("/proc/self/exe"));
        let starting = crate::testing::STARTS.write();
        let findings = findings(&config);
        drop(starting);
        assert!(findings.len() >= 9, "{findings:?}");
        for finding in findings.iter().chain([&backlog(Some("128\n"))]) {
            assert!(finding.remedy.is_some() || finding.verdict == Verdict::Good, "{finding:?}");
        }
        assert_eq!(backlog(Some("128\n")).verdict, Verdict::Warning);
        assert_eq!(sharing(&config, Some("0\n")), None);
        let mut shared = config;
        let mut listener = Listener::of(ListenerKind::Tcp, Address::tcp("127.0.0.1", 9000));
        listener.reuse_port = true;
        shared.listeners.push(listener);
        let said =
            |migrates| sharing(&shared, Some(migrates)).map(|finding| (finding.verdict, finding.remedy.is_some()));
        assert_eq!(said("0\n"), Some((Verdict::Warning, true)));
        assert_eq!(said("1\n"), Some((Verdict::Good, false)));
        let text = as_text(&[Finding::bad("io_uring", "no", "do this\nor that")]);
        assert_eq!(text, format!("BAD   io_uring      no\n{0:20}do this\n{0:20}or that\n", ""));
    }
}
