//! Reports for people: every drop, close and change of state, with peer and reason.

use alloc::rc::Rc;
use alloc::string::String;

use super::origin::Origin;
use super::stats::ConnectionStats;
use crate::index::PoolId;

/// The level of a report (spec, appendix C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Verbose detail.
    Debug,
    /// Normal operation.
    #[default]
    Info,
    /// Something was refused or lost, and the bus continues.
    Warn,
    /// Something is broken and needs attention.
    Error,
}

/// Declares the reasons once: variant, name in logs and error data, level, JSON-RPC error code if it is answered with one
/// of its own (decision 8), help text. The code is behind `fails` if such an event mostly means that a request gets an
/// error instead of its answer, else behind `says`.
///
/// MCP reserves -32020 to -32022; the bridge has -32018, -32023 and -32024.
macro_rules! reasons {
    ($($variant:ident $name:literal $level:ident $(fails $failure:literal)? $(says $error:literal)? $help:literal,)*) => {
        /// Why something was dropped, closed or changed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason { $(#[doc = $help] $variant,)* }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The name that users see.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it means, for people.
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }

            /// The level of its reports.
            pub fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level,)* }
            }

            /// The JSON-RPC error code, for those that are answered.
            pub fn code(self) -> i32 {
                match self { $($(Self::$variant => $error,)?)* _ => self.failure().unwrap_or(-32603) }
            }

            /// The code, if it mostly reports that requests fail.
            pub(super) fn failure(self) -> Option<i32> {
                match self { $($(Self::$variant => Some($failure),)?)* _ => None }
            }
        }
    };
}

reasons! {
    ClientOpened "client_opened" Info "A client connected.",
    ClientClosed "client_closed" Info "A client connection is closed. As its cause: the client has ended it.",
    ClientBroken "client_broken" Info "A client's connection broke: reset, or closed before its answers were sent.",
    RequestDiscarded "request_discarded" Warn says -32011 "A client disconnected while its request was pending.",
    ClientLeft "client_left" Warn "A client disconnected before it answered a worker's request.",
    ClientMalformed "client_malformed" Warn says -32700 "A client sent a malformed line; its connection was closed.",
    ClientLineTooLong "client_line_too_long" Error says -32600 "A client sent a line above max_input_buffer; its connection was closed.",
    ClientStalled "client_stalled" Warn "A client read nothing for backpressure_timeout_sec; its connection was closed.",
    ClientIdle "client_idle" Info says -32029 "A client was idle for longer than idle_timeout_sec, or was evicted as idle because all slots were taken.",
    OwnWorkerEnded "own_worker_ended" Warn says -32011 "The client's own worker has ended; the connection was closed.",
    OwnWorkerReplaced "own_worker_replaced" Info "The client's own worker has ended before its first answer; the client keeps its connection and gets another one.",
    ClientKilled "client_killed" Warn says -32028 "The operator closed a client's connection.",
    TokenRemoved "token_removed" Warn says -32025 "The client's token was removed from its file, or is for other pools now; the connection was closed.",
    ClientOverdue "client_overdue" Warn "A closing client did not take its last bytes in time.",
    NoInput "no_input" Warn "Stdin ended before any input, and there is no listener.",
    ConnectionClosing "connection_closing" Info says -32026 "A client sent something on a connection that was being closed; it was refused.",
    MemoryLimit "memory_limit" Warn says -32027 "A client held too much while memory was short; its connection was closed.",
    ConnectionLimit "connection_limit" Warn says -32019 "All connections are in use, or all of a listener or a source.",
    NotAllowed "not_allowed" Warn "allow or peer_uids of the listener does not name the peer; the connection was closed.",
    ProxyHeader "proxy_header" Warn says -32600 "A PROXY header was malformed, missing, late, or from an address that proxy.from does not name; the connection was closed.",
    HandshakeRefused "handshake_refused" Warn "A WebSocket handshake was refused or came too late, or an HTTP request was refused.",
    IdentityRefused "identity_refused" Warn "A request named its client in the header of identity, but the sender is not a trusted proxy, or the name is missing, ambiguous, or differs from that of the token or certificate.",
    EventsLost "events_lost" Warn "Events of a session were dropped: the session ended before its client fetched them, or more arrived than are kept.",
    BinaryIgnored "binary_ignored" Warn "A client sends binary messages over WebSocket, which are ignored.",
    PartialLine "partial_line" Warn "A peer ended in the middle of a line; the part was dropped.",
    WorkerAwaited "worker_awaited" Info "A client waits for the first answer of its own worker, which may still be starting.",
    NoWorker "no_worker" Warn fails -32010 "No worker of the pool is running.",
    RequestLost "request_lost" Warn fails -32011 "The worker of a request or of its session ended; the client reads which of the reasons of -32011 it was.",
    SessionLimit "session_limit" Warn fails -32012 "The session table is full.",
    PendingLimit "pending_limit" Warn fails -32013 "The table of pending requests is full.",
    SessionDenied "session_denied" Warn fails -32014 "A client named a session of another client.",
    SessionLost "session_lost" Warn fails -32017 "A client named a session that has ended with its worker.",
    InitializeLost "initialize_lost" Warn fails -32031 "The worker that a client had initialized has ended, and the initialize was too large to be kept for the next one.",
    InitializeRefused "initialize_refused" Warn "A worker accepts one initialize only, and refused that of a second client.",
    SessionEvicted "session_evicted" Warn "The session table or a dedicated pool was full, and an unused session was closed: of the client with most, or the MCP session idle for longest.",
    SessionIdle "session_idle" Info "A session was not used for session_idle_sec, or had no connection for session_detached_sec, and was closed.",
    SessionTaken "session_taken" Warn fails -32014 "Another connection of the same name has taken a session over.",
    ClaimExpired "claim_expired" Debug "A sessionId that no worker has acknowledged was not used for a minute.",
    Cancelled "cancelled" Debug says -32800 "A request was cancelled by its client, and not answered within 5 s or before the client left.",
    ClientSlow "client_slow" Warn "A client read too slowly for a shared worker; its connection was closed.",
    CrashSuspect "crash_suspect" Warn "Workers ended one after the other with a request of this client; the client is slowed down.",
    IdTooLong "id_too_long" Warn fails -32602 "A request id is longer than 128 bytes.",
    SessionIdTooLong "session_id_too_long" Warn fails -32602 "A sessionId is longer than 256 bytes.",
    UnknownPool "unknown_pool" Warn fails -32602 "A message named a pool that is not configured, or that its listener does not offer.",
    EraUnsupported "unsupported_protocol_version" Info fails -32022 "A client of MCP 2026-07-28 asked a pool whose command does not serve that version.",
    MethodDenied "method_denied" Warn fails -32601 "A client used a method that deny_methods of the pool, of its name or of a group keeps from it.",
    ToolDenied "tool_denied" Warn fails -32602 "A client called a tool that deny_tools or allow_tools of the pool, of its name or of a group keeps from it.",
    Timeout "timeout" Warn fails -32015 "A request was not answered within request_timeout_sec, counted from when the daemon received it, or its worker said nothing about it for idle_timeout_sec.",
    ShuttingDown "shutting_down" Info fails -32016 "A request came, or was still pending, while the daemon shut down.",
    UnknownId "unknown_id" Warn "A response carries an id that no request is pending for, or a worker's request one that is no id.",
    WorkerAnswersTwice "worker_answers_twice" Warn "A worker sent a response that matches no pending request: it answered twice, or used an id that it was never sent.",
    LateAnswer "late_answer" Debug "A response came after its client had left or had got an error.",
    UnknownSession "unknown_session" Warn "A worker's message names a session that no client owns.",
    SessionReused "session_reused" Warn "A worker gave one sessionId to two clients; the first one keeps it.",
    SessionDoubled "session_doubled" Warn "Two workers gave one client the same sessionId; messages that name it are \
        sent to the older session.",
    Unroutable "unroutable" Warn "A worker's message does not name its receiver, and several clients may be meant.",
    ServerRequest "server_request" Warn says -32600 "A worker sent a request to a client of MCP 2026-07-28, which takes none; the worker got an error.",
    UnknownRequest "unknown_request" Debug says -32602 "A message is about a request that is not pending any more.",
    WorkerStarted "worker_started" Info "A worker is running.",
    WorkerExited "worker_exited" Warn "A worker's process ended unexpectedly.",
    WorkerStopped "worker_stopped" Info "A worker's process ended as requested.",
    WorkerKilled "worker_killed" Warn "A worker did not stop in time and was killed.",
    WorkerHoldsPipe "worker_holds_pipe" Warn "A worker has exited, but a process it started keeps its stdout open.",
    SpawnFailed "spawn_failed" Error "A worker could not be started.",
    CredentialsMissing "credentials_missing" Warn fails -32032 "A worker was not started: a credential that its client must supply (env_from) is missing, or cannot be used.",
    WorkerMalformed "worker_malformed" Error says -32011 "A worker wrote a malformed line to stdout; it is restarted, or (on_bad_output) the request fails that the line answers.",
    WorkerLineTooLong "worker_line_too_long" Error says -32011 "A worker wrote a line above four times max_input_buffer; it is restarted, or (on_bad_output) the request fails that the line answers.",
    WorkerStdout "worker_stdout" Warn "A worker wrote a line to stdout that is no message; it was logged and passed over (on_bad_output).",
    TooDeep "too_deep" Warn "A worker wrote a line that is nested deeper than 1,024; the line was dropped.",
    WorkerClosedStdout "worker_closed_stdout" Warn "A worker closed its stdout and still runs; it is restarted.",
    WorkerClosedStdin "worker_closed_stdin" Warn "A worker closed its stdin and still runs; it is restarted.",
    WorkerStalled "worker_stalled" Error "A worker read nothing for backpressure_timeout_sec; it is restarted.",
    WorkerFloods "worker_floods" Warn "A worker writes a lot of output that has no recipient; reading from it is throttled.",
    WorkerSilent "worker_silent" Warn "A worker has written nothing for 30 s although requests wait for it.",
    WorkerHangs "worker_hangs" Error "Three requests in a row to a worker timed out without any output, or two checks of its pool; it is restarted.",
    StartTimeout "start_timeout" Error says -32011 "A worker of a pool that starts on demand wrote nothing for start_timeout_sec while a request was pending on it; it is restarted.",
    WorkerUnresponsive "worker_unresponsive" Warn "A worker has written nothing for worker_silent_sec while \
        requests are pending on it; new clients are sent to other workers.",
    WorkerWell "worker_well" Info "An unresponsive worker has recovered: it wrote a line, or no request is pending on it.",
    WorkerReplaced "worker_replaced" Warn "A worker is replaced: by a reload, for its age, requests or memory, or by the operator.",
    PoolRolled "pool_rolled" Info "The rollout of a pool is complete: all outdated workers were replaced.",
    RollFailed "roll_failed" Error "A rollout was stopped: three new workers in a row ended before they became stable. The old ones keep running.",
    EraKnown "era_known" Info "It was discovered whether the command of a pool serves MCP 2026-07-28.",
    PoolAsleep "pool_asleep" Info "A pool that starts on demand was idle for idle_stop_sec, or when workers held more than max_workers_memory_mb: its workers are stopped until the next line.",
    WorkersMemory "workers_memory" Warn "The processes of all workers hold more than max_workers_memory_mb, and no pool that starts on demand is idle.",
    PoolWoken "pool_woken" Info "A line arrived for a pool that was asleep: its workers are started.",
    RestartScheduled "restart_scheduled" Info "A worker will be restarted after its backoff.",
    PoolDegraded "pool_degraded" Error "A worker exceeded max_restarts within restart_window_sec and was given up.",
    ListenerClosed "listener_closed" Warn "No worker of a listener's pools is running; its socket is closed (when_not_ready).",
    ListenerRemoved "listener_removed" Info says -32030 "The client's listener was removed from the configuration; the connection was closed after drain_timeout_sec.",
    ListenerOpened "listener_opened" Info "A worker of a listener's pools is running again; its socket is open.",
    DaemonHeldUp "daemon_held_up" Warn "The daemon did not run for more than a second: it was stopped, or got no CPU time.",
    MachineSuspended "machine_suspended" Warn "The machine was suspended for more than a second.",
    Draining "draining" Info "The shutdown has reached its next stage.",
}

impl Reason {
    /// What a client reads in `error.data.reason`: the name, except that a request lost with its worker gets the cause.
    pub fn error_name(self) -> &'static str {
        match self {
            Self::RequestLost => Self::WorkerExited.name(),
            other => other.name(),
        }
    }
}

/// The name of a worker for people: `claude/0`, and its incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerName {
    /// Index of its pool.
    pub pool: PoolId,
    /// Its place in the pool. A successor has the same.
    pub place: usize,
    /// Its own number during the daemon's lifetime.
    pub incarnation: u32,
}

/// A report for people, which the shell logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub reason: Reason,
    pub level: Level,
    /// The client's number, if a client is concerned.
    pub client: Option<u32>,
    /// Who that client is.
    pub origin: Option<Rc<Origin>>,
    /// That client's account, if it has left.
    pub account: Option<ConnectionStats>,
    /// The worker, if one is concerned.
    pub worker: Option<WorkerName>,
    /// The request id as written, if a request is concerned: a token of JSON.
    pub id: Option<String>,
    /// A sentence.
    pub text: String,
    /// Number of reports with the same reason that were suppressed since the last one.
    pub suppressed: u64,
}

impl Report {
    /// A report about no peer yet.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            level: reason.level(),
            client: None,
            origin: None,
            account: None,
            worker: None,
            id: None,
            text: text.into(),
            suppressed: 0,
        }
    }

    /// The report at another level than its reason has.
    pub fn at(mut self, level: Level) -> Self {
        self.level = level;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
    }

    #[test]
    fn the_page_of_failures_has_each_reason_that_fails_requests_or_asks_for_something() {
        /// The code of errors without one of their own.
        const OTHERS: i32 = -32603;
        let page = include_str!("../../../docs/failures.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let cells: Vec<_> = rows.map(|cell| format!("`{cell}")).collect();
        for reason in Reason::ALL {
            let code = reason.code();
            let name = format!("`{}`", reason.name());
            let of_reason: Vec<&String> = cells.iter().filter(|cell| cell.contains(&name)).collect();
            if reason.level() >= Level::Warn || code != OTHERS {
                assert!(!of_reason.is_empty(), "docs/failures.md has no row for {name}");
                let code = format!(" {code}");
                let has_code = of_reason.iter().any(|cell| cell.contains(&code));
                assert!(reason.code() == OTHERS || has_code, "docs/failures.md has no row for {name} with{code}");
            }
        }
    }
}
