//! A client listener's names for operators.

use crate::kinds::without_scheme;

pub(super) struct ListenerNames {
    /// The address in the configuration or on the command line.
    pub asked: String,
    /// The addresses of its sockets.
    pub bound: Vec<String>,
    /// Its path over HTTP.
    pub path: Option<String>,
}

impl ListenerNames {
    /// Its name where there can be only one: its first address.
    pub(super) fn label(&self) -> &str {
        self.bound.first().unwrap_or(&self.asked)
    }

    /// Whether an address means this listener, with or without its prefix, and with or without its path.
    pub(super) fn is_called(&self, name: &str) -> bool {
        let name = without_scheme(name);
        let is_same = |known: &String| {
            let known = without_scheme(known);
            let socket = self.path.as_ref().and_then(|path| known.strip_suffix(path.as_str()));
            known == name || socket.is_some_and(|socket| socket.strip_suffix(':').unwrap_or(socket) == name)
        };
        is_same(&self.asked) || self.bound.iter().any(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_any_spelling_of_its_address() {
        let place = |asked: &str, bound: &str, path: Option<&str>| ListenerNames {
            asked: asked.to_owned(),
            bound: vec![bound.to_owned()],
            path: path.map(str::to_owned),
        };
        let web = place("ws://localhost:9000/acp", "ws://127.0.0.1:9000/acp", Some("/acp"));
        for name in ["127.0.0.1:9000", "ws://127.0.0.1:9000/acp", "tcp://127.0.0.1:9000", "localhost:9000"] {
            assert!(web.is_called(name), "{name}");
        }
        assert!(!web.is_called("127.0.0.1:900") && !web.is_called("acp"));
        let file = place("ws+unix:/run/a:/acp", "ws+unix:/run/a:/acp", Some("/acp"));
        assert!(file.is_called("/run/a") && file.is_called("unix:/run/a") && !file.is_called("/run"));
        let mcp = place("http://localhost:9000/mcp", "http://127.0.0.1:9000/mcp", Some("/mcp"));
        assert!(
            ["127.0.0.1:9000", "http://127.0.0.1:9000/mcp", "localhost:9000"].iter().all(|name| mcp.is_called(name))
        );
        let tcp = place("tcp://127.0.0.1:0", "tcp://127.0.0.1:9001", None);
        assert!(["127.0.0.1:9001", "tcp://127.0.0.1:0", "127.0.0.1:0"].iter().all(|name| tcp.is_called(name)));
    }
}
