//! openai-agent as a user meets it: the program itself, a client on its pipes and an endpoint that misbehaves.
//!
//! The client and the endpoint are driven by each test; nothing sleeps, everything waits for what it wants to see.

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
mod row;
mod secrets;
mod streaming;
mod transcript;
#[path = "../../../../tests/support/waiting.rs"]
mod waiting;
