//! Requests of constant length that differ only in their id.

/// The beginning of every request and its answer, followed by an id of [`ID_LEN`] digits.
pub const HEAD: &str = r#"{"jsonrpc":"2.0","id":"#;
/// Digits of an id.
pub const ID_LEN: usize = 10;
/// Ids of one client before they repeat.
pub const IDS: u64 = 100_000;
/// Length of a session name.
pub const SESSION_LEN: usize = 9;

/// The name of a client's session.
pub fn session(client: usize) -> String {
    format!("sess-{client:04}")
}

/// The template of a client's request; the id is written over its digits each time. Request and answer of the echo
/// worker have the same length: an ignored member pads the difference.
pub fn request(client: usize, bytes: usize) -> Vec<u8> {
    let mut text = format!(
        r#"{HEAD}{:0ID_LEN$},"sessionId":"{}","method":"bench/echo","wait":0,"params":{{"text":""#,
        0,
        session(client)
    );
    let end = "\"}}\n";
    let rest = bytes.checked_sub(text.len() + end.len()).expect("a request has room for its members");
    let words = "the quick brown fox jumps over the lazy dog ";
    text.extend(words.chars().cycle().skip(text.len() % words.len()).take(rest));
    text.push_str(end);
    text.into_bytes()
}

/// The same without members outside JSON-RPC, which not every gateway forwards.
pub fn plain(bytes: usize) -> Vec<u8> {
    let (begin, end) = (r#","method":"bench/echo","params":{"text":""#, "\"}}\n");
    let length = HEAD.len() + ID_LEN + begin.len() + end.len();
    let text = "x".repeat(bytes.checked_sub(length).expect("a request has room for its members"));
    format!("{HEAD}{:0ID_LEN$}{begin}{text}{end}", 0).into_bytes()
}

/// A tool call without an id, of MCP 2026-07-28 or of the revisions with sessions; the tool's name is the padding.
pub fn call(bytes: usize, is_modern: bool) -> Vec<u8> {
    let (begin, mut end) = (r#","method":"tools/call","params":{"name":""#, r#"","arguments":{}}}"#.to_owned() + "\n");
    if is_modern {
        end.insert_str(
            end.len() - 3,
            r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#,
        );
    }
    let length = HEAD.len() + ID_LEN + begin.len() + end.len();
    let name = "e".repeat(bytes.checked_sub(length).expect("a call has room for its members"));
    format!("{HEAD}{:0ID_LEN$}{begin}{name}{end}", 0).into_bytes()
}

/// The tool's name in a call.
pub fn tool(call: &[u8]) -> &str {
    let name = call.split(|byte| *byte == b'"').skip_while(|part| *part != b"name").nth(2);
    name.and_then(|name| str::from_utf8(name).ok()).unwrap_or_default()
}

/// Writes the id of a client's request number `number` into `request`.
pub fn set_id(request: &mut [u8], client: usize, number: u64) {
    let mut id = id(client, number);
    for digit in request[HEAD.len()..HEAD.len() + ID_LEN].iter_mut().rev() {
        *digit = b'0' + (id % 10) as u8;
        id /= 10;
    }
}

/// No two clients use the same id: not every daemon could distinguish them.
pub fn id(client: usize, number: u64) -> u64 {
    1_000_000_000 + client as u64 * IDS + number % IDS
}
