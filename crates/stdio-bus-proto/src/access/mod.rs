//! Who may come in over HTTP, whatever is spoken above it: the whole way of a request from its head to a refusal, without
//! I/O. The core's own limits (networks, users, numbers of connections) come after it.
//!
//! [`Caller`] reads from a head who asks. [`Policy`] is what a listener's configuration says, with its [`Tokens`], and
//! decides: [`Policy::identify`] changes the client's origin to what a proxy and a token say, or returns a [`Refusal`];
//! [`Policy::still_admits`] asks again when tokens may have changed.
//!
//! # Reading order
//! `caller.rs`, `hosts.rs` (names of this machine, DNS rebinding), `forwarded.rs` (clients behind proxies), `identity.rs`
//! (their names), `oauth.rs` (where they sign in), `credentials.rs` (what they bring for their own workers), `tokens.rs`,
//! `policy.rs`, `refusal.rs`.

mod caller;
mod credentials;
pub mod forwarded;
mod hosts;
mod identity;
pub mod oauth;
mod policy;
mod refusal;
mod tokens;

pub use caller::{Caller, Token, bearer, page};
pub use credentials::Credentials;
pub use hosts::{is_loopback, names_this_machine};
pub use identity::{Claims, Groups, Identity, LONGEST_NAME, is_one_word};
pub use oauth::OAuth;
pub use policy::{Entrance, Policy, Reach};
pub use refusal::{RETRY_AFTER, Refusal};
pub use tokens::{Bearer, SHORTEST_TOKEN, Secret, Tokens};
