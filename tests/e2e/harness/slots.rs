//! A daemon whose slots are all taken.

use rustix::process::Signal;
use serde_json::json;

use crate::client::Client;
use crate::harness::Daemon;

/// Clients on all slots, each with an answer and with a pending request held by the pool's worker: idle ones would be
/// evicted after a while, which tests must not depend on.
pub fn on_all_slots(daemon: &mut Daemon) -> Vec<Client> {
    const SLOTS: usize = 1024;
    /// Clients that wait for their answers at the same time: one after the other costs more.
    const AT_ONCE: usize = 93;
    let mut clients = Vec::with_capacity(SLOTS);
    while clients.len() < SLOTS {
        // The last one has to send something at once, since all slots are taken then.
        let is_last = clients.len() + 1 == SLOTS;
        if is_last {
            daemon.stand_still();
        }
        let before = clients.len();
        for _ in 0..if is_last { 1 } else { AT_ONCE.min(SLOTS - 1 - before) } {
            let mut client = daemon.connect();
            client.ask("held", "hold", json!({}));
            client.ask(1, "m", json!({}));
            clients.push(client);
        }
        if is_last {
            daemon.signal(Signal::CONT);
        }
        for client in &mut clients[before..] {
            let answer = client.answer(1);
            assert!(answer["result"].is_object(), "{answer}");
        }
    }
    clients
}
