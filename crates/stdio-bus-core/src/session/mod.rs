//! Sessions: names on workers, each with one owner (spec 3.4, 6.1; decision 3).
//!
//! Their states are in `state.rs`, their table in `table.rs`, the access rules in `access.rs`, and their remains in
//! `tombstones.rs`. `life.rs` has their life cycle, `children.rs` those that belong to others, and
//! `early_notifications.rs` the lines that come before them.

pub(crate) mod access;
pub(crate) mod activity;
pub(crate) mod children;
pub(crate) mod early_notifications;
mod life;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod tombstones;
