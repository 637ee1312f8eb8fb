//! The health check of a listener over HTTP, for load balancers.

use serde_json::json;

use crate::bus::Bus;
use crate::bus::port::ListenerId;
use crate::bus::readiness::Readiness;
use crate::http1::{Head, Method, Status};

/// The response to a listener's health check, after which the connection is closed.
pub(in crate::shell) fn health(bus: &Bus, listener: ListenerId, method: Method) -> String {
    let readiness = bus.view().listener_readiness(listener);
    let why = readiness.as_ref().and_then(Readiness::reason);
    let (status, body) = match readiness.as_ref().map(Readiness::is_ready) {
        Some(true) => (Status::Ok, json!({ "status": "ready" })),
        _ if why.is_some() => (Status::Unavailable, json!({ "status": "not ready", "message": why })),
        _ => (Status::Unavailable, json!({ "status": "draining" })),
    };
    let head = Head::answer(status)
        .field("Connection", "close")
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store");
    let body = body.to_string() + "\n";
    match method {
        Method::Head => head.field("Content-Length", body.len()).end(),
        _ => head.body(&body),
    }
}
