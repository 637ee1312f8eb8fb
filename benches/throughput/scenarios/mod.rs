//! All scenarios: one file each, which uses the harness and no other scenario.

mod admin;
mod asleep;
mod attacks;
mod burst;
pub mod fairness;
pub mod handshakes;
mod idle;
mod peers;
mod race;
mod reload;
mod sessions;
mod sweep;
pub mod websocket_idle;

use crate::scenario::Scenario;

/// The default group, in the order in which they run.
pub fn all() -> Vec<Scenario> {
    race::scenarios()
        .chain([fairness::scenario()])
        .chain(attacks::scenarios())
        .chain([idle::scenario(), asleep::scenario(), burst::scenario(), reload::scenario(), admin::scenario()])
        .chain(sweep::scenarios())
        .collect()
}

/// The WebSocket group.
pub fn websocket() -> Vec<Scenario> {
    let others = [websocket_idle::scenario(), handshakes::scenario()];
    race::beside_tcp().chain(others).collect()
}

/// The group of MCP over HTTP.
pub fn http() -> Vec<Scenario> {
    race::over_http().chain([sessions::scenario()]).collect()
}

/// Comparison with other servers.
pub fn peers() -> Vec<Scenario> {
    peers::scenarios().collect()
}
