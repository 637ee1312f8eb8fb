//! The pending requests of both directions (spec 6.2; decisions 4, 5): one in `request.rs`, their table in `table.rs`, the
//! names that answerers were sent in `names.rs`, and in `ends.rs` what begins and ends at both peers of a request.

mod ends;
mod names;
mod request;
mod table;

#[cfg(test)]
pub(crate) use names::LARGEST_NAMES;
pub(crate) use names::SentNames;
pub(crate) use request::{Flags, NewRequest, Original, Request};
#[cfg(test)]
pub(crate) use table::LARGEST;
pub(crate) use table::{AskerList, FoundRequest, IndexSlot, Requests};
