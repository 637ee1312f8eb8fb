//! Values that several sections share: numbers, small files, and socket permissions.

use super::document::{Node, Object, Reader};
use super::{Listen, NoFile, command, keys};
use crate::bus::settings::ToolRules;
use crate::small_file;

pub(super) fn checked(path: &str) -> Result<&str, String> {
    match path {
        "" => Err("must not be empty".to_owned()),
        _ if path.contains('\0') => Err("must not contain a zero byte".to_owned()),
        _ => Ok(path),
    }
}

/// Why a name is none of a field that a proxy or a user may set: it means something of its own.
pub(super) fn header_fault(name: &str) -> Option<String> {
    const TAKEN: [&str; 33] = [
        "accept",
        "accept-encoding",
        "accept-language",
        "acp-connection-id",
        "acp-session-id",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "origin",
        "proxy-authorization",
        "referer",
        "sec-websocket-extensions",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-version",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-forwarded-for",
    ];
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        Some(format!("must be the name of a header, not {name:?}"))
    } else if TAKEN.iter().any(|taken| taken.eq_ignore_ascii_case(name)) {
        Some(format!("{name} means something else, and clients send it themselves"))
    } else {
        None
    }
}

/// Sets a socket file's permissions from the setting beside its address, if there is one.
pub(super) fn set_mode<'t>(reader: &mut Reader<'t>, listen: &mut Listen, mode: Option<(&Node<'t>, Option<u32>)>) {
    let Some((node, given)) = mode else { return };
    match listen.file_mut() {
        Ok((mode, _)) => *mode = given.unwrap_or(*mode),
        Err(NoFile::Abstract) => {
            reader.fail(node, "is the permissions of a socket file; an abstract name has none", None);
        }
        Err(NoFile::Port) => reader.fail(node, "is the permissions of a Unix socket; a TCP port has none", None),
    }
}

pub(super) fn small_file(path: &str) -> Result<Vec<u8>, String> {
    checked(path).and_then(|path| small_file::read(path.as_ref()).map_err(|error| command::reason(&error)))
}

pub(super) fn socket_mode<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<u32> {
    octal(reader, node, "\"0600\" is its owner alone, \"0660\" its group, too")
}

/// Permissions as chmod(1) takes them.
pub(super) fn octal<'t>(reader: &mut Reader<'t>, node: &Node<'t>, hint: &str) -> Option<u32> {
    let text = reader.string(node)?;
    let octal = matches!(text.len(), 3 | 4) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| octal && *mode <= 0o777);
    if mode.is_none() {
        let message = format!("must be octal permissions from \"0000\" to \"0777\", not {text:?}");
        reader.fail(node, message, Some(hint.to_owned()));
    }
    mode
}

pub(super) fn number<'t>(reader: &mut Reader<'t>, object: &Object<'t>, key: &'static str) -> Option<u64> {
    object.get(key).and_then(|node| reader.integer_or(node, keys::range(object.path, key), keys::instead_of_zero(key)))
}

/// The methods and tools that the rules of an object deny.
pub(super) fn denied<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> (Vec<String>, ToolRules) {
    let methods = object.get("deny_methods").map(|node| {
        let hint = "name a method, as in \"session/list\"";
        reader.strings(node, |method| method.is_empty().then(|| ("must not be empty".to_owned(), Some(hint))))
    });
    let allow = object.get("allow_tools").map(|node| tools(reader, node));
    let deny = object.get("deny_tools").map(|node| tools(reader, node)).unwrap_or_default();
    (methods.unwrap_or_default(), ToolRules { allow, deny })
}

/// Patterns of the names of tools.
fn tools<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let hint = "name a tool, or the beginning of names and a *, as in \"delete_*\"";
    reader.strings(node, |pattern| match pattern.find('*') {
        _ if pattern.is_empty() => Some(("must not be empty".to_owned(), Some(hint))),
        Some(at) if at + 1 < pattern.len() => Some(("may have a * at its end alone".to_owned(), Some(hint))),
        _ => None,
    })
}
