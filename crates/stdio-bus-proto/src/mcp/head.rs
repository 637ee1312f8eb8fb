//! MCP's fields of a request's head, and what a self-contained request repeats there of its body ("Streamable HTTP",
//! "Standard Request Headers"). Servers read them (`asked.rs`, `modern.rs`), and all clients here write them: the bridge,
//! the simulated ones and those of the tests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::params::Wanted;

/// The id of a session: a server gives it with the answer to `initialize`, and its client repeats it.
pub const SESSION: &str = "Mcp-Session-Id";
/// The revision that a client speaks, as a date; from 2025-06-18 on.
pub const VERSION: &str = "MCP-Protocol-Version";
/// The method of the body; from 2026-07-28 on.
pub const METHOD: &str = "Mcp-Method";
/// What the method is about, such as the name of a tool ([`named_by`]); from 2026-07-28 on.
pub const NAME: &str = "Mcp-Name";
/// The last event of a stream that its reader has, to go on behind it.
pub const LAST_EVENT: &str = "Last-Event-ID";

/// All of them. Each may occur once.
pub const FIELDS: [&str; 5] = [SESSION, VERSION, METHOD, NAME, LAST_EVENT];

/// What a client repeats of the body of a self-contained request, as it is in the head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Its revision; none if that is no plain text.
    pub version: Option<String>,
    /// Its method.
    pub method: Option<String>,
    /// What the method is about, if it has that.
    pub name: Option<String>,
}

impl Repeated {
    /// That of a message with this version, this method, and this value of the member that [`named_by`] gives.
    pub fn new(version: &str, method: &str, name: Option<&str>) -> Self {
        Self {
            version: is_plain(version).then(|| version.to_owned()),
            method: Some(written(method)),
            name: name.map(written),
        }
    }

    /// That of a message; none if it does not name its version, and so belongs to a session.
    pub fn of(message: &Value) -> Option<Self> {
        let (method, params) = (message["method"].as_str()?, &message["params"]);
        let version = params["_meta"][Wanted::Version.name()].as_str()?;
        let name = named_by(method.as_bytes()).and_then(|member| params[member.name()].as_str());
        Some(Self::new(version, method, name))
    }

    /// The fields, with their names.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let fields = [(VERSION, &self.version), (METHOD, &self.method), (NAME, &self.name)];
        fields.into_iter().filter_map(|(field, value)| Some((field, value.as_deref()?)))
    }
}

/// The member of a request's params that its head repeats as `Mcp-Name`.
pub fn named_by(method: &[u8]) -> Option<Wanted> {
    match method {
        b"tools/call" | b"prompts/get" => Some(Wanted::Name),
        b"resources/read" => Some(Wanted::Uri),
        b"tasks/get" | b"tasks/update" | b"tasks/cancel" => Some(Wanted::Task),
        _ => None,
    }
}

/// Encodes a text for a head: literal, or base64 if that is not possible.
fn written(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

/// Whether it is valid in a head as it is, and unambiguous.
pub fn is_plain(text: &str) -> bool {
    let is_wrapped = text.starts_with("=?base64?") && text.ends_with("?=");
    !text.is_empty()
        && text.trim_ascii().len() == text.len()
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        && !is_wrapped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_head_of_a_message_has_what_its_body_says() {
        let meta = json!({ Wanted::Version.name(): "2026-07-28" });
        let message = |method: &str, params: Value| json!({ "id": 1, "method": method, "params": params });
        let call = message("tools/call", json!({ "name": "gr\u{fc}\u{df}", "uri": "x", "_meta": meta }));
        let head = Repeated::of(&call).expect("it names its version");
        let fields: Vec<_> = head.fields().collect();
        assert_eq!(fields, [(VERSION, "2026-07-28"), (METHOD, "tools/call"), (NAME, "=?base64?Z3LDvMOf?=")]);
        let list = Repeated::of(&message("tools/list", json!({ "name": "a", "_meta": meta })));
        assert_eq!(list.map(|head| head.fields().count()), Some(2));
        assert_eq!(Repeated::of(&message("tools/call", json!({ "name": "a" }))), None);
    }
}
