//! openai-agent: any Chat Completions endpoint as an ACP agent over stdin and stdout.
//!
//! ```text
//!            ┌────── decides, does no IO ──────┐
//! stdin  →   lines → rpc → acp (sessions, turns) → outbox     → stdout
//!                            │ effects     ▲ deltas, outcomes
//!                            ▼             │
//! endpoint ← client ← convert            answer ← chunk ← body ← response
//!            └──── serve: one task per turn, one thread ────┘
//! ```
//!
//! Reading order: [`config`] (what can be set), [`rpc`] and [`acp`] (the methods and the turns), [`session`] and
//! [`history`] (what is remembered), [`convert`] (what is sent), [`body`], [`chunk`] and [`answer`] (what comes back;
//! [`json`] is how it is read, [`speech`] says what of it is told), [`failure`] (what goes wrong), [`stdio`] (lines, and
//! what happens when the reader is slow), [`serve`] (the only place where they meet the operating system). The way to the
//! endpoint: [`client`], with [`dial`] (connections), [`secrets`] (keys, and who must not see them), [`dialect`] (how
//! requests are written), [`models`] (lists and windows).
//!
//! The invariant of the whole: every request is answered exactly once, after its last update, whatever the endpoint
//! or the disk does; and of a turn that did not end well only what the user said stays in its session.

pub mod acp;
pub mod answer;
#[cfg(test)]
mod bodies;
pub mod body;
pub mod chunk;
pub mod cli;
pub mod client;
pub mod config;
pub mod convert;
pub mod dial;
pub mod dialect;
pub mod failure;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod history;
pub mod json;
pub mod models;
#[cfg(test)]
mod played;
pub mod rpc;
pub mod secrets;
pub mod serve;
pub mod session;
pub mod speech;
pub mod stdio;
