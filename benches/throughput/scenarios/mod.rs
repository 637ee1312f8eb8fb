//! All that can be measured: one file each, which knows the harness and no other scenario.

mod admin;
mod attacks;
pub mod fairness;
pub mod handshakes;
mod idle;
mod peers;
mod race;
mod reload;
mod sessions;
pub mod websocket_idle;

use crate::scenario::Scenario;

/// In the order in which they run.
pub fn all() -> Vec<Scenario> {
    race::scenarios()
        .chain([fairness::scenario()])
        .chain(attacks::scenarios())
        .chain([idle::scenario(), reload::scenario(), admin::scenario()])
        .collect()
}

/// Those of WebSocket, which run instead if they are asked for.
pub fn websocket() -> Vec<Scenario> {
    let others = [websocket_idle::scenario(), handshakes::scenario()];
    race::beside_tcp().chain(others).collect()
}

/// Those of MCP over HTTP.
pub fn http() -> Vec<Scenario> {
    race::over_http().chain([sessions::scenario()]).collect()
}

/// The same work through what else there is.
pub fn peers() -> Vec<Scenario> {
    peers::scenarios().collect()
}
