//! What an MCP listener requires of its pools: ids that are valid in a path, and an explicit assignment, which decides
//! how sessions share processes. Listeners of a file are checked by the reader, those of the command line at start.

use super::{Listener, PoolConfig};
use crate::bus::eras::protocol::MODERN;

impl Listener {
    /// Why the listener cannot offer its pools, out of these, and what to do about it: in a file, or on the command
    /// line.
    pub(super) fn objections(&self, pools: &[PoolConfig], on_command_line: bool) -> Vec<(String, String)> {
        if !self.is_mcp() {
            return Vec::new();
        }
        let offered = self.offered(pools.len());
        let of_paths = offered.iter().filter_map(|at| objection_to_path(&pools[*at].core.id));
        let silent = offered.iter().filter(|at| !pools[**at].says_assignment);
        of_paths.chain(silent.map(|at| objection_to_silence(*at, &pools[*at].core.id, on_command_line))).collect()
    }
}

/// Clients address a pool by its id in a path (RFC 3986, section 3.3).
fn objection_to_path(id: &str) -> Option<(String, String)> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    // Clients remove dot segments from a path.
    let is_segment = id.bytes().all(is_plain) && ![".", ".."].contains(&id);
    (!is_segment).then(|| {
        let what = format!("the pool {id:?} cannot be part of a URL");
        (what, "give it an id of letters, digits, -, . and _, or name in pools those that are offered here".to_owned())
    })
}

fn objection_to_silence(at: usize, id: &str, on_command_line: bool) -> (String, String) {
    let what = format!("the pool {id:?} does not say how sessions share its processes");
    let place = match on_command_line {
        true => "add --assignment before the --".to_owned(),
        false => format!("write \"assignment\" in pools[{at}] of the file"),
    };
    let remedy = format!(
        "{place}: \"dedicated\" gives each session a process of its own, for browsers and stateful servers; with \"client\" or \
         \"round_robin\" sessions share processes, and a server of a revision before {MODERN} then loses sampling, \
         elicitation and resource updates"
    );
    (what, remedy)
}
