//! JSON-RPC 2.0: what kind of message a line is, and how answers are written. Pure.
//!
//! An id is kept as the JSON text that names it, so that 1 and "1" stay different and come back as they came. A
//! top-level `sessionId` (the bus's extension) is kept beside it and comes back on the answer and on all updates of
//! the request; without it nothing is added.

use serde_json::{Value as Json, json};
use simd_json::prelude::*;
use simd_json::tape::Value;

use super::json::{push_string, scalar_token};

/// Where an answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The id, as JSON.
    pub id: Box<str>,
    /// The top-level session id of the request, as JSON.
    pub route: Option<Box<str>>,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// One of the codes of JSON-RPC and ACP.
    pub code: i32,
    /// For people.
    pub message: String,
    /// For programs.
    pub data: Option<Json>,
}

impl RpcError {
    /// -32602: the parameters cannot be used.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into(), data: None }
    }

    /// -32600: this cannot be asked (now).
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self { code: -32600, message: message.into(), data: None }
    }

    /// -32601: there is no such method.
    pub fn method_not_found(method: &str) -> Self {
        Self { code: -32601, message: format!("Method not found: {method}"), data: Some(json!({ "method": method })) }
    }

    /// -32002: there is no such session.
    pub fn unknown_session(session_id: &str) -> Self {
        let data = Some(json!({ "sessionId": session_id }));
        Self { code: -32002, message: format!("Session not found: {session_id}"), data }
    }

    /// -32603: our own trouble.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: -32603, message: message.into(), data: None }
    }
}

/// What a line is.
pub enum Message<'t, 'i> {
    /// Wants an answer.
    Request(Reply, &'i str, Value<'t, 'i>),
    /// Wants none.
    Notification(&'i str, Value<'t, 'i>),
    /// An answer. This agent asks nothing, so it is nobody's.
    Response,
    /// No JSON-RPC; the error goes to the id, or to null.
    Invalid(Reply, RpcError),
}

impl Message<'_, '_> {
    /// The same message, with its answer going there.
    pub fn under(self, reply: &Reply) -> Self {
        match self {
            Self::Request(_, method, params) => Self::Request(reply.clone(), method, params),
            Self::Invalid(_, error) => Self::Invalid(reply.clone(), error),
            other => other,
        }
    }
}

/// Tells what a parsed line is.
pub fn classify<'t, 'i>(value: Value<'t, 'i>) -> Message<'t, 'i> {
    let nobody = || Reply { id: "null".into(), route: None };
    if value.is_array() {
        return Message::Invalid(nobody(), RpcError::invalid_request("Batches are not supported"));
    }
    if !value.is_object() {
        return Message::Invalid(nobody(), RpcError::invalid_request("A message is a JSON object"));
    }
    let route = value.get("sessionId").filter(|route| route.is_str()).and_then(scalar_token);
    let id = match value.get("id").map(scalar_token) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => {
            return Message::Invalid(nobody(), RpcError::invalid_request("An id is a string, a number or null"));
        }
    };
    let Some(method) = value.get("method") else {
        if value.contains_key("result") || value.contains_key("error") {
            return Message::Response;
        }
        let reply = Reply { id: id.unwrap_or_else(|| "null".into()), route };
        return Message::Invalid(reply, RpcError::invalid_request("A message has a method, a result or an error"));
    };
    let reply = id.map(|id| Reply { id, route });
    let method = method.into_string();
    let complaint = match method {
        None => Some("method is not a string"),
        Some(_) if value.get_str("jsonrpc") != Some("2.0") => Some("jsonrpc is not \"2.0\""),
        Some(_) => None,
    };
    let params = value.get("params").unwrap_or(Value::null());
    match (reply, method, complaint) {
        (reply, _, Some(complaint)) => {
            Message::Invalid(reply.unwrap_or_else(nobody), RpcError::invalid_request(complaint))
        }
        (Some(reply), Some(method), None) => Message::Request(reply, method, params),
        (None, Some(method), None) => Message::Notification(method, params),
        (_, None, None) => Message::Response,
    }
}

/// Appends the line that answers a request with `result`, a JSON text.
pub fn push_result(out: &mut Vec<u8>, reply: &Reply, result: &Json) {
    push_head(out, reply);
    out.extend_from_slice(b",\"result\":");
    push_json(out, result);
    out.extend_from_slice(b"}\n");
}

/// Appends the line that answers a request with an error.
pub fn push_error(out: &mut Vec<u8>, reply: &Reply, error: &RpcError) {
    push_head(out, reply);
    out.extend_from_slice(format!(",\"error\":{{\"code\":{},\"message\":", error.code).as_bytes());
    push_string(out, &error.message);
    if let Some(data) = &error.data {
        out.extend_from_slice(b",\"data\":");
        push_json(out, data);
    }
    out.extend_from_slice(b"}}\n");
}

/// The beginning of a `session/update` line, up to the members of `update`.
pub fn update_head(session_id: &str, route: Option<&str>) -> Vec<u8> {
    let mut out = b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\"".to_vec();
    if let Some(route) = route {
        out.extend_from_slice(b",\"sessionId\":");
        out.extend_from_slice(route.as_bytes());
    }
    out.extend_from_slice(b",\"params\":{\"sessionId\":");
    push_string(&mut out, session_id);
    out.extend_from_slice(b",\"update\":{");
    out
}

/// What closes a line begun by [`update_head`] (after its members).
pub const UPDATE_TAIL: &[u8] = b"}}}\n";

fn push_head(out: &mut Vec<u8>, reply: &Reply) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(reply.id.as_bytes());
    if let Some(route) = &reply.route {
        out.extend_from_slice(b",\"sessionId\":");
        out.extend_from_slice(route.as_bytes());
    }
}

fn push_json(out: &mut Vec<u8>, value: &Json) {
    // Writing a value with string keys into a vector cannot fail.
    let _ = serde_json::to_writer(out, value);
}
