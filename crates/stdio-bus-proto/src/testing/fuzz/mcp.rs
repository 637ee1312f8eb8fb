//! Any bytes at an MCP listener: requests do not depend on how they are cut, a body contains the messages that other
//! parsers see, a checked head of 2026-07-28 agrees with the body that its worker reads, and refusals are valid HTTP
//! and JSON. A session sends each line to its own stream, keeps its events within bounds, and resumes after an event
//! with everything that followed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::Cut;
use crate::http1::{Event, Framing, Limits, Method, Request, RequestReader, ResponseReader};
use crate::mcp::log::Carries;
use crate::mcp::message::{LineReader, Upload};
use crate::mcp::session::{Delivery, LineKind, Resumed, Session};
use crate::mcp::write::{self, EventId, Manner};
use crate::mcp::{Asked, Body, Fault, Kind, Message, modern};
use stdio_bus_core::id::Id;
use stdio_bus_core::port::Moment;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Limit of a session's kept events in bytes.
const MOST: usize = 600;

/// Parses them as requests, with all these cuts; then lets them drive a session.
///
/// # Panics
/// If any of this does not hold.
pub fn check(first: u8, stream: &[u8], cut: Cut<'_>) {
    let read: Read = |head| Asked::of(head, "/mcp");
    let asked = requests(stream, &[], read);
    for cuts in [cut(stream.len()), (1..stream.len()).collect()] {
        assert_eq!(requests(stream, &cuts, read), asked, "cut at {cuts:?}");
    }
    for (asked, body) in asked {
        match asked {
            Ok(asked) => check_request(&asked, &body),
            Err(fault) => check_fault(&fault, b"null"),
        }
    }
    live(first, stream);
}

/// Reads what a head asks for.
pub(super) type Read = fn(&Request<'_>) -> Result<Asked, Fault>;

/// What each request asks for, and its body.
pub(super) fn requests(stream: &[u8], cuts: &[usize], read: Read) -> Vec<(Result<Asked, Fault>, Vec<u8>)> {
    let (now, time) = (Moment(0), Duration::from_secs(1));
    let limits = Limits { body: 1 << 16, head_time: time, body_time: time, idle_time: time };
    let mut reader = RequestReader::new(now, limits);
    let (mut found, mut at, mut asked, mut body) = (Vec::new(), 0, None, Vec::new());
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            match reader.next(now, &stream[at..end]) {
                Event::More(length) => {
                    at += length;
                    break;
                }
                Event::Head(head) => {
                    at += head.length;
                    asked = Some(read(&head));
                    let _: Framing = head.body;
                }
                Event::Data { data, length } => {
                    at += length;
                    body.extend_from_slice(data);
                }
                Event::End(length) => {
                    at += length;
                    found.extend(asked.take().map(|asked| (asked, std::mem::take(&mut body))));
                    reader.answered(now, stream.len() - at);
                }
                Event::Wrong(_) => return found,
            }
        }
    }
    found
}

fn check_request(asked: &Asked, body: &[u8]) {
    let (mut upload, mut reader) = (Upload::default(), LineReader::default());
    // In two pieces, wherever the first one ends.
    let (first, rest) = body.split_at(body.first().map_or(0, |cut| usize::from(*cut) % body.len()));
    [first, rest].iter().for_each(|piece| upload.push(piece, &mut reader));
    let value = serde_json::from_slice::<Value>(body).ok();
    match upload.finish(&mut reader) {
        Ok(Body::One(message)) => {
            check_message(&message, value.as_ref());
            check_head(asked, &message, value.as_ref());
        }
        Ok(Body::Batch(messages)) => {
            let values = value.as_ref().and_then(Value::as_array);
            assert!(values.is_none_or(|values| values.len() == messages.len()), "a batch is split");
            for (at, message) in messages.iter().enumerate() {
                check_message(message, values.and_then(|values| values.get(at)));
            }
        }
        Err(fault) => check_fault(&fault, b"null"),
    }
}

/// A message is one line with the same meaning as the body.
pub(super) fn check_message(message: &Message, value: Option<&Value>) {
    let text = message.text();
    let shown = text.escape_ascii();
    assert!(!text.contains(&b'\n') && message.window().data().ends_with(b"\n"), "it is a line: {shown}");
    let line = serde_json::from_slice::<Value>(text).ok();
    // Numbers outside serde_json's range are not compared.
    let (Some(value), Some(line)) = (value, line) else { return };
    assert_eq!(*value, line, "{shown}");
    let id = message.id().map(|id| serde_json::from_slice::<Value>(id).expect("an id is JSON"));
    assert_eq!(id.unwrap_or_default(), value["id"], "{shown}");
    if let Some(method) = value["method"].as_str() {
        assert_eq!(*message.method(), *method.as_bytes(), "{shown}");
    }
    check_fault(&Fault::no_session(), message.id().unwrap_or(b"null"));
}

/// An accepted head agrees with its body, for a proxy that reads only the head.
fn check_head(asked: &Asked, message: &Message, value: Option<&Value>) {
    let result = modern::is_modern(asked, message).and_then(|is_modern| match is_modern {
        true => modern::check(asked, message).map(|()| true),
        false => Ok(false),
    });
    let is_modern = match result {
        Ok(is_modern) => is_modern,
        Err(fault) => return check_fault(&fault, message.id().unwrap_or(b"null")),
    };
    let Some(value) = value.filter(|_| is_modern && message.kind() == Kind::Request) else { return };
    let params = &value["params"];
    assert_eq!(params["_meta"][VERSION].as_str(), asked.version.as_deref(), "{value}");
    assert_eq!(value["method"].as_str(), asked.method.as_deref(), "{value}");
    let named = match asked.method.as_deref() {
        Some("tools/call" | "prompts/get") => params["name"].as_str(),
        Some("resources/read") => params["uri"].as_str(),
        Some("tasks/get" | "tasks/update" | "tasks/cancel") => params["taskId"].as_str(),
        _ => None,
    };
    let head = asked.name.as_deref().unwrap_or_default();
    assert!(named.is_none_or(|named| named == head || head.starts_with("=?base64?")), "{value} as {head}");
}

/// A refusal is an HTTP response whose body is a JSON-RPC error with this id.
pub(super) fn check_fault(fault: &Fault, id: &[u8]) {
    let mut out = Vec::new();
    write::fault(&mut out, fault, &Manner::default(), Some(id));
    let (status, body) = answer(&out);
    let body: Value = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{}", out.escape_ascii()));
    assert_eq!((status, body["error"]["code"].as_i64()), (fault.status.code(), Some(fault.code.into())));
    assert_eq!(serde_json::from_slice::<Value>(id).ok(), Some(body["id"].clone()));
}

fn answer(out: &[u8]) -> (u16, Vec<u8>) {
    let mut reader = ResponseReader::new(Method::Post, 1 << 20);
    let (mut at, mut status, mut body) = (0, 0, Vec::new());
    loop {
        match reader.next(&out[at..], true) {
            Event::Head(head) => (at, status) = (at + head.length, head.status),
            Event::Data { data, length } => {
                body.extend_from_slice(data);
                at += length;
            }
            Event::End(length) => {
                assert_eq!(at + length, out.len(), "one answer, and nothing behind it");
                return (status, body);
            }
            other => panic!("{other:?}: {}", out.escape_ascii()),
        }
    }
}

/// The model of a session.
#[derive(Default)]
struct Model {
    /// Streams by the ids of pending requests.
    open: BTreeMap<u64, u32>,
    /// The connection of each stream.
    connections: BTreeMap<u32, usize>,
    /// Events by the positions at which they were sent.
    events: BTreeSet<(u32, u32)>,
    /// Those that are answers.
    answers: BTreeSet<(u32, u32)>,
    next: usize,
}

/// A session driven by these bytes, three for each step.
fn live(first: u8, bytes: &[u8]) {
    let (mut session, mut model) = (Session::new("s".into(), None), Model::default());
    for (number, choice) in bytes.as_chunks::<3>().0.iter().enumerate() {
        let [what, which, more] = choice.map(usize::from);
        match what % 6 {
            0 => {
                model.next += 1;
                let ids = (0..1 + which % 3).map(|at| (10 * number + at) as u64);
                let requests: Vec<_> = ids.map(|id| (Id::Number(id), None)).collect();
                let stream = session.begin(model.next, requests.iter().cloned(), requests.len() > 1, false);
                assert!(model.connections.insert(stream, model.next).is_none() && stream != 0, "a stream is new");
                let known = requests.iter().map(|(id, _)| (session.waits_for(id), id));
                for (waits, id) in known {
                    assert!(waits, "a request waits");
                    let Id::Number(id) = id else { continue };
                    model.open.insert(*id, stream);
                }
            }
            1 | 2 if !model.open.is_empty() => {
                let (id, stream) =
                    model.open.iter().nth(which % model.open.len()).map(|(id, at)| (*id, *at)).expect("it is there");
                model.open.remove(&id);
                let delivery =
                    session.deliver(&LineKind::Answer(id.to_string().as_bytes())).expect("its request is pending");
                assert_eq!(session.deliver(&LineKind::Answer(id.to_string().as_bytes())), None, "it is answered once");
                assert_eq!(
                    delivery.connection,
                    model.connections.get(&stream).copied(),
                    "an answer is sent to its requester"
                );
                assert_eq!(delivery.id.stream, stream);
                let is_last = !model.open.values().any(|other| *other == stream);
                assert_eq!((delivery.is_last, session.goes_on(stream)), (is_last, !is_last));
                model.connections.retain(|other, _| *other != stream || !is_last);
                model.answers.insert((delivery.id.stream, delivery.id.place));
                keep(&mut session, &mut model, &delivery, Carries::Answer, more);
            }
            3 => {
                let line = if which % 2 == 0 { LineKind::Other } else { LineKind::Unrelated };
                let delivery = session.deliver(&line).expect("it needs no request");
                let to = model.connections.get(&delivery.id.stream).copied();
                assert_eq!(delivery.connection, to);
                keep(&mut session, &mut model, &delivery, Carries::Other, more);
            }
            4 if !model.connections.is_empty() => {
                let at = which % model.connections.len();
                let (stream, connection) =
                    model.connections.iter().nth(at).map(|(a, b)| (*a, *b)).expect("it is there");
                model.connections.remove(&stream);
                session.detach(connection, &[]);
            }
            _ => gets(&mut session, &mut model, which, more, first),
        }
        let answers = model.answers.len() * 255;
        assert!(session.weight() <= MOST + 255 + answers + (256 + 1024) * 64, "{} bytes are kept", session.weight());
    }
    let lost = session.forget();
    assert!(lost <= 256 + 1024 && session.weight() == 0);
}

fn keep(session: &mut Session, model: &mut Model, delivery: &Delivery, carries: Carries, bytes: usize) {
    let id = delivery.id;
    assert!(model.events.insert((id.stream, id.place)), "no two events have one id");
    let data = vec![b' '; bytes];
    match delivery.connection.is_some() {
        true => session.keep(id, data.into(), carries, MOST),
        false => session.keep_untaken(id, data.into(), carries, false, MOST),
    };
}

/// A GET opens the general stream, or resumes after an event.
fn gets(session: &mut Session, model: &mut Model, which: usize, more: usize, first: u8) {
    model.next += 1;
    let id = EventId { stream: (which % 8) as u32, place: (more % 16) as u32 };
    if (which + usize::from(first)).is_multiple_of(2) {
        let old = session.open(model.next);
        assert_eq!(old, model.connections.insert(0, model.next), "a new one replaces the old one");
        let taken = session.untaken(true).map(|event| event.id).collect::<Vec<_>>();
        taken.iter().for_each(|id| session.take(*id));
        taken.iter().for_each(|id| assert_eq!(id.stream, 0, "it is of the general stream now"));
        assert!(!taken.iter().any(|id| model.answers.contains(&(id.stream, id.place))), "no answer is there");
        model.events.extend(taken.iter().map(|id| (id.stream, id.place)));
        assert_eq!(session.untaken(true).count(), 0, "it is taken once");
    } else if let Ok(Resumed::Events(old)) = session.resume(model.next, id) {
        assert_eq!(old, model.connections.get(&id.stream).copied());
        if session.goes_on(id.stream) {
            model.connections.insert(id.stream, model.next);
        }
        let places: Vec<u32> = session.events_behind(id).map(|event| event.id.place).collect();
        places.iter().for_each(|place| session.take(EventId { place: *place, ..id }));
        assert!(places.is_sorted() && places.iter().all(|place| *place > id.place), "{places:?} is behind {id:?}");
    }
}
