//! A daemon whose slots are all taken.

use rustix::process::Signal;
use serde_json::json;

use crate::client::Client;
use crate::harness::Daemon;

/// Clients on all slots, each with an answer and with a pending request held by the pool's worker: idle ones would be
/// evicted after a while, which tests must not depend on.
pub fn on_all_slots(daemon: &mut Daemon) -> Vec<Client> {
    const SLOTS: usize = 1024;
    let take_a_slot = |number| {
        // The last one has to send something at once, since all slots are taken then.
        let is_last = number + 1 == SLOTS;
        if is_last {
            daemon.stand_still();
        }
        let mut client = daemon.connect();
        client.ask("held", "hold", json!({}));
        client.ask(1, "m", json!({}));
        if is_last {
            daemon.signal(Signal::CONT);
        }
        let answer = client.answer(1);
        assert!(answer["result"].is_object(), "{answer}");
        client
    };
    (0..SLOTS).map(take_a_slot).collect()
}
