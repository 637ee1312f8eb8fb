//! What is measured: how many clients with how many messages in flight, how large, over what, to how many workers.

/// What the clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP over the loopback.
    Tcp,
    /// A Unix socket.
    Unix,
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
    /// Requests that each of them has in flight.
    pub window: usize,
    /// Workers of the one pool.
    pub workers: usize,
    /// What goes through.
    pub traffic: Traffic,
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
    Case { name, transport: Transport::Tcp, clients, window, workers, traffic, total: None }
}

const fn unix(case: Case, name: &'static str) -> Case {
    Case { name, transport: Transport::Unix, ..case }
}

const CASES: &[Case] = &[
    trips("ping-pong", 1, 1, 1, SMALL),
    unix(trips("", 1, 1, 1, SMALL), "ping-pong unix"),
    trips("64 x 1", 64, 1, 1, SMALL),
    unix(trips("", 64, 1, 1, SMALL), "64 x 1 unix"),
    trips("64 x 16", 64, 16, 1, SMALL),
    unix(trips("", 64, 16, 1, SMALL), "64 x 16 unix"),
    trips("64 x 16, 4 workers", 64, 16, 4, SMALL),
    trips("1 x 64", 1, 64, 1, SMALL),
    unix(trips("", 1, 64, 1, SMALL), "1 x 64 unix"),
    trips("64 x 4, 2 KB", 64, 4, 4, 2048),
    trips("4 x 2, 60 KB", 4, 2, 4, 60 * 1024),
    trips("4 x 1, 1 MB", 4, 1, 4, 1_000_000),
    unix(trips("", 4, 1, 4, 1_000_000), "4 x 1, 1 MB unix"),
    Case { traffic: Traffic::Tokens { lines: 200, bytes: SMALL }, ..trips("tokens", 64, 1, 8, SMALL) },
    unix(Case { traffic: Traffic::Tokens { lines: 200, bytes: SMALL }, ..trips("", 64, 1, 8, SMALL) }, "tokens unix"),
    trips("8 x 4", 8, 4, 4, SMALL),
    trips("1000 x 1", 1000, 1, 4, SMALL),
    Case { total: Some(300_000), ..trips("integrity: 300,000 over 64 x 16", 64, 16, 1, SMALL) },
];

/// All cases, in the order in which they run.
pub fn all() -> impl Iterator<Item = Case> {
    CASES.iter().copied()
}
