//! What is measured: how many clients with how many messages in flight, how large, over what, to how many workers.

/// What the clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP over the loopback.
    Tcp,
    /// A Unix socket.
    Unix,
    /// A WebSocket over TCP.
    WebSocket {
        /// Seconds of silence until a client is pinged; 0 is never.
        ping_sec: u32,
    },
}

/// What goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Each request is answered; request and answer have this many bytes.
    RoundTrips {
        /// With the newline.
        bytes: usize,
    },
    /// Each request is answered with this many notifications of the session, and then with a result.
    Tokens {
        /// Lines for one request.
        lines: u64,
        /// Of one line, with the newline.
        bytes: usize,
    },
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// For the table and the command line.
    pub name: &'static str,
    /// What the clients connect to.
    pub transport: Transport,
    /// Connections, each with one session.
    pub clients: usize,
    /// Connections beside them that say nothing.
    pub idle: usize,
    /// Requests that each of them has in flight.
    pub window: usize,
    /// Workers of the one pool.
    pub workers: usize,
    /// What goes through.
    pub traffic: Traffic,
    /// Whether a client gathers the requests that it can send at once into one write, as a gateway does; the others
    /// know nothing of each other, and each is a write of its own.
    pub gathered: bool,
    /// Whether daemon, workers and clients share a CPU: for cases in which all but one of them always sleep.
    pub one_cpu: bool,
    /// Stop after so many round trips in all; none means after the time.
    pub total: Option<u64>,
}

impl Case {
    /// Whether each client has a worker of its own, so that bytes can be passed on as they come.
    pub fn is_one_to_one(&self) -> bool {
        self.clients == self.workers
    }
}

const SMALL: usize = 200;

const fn trips(name: &'static str, clients: usize, window: usize, workers: usize, bytes: usize) -> Case {
    let traffic = Traffic::RoundTrips { bytes };
    Case {
        name,
        transport: Transport::Tcp,
        clients,
        idle: 0,
        window,
        workers,
        traffic,
        gathered: false,
        one_cpu: false,
        total: None,
    }
}

const fn unix(name: &'static str, case: Case) -> Case {
    Case { name, transport: Transport::Unix, ..case }
}

const fn gathered(case: Case) -> Case {
    Case { gathered: true, ..case }
}

const fn among(name: &'static str, idle: usize, case: Case) -> Case {
    Case { name, idle, ..case }
}

const fn one_cpu(case: Case) -> Case {
    Case { one_cpu: true, ..case }
}

const fn tokens(name: &'static str) -> Case {
    Case { traffic: Traffic::Tokens { lines: 200, bytes: SMALL }, ..trips(name, 64, 1, 8, SMALL) }
}

const CASES: &[Case] = &[
    one_cpu(trips("ping-pong", 1, 1, 1, SMALL)),
    one_cpu(unix("ping-pong unix", trips("", 1, 1, 1, SMALL))),
    one_cpu(among("ping-pong among 1,023 idle", 1023, trips("", 1, 1, 1, SMALL))),
    trips("64 x 1", 64, 1, 1, SMALL),
    unix("64 x 1 unix", trips("", 64, 1, 1, SMALL)),
    among("64 x 1 among 960 idle", 960, trips("", 64, 1, 1, SMALL)),
    trips("64 x 16", 64, 16, 1, SMALL),
    unix("64 x 16 unix", trips("", 64, 16, 1, SMALL)),
    trips("64 x 16, 4 workers", 64, 16, 4, SMALL),
    gathered(trips("64 x 16, 4 workers, gathered", 64, 16, 4, SMALL)),
    one_cpu(trips("1 x 64", 1, 64, 1, SMALL)),
    one_cpu(unix("1 x 64 unix", trips("", 1, 64, 1, SMALL))),
    one_cpu(gathered(trips("1 x 64, gathered", 1, 64, 1, SMALL))),
    trips("64 x 4, 2 KB", 64, 4, 4, 2048),
    trips("4 x 2, 60 KB", 4, 2, 4, 60 * 1024),
    trips("4 x 1, 1 MB", 4, 1, 4, 1_000_000),
    unix("4 x 1, 1 MB unix", trips("", 4, 1, 4, 1_000_000)),
    tokens("tokens"),
    unix("tokens unix", tokens("")),
    trips("1000 x 1", 1000, 1, 4, SMALL),
    Case { total: Some(300_000), ..trips("integrity: 300,000 over 64 x 16", 64, 16, 1, SMALL) },
];

/// Those that are run over WebSocket beside TCP.
pub fn beside_tcp() -> impl Iterator<Item = Case> {
    all().filter(|case| ["64 x 1", "64 x 16", "4 x 2, 60 KB"].contains(&case.name))
}

/// All cases, in the order in which they run.
pub fn all() -> impl Iterator<Item = Case> {
    CASES.iter().copied()
}
