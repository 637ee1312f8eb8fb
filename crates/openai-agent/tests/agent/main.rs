//! openai-agent as a user sees it: the program itself, a client on its pipes and an endpoint that misbehaves.
//!
//! Each test drives the client and the endpoint; nothing sleeps, everything waits for a condition.

mod answered;
mod behaviours;
mod cancelling;
mod client;
mod commands;
mod context;
mod endpoint;
mod failed;
mod failures;
mod files;
mod history;
mod keys;
mod large;
mod many;
mod methods;
mod network;
#[path = "../../../../tests/support/ports.rs"]
mod ports;
mod row;
mod secrets;
mod streaming;
mod transcript;
#[path = "../../../../tests/support/waiting.rs"]
mod waiting;
