//! Sessions: names on workers, each with one owner (spec 3.4, 6.1; decision 3).
//!
//! Where each stands is in `state.rs`, all of them are in `table.rs`, who may name one is in `access.rs`, and what is left
//! of them in `tombstones.rs`. `life.rs` is what happens to them, and `early.rs` what is said before one is there.

pub(crate) mod access;
pub(crate) mod activity;
pub(crate) mod early;
mod life;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod tombstones;
