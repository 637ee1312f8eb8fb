//! The core on its own: simulated peers, and lines from memory.

use std::hint::black_box;

use stdio_bus::bus::Bus;
use stdio_bus::bus::port::{ClientKey, Effect, Input, Moment, Next, Peer, Place, WorkerKey};
use stdio_bus::bus::settings::{Assignment, Limits, Listener, MAX_CONNECTIONS, Pool, Routing, Settings, ToolRules};
use stdio_bus::scan::{PAD, Window};

/// Maximum number of bytes that a worker leaves unread.
const UNREAD: usize = 8 * 1024;

/// A bus with connected clients and running workers.
pub struct Core {
    pub bus: Bus,
    pub clients: Vec<ClientKey>,
    pub workers: Vec<WorkerKey>,
    now: u64,
    /// Bytes queued for the first worker since it read.
    unread: usize,
}

/// Lines, padded for the scanner.
pub struct Lines {
    padded: Vec<u8>,
}

impl Lines {
    /// Joins lines that have their newlines.
    pub fn new(lines: impl IntoIterator<Item = String>) -> Self {
        let mut padded = vec![0; PAD];
        lines.into_iter().for_each(|line| padded.extend_from_slice(line.as_bytes()));
        padded.resize(padded.len() + PAD, 0);
        Self { padded }
    }

    /// A window for the core.
    pub fn window(&self) -> Window<'_> {
        Window::new(&self.padded, PAD, self.padded.len() - PAD)
    }
}

impl Core {
    /// A bus with one pool.
    pub fn new(clients: usize, workers: usize) -> Self {
        Self::with_rules(clients, workers, ToolRules::default())
    }

    /// The same, whose clients may not call all tools.
    pub fn with_rules(clients: usize, workers: usize, tools: ToolRules) -> Self {
        let pool = Pool {
            tools,
            id: "bench".to_owned(),
            instances: workers,
            max_instances: workers,
            assignment: Assignment::RoundRobin,
            ..Pool::default()
        };
        // Output is never sent here, so no queue may fill up.
        let limits = Limits { max_output_queue: usize::MAX / 2, ..Limits::default() };
        let listeners = vec![Listener::default()];
        let mut bus = Bus::new(Settings {
            limits,
            pools: vec![pool],
            listeners,
            routing: Routing::default(),
            most_clients: MAX_CONNECTIONS,
        });
        let mut started = Vec::new();
        for effect in bus.start(Moment(1)) {
            if let Effect::Spawn { worker, .. } = effect {
                started.push(worker);
            }
        }
        for (pid, worker) in started.iter().enumerate() {
            bus.handle(Moment(1), Input::Spawned { worker: *worker, pid: pid as u32 + 1 }).for_each(drop);
        }
        let connected = (0..clients).map(|_| {
            let (client, effects) = bus.connect(Moment(1), 0, Place::Inherited);
            effects.for_each(drop);
            client.expect("there is room")
        });
        let clients = connected.collect();
        Self { bus, clients, workers: started, now: 1, unread: 0 }
    }

    /// Passes lines to the core and discards its effects.
    pub fn send(&mut self, from: Peer, lines: &Lines) {
        self.send_window(from, lines.window(), |effect| {
            black_box(effect);
        });
    }

    /// The same for a client.
    pub fn client(&mut self, client: usize, lines: &Lines) {
        self.send(Peer::Client(self.clients[client]), lines);
    }

    /// The same for a worker.
    pub fn worker(&mut self, worker: usize, lines: &Lines) {
        self.send(Peer::Worker(self.workers[worker]), lines);
    }

    /// Lets the workers read their input, before clients would have to take turns.
    fn workers_read(&mut self) {
        if self.unread < UNREAD {
            return;
        }
        let (now, worker) = (Moment(self.now), self.workers[0]);
        let bytes = std::mem::take(&mut self.unread);
        self.bus.handle(now, Input::Sent { peer: Peer::Worker(worker), bytes }).for_each(drop);
        self.bus.handle(now, Input::UnreadMeasured { worker, bytes: 0 }).for_each(drop);
    }

    /// Passes a window to the core, and each effect to `take`. Returns how many bytes were consumed.
    pub fn send_window(&mut self, from: Peer, mut window: Window<'_>, mut take: impl FnMut(Effect)) -> usize {
        self.now += 1000;
        self.workers_read();
        let mut consumed = 0;
        loop {
            let (received, effects) = self.bus.receive(Moment(self.now), from, window);
            for effect in effects {
                match &effect {
                    Effect::Copy { to, span } if *to == Peer::Worker(self.workers[0]) => self.unread += span.len(),
                    Effect::Insert { to, text } if *to == Peer::Worker(self.workers[0]) => {
                        self.unread += text.as_bytes().len();
                    }
                    _ => {}
                }
                take(effect);
            }
            consumed += received.consumed;
            if received.next != Next::Again {
                return consumed;
            }
            window = window.without(received.consumed);
        }
    }
}

/// A request of about 200 bytes.
pub fn request(id: impl std::fmt::Display, session: &str) -> String {
    let text = "x".repeat(90);
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"sessionId\":\"{session}\",\"method\":\"session/prompt\",\"params\":{{\"text\":\"{text}\"}}}}\n"
    )
}

/// A call of about 200 bytes without a session, with or without its id as its progress token.
pub fn call(id: impl std::fmt::Display, has_token: bool) -> String {
    let meta = if has_token { format!(",\"_meta\":{{\"progressToken\":{id}}}") } else { String::new() };
    call_with(id, &meta)
}

/// The same call by a client of MCP 2026-07-28, with the metadata that it requires.
pub fn modern_call(id: impl std::fmt::Display) -> String {
    let meta = ",\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
                \"io.modelcontextprotocol/clientInfo\":{\"name\":\"a client\",\"version\":\"1.0.0\"},\
                \"io.modelcontextprotocol/clientCapabilities\":{},\"io.modelcontextprotocol/logLevel\":\"info\"}";
    call_with(id, meta)
}

fn call_with(id: impl std::fmt::Display, meta: &str) -> String {
    let text = "x".repeat(90);
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"x\",\"text\":\"{text}\"{meta}}}}}\n"
    )
}

/// A worker's progress notification.
pub fn progress(token: impl std::fmt::Display) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{token},\"progress\":1}}}}\n"
    )
}

/// An answer of about 200 bytes.
pub fn answer(id: impl std::fmt::Display) -> String {
    let text = "x".repeat(130);
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"stopReason\":\"end_turn\",\"text\":\"{text}\"}}}}\n")
}

/// A token line of about 200 bytes.
pub fn update(session: &str) -> String {
    let text = "x".repeat(40);
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"{session}\",\"update\":{{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{{\"type\":\"text\",\"text\":\"{text}\"}}}}}}}}\n"
    )
}
