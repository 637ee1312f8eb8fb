//! Any bytes in any pieces: requests and responses do not depend on how they are cut, mean the same when rewritten, and
//! no head is accepted that another parser might end, or divide into fields, differently.
//!
//! The first byte chooses the limit of bodies, and whether the response is one to HEAD.

use std::time::Duration;

use super::Cut;
use crate::http1::{
    Error, Event, Framing, Head, LONGEST_ANSWER, LONGEST_HEAD, Limits, Method, Request, RequestReader, Response,
    ResponseReader, ascii, chunk,
};
use stdio_bus_core::port::Moment;

/// Fields for the message's destination and framing.
const OURS: [&str; 3] = ["host", "content-length", "transfer-encoding"];
/// Other fields, which are rewritten.
const OTHERS: [&str; 4] = ["connection", "expect", "origin", "authorization"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum HeadEvent<H> {
    Head(H),
    Body(Vec<u8>),
    /// The part of an incomplete body, and how many bytes of the stream were consumed.
    Partial(Vec<u8>, usize),
    Wrong(Error),
}

/// Parses them as requests and as responses, with all these cuts.
///
/// # Panics
/// If the result depends on the cuts, or an ambiguous message is accepted.
pub fn check(first: u8, stream: &[u8], cut: Cut<'_>) {
    let most = if first & 2 == 0 { u64::from(first >> 2) } else { 1 << 16 };
    let to = if first & 1 == 0 { Method::Get } else { Method::Head };
    let (asked, answered) = (requests(stream, most, &[]), answers(stream, most, to, &[]));
    for cuts in [cut(stream.len()), (1..stream.len()).collect()] {
        assert_eq!(requests(stream, most, &cuts), asked, "cut at {cuts:?}");
        assert_eq!(answers(stream, most, to, &cuts), answered, "cut at {cuts:?}");
    }
    for seen in asked.windows(2) {
        if let [HeadEvent::Head(head), HeadEvent::Body(body)] = seen {
            write_again(head, body);
        }
    }
}

fn requests<'b>(stream: &'b [u8], most: u64, cuts: &[usize]) -> Vec<HeadEvent<Request<'b>>> {
    let (now, time) = (Moment(0), Duration::from_secs(1));
    let mut reader = RequestReader::new(now, Limits { body: most, head_time: time, body_time: time, idle_time: time });
    let kind = HeadKind { most, longest: LONGEST_HEAD, of_head: |head: &Request<'_>| (head.length, head.body) };
    read(stream, cuts, kind, |bytes, _| reader.next(now, bytes))
}

fn answers<'b>(stream: &'b [u8], most: u64, to: Method, cuts: &[usize]) -> Vec<HeadEvent<Response<'b>>> {
    let (mut reader, mut is_over) = (ResponseReader::new(to, most), false);
    let kind = HeadKind { most, longest: LONGEST_ANSWER, of_head: |head: &Response<'_>| (head.length, head.body) };
    read(stream, cuts, kind, |bytes, has_ended| {
        let event = if is_over { Event::More(0) } else { reader.next(bytes, has_ended) };
        is_over |= matches!(event, Event::End(_));
        event
    })
}

/// The limits of bodies and heads, and accessors for a head's length and framing.
struct HeadKind<H> {
    most: u64,
    longest: usize,
    of_head: fn(&H) -> (usize, Framing),
}

/// The result for a stream with these cuts. `next` returns the next event of these bytes, which may be the last ones.
fn read<'b, H>(
    stream: &'b [u8],
    cuts: &[usize],
    kind: HeadKind<H>,
    mut next: impl FnMut(&'b [u8], bool) -> Event<'b, H>,
) -> Vec<HeadEvent<H>> {
    let (mut seen, mut at, mut body) = (Vec::new(), 0, Vec::new());
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            let event = next(&stream[at..end], end == stream.len());
            let is_all = matches!(event, Event::More(_));
            at += match event {
                Event::More(length) => length,
                Event::Head(read) => {
                    let (length, framing) = (kind.of_head)(&read);
                    let all = &stream[at..at + length];
                    let head = all.strip_prefix(b"\r\n").unwrap_or(all);
                    assert!(head.len() <= kind.longest, "{length} bytes");
                    check_head(head, framing);
                    seen.push(HeadEvent::Head(read));
                    length
                }
                Event::Data { data, length } => {
                    assert!(!data.is_empty() && data.len() <= length);
                    body.extend_from_slice(data);
                    assert!(body.len() as u64 <= kind.most, "{} bytes of a body", body.len());
                    length
                }
                Event::End(length) => {
                    seen.push(HeadEvent::Body(std::mem::take(&mut body)));
                    length
                }
                Event::Wrong(error) => {
                    seen.push(HeadEvent::Wrong(error));
                    return seen;
                }
            };
            assert!(at <= end, "{at} bytes of {end}");
            if is_all {
                break;
            }
        }
    }
    seen.push(HeadEvent::Partial(body, at));
    seen
}

/// Checks that lines, fields and the end of the body are unambiguous in the head.
fn check_head(head: &[u8], body: Framing) {
    let shown = head.escape_ascii();
    let text = String::from_utf8_lossy(head);
    let lines = text.strip_suffix("\r\n\r\n").unwrap_or_else(|| panic!("it has no end: {shown}"));
    let mut names = Vec::new();
    for (at, line) in lines.split("\r\n").enumerate() {
        assert!(!line.is_empty() && !line.contains(['\r', '\n', '\0']), "a line within a line: {shown}");
        if at > 0 {
            let (name, _) = line.split_once(':').unwrap_or_else(|| panic!("a line without a name: {shown}"));
            assert!(!name.is_empty() && !name.contains([' ', '\t']), "a line that continues, or no name: {shown}");
            names.push(name.to_ascii_lowercase());
        }
    }
    let count = |wanted: &[&str]| names.iter().filter(|name| wanted.contains(&name.as_str())).count();
    // A response that never has a body may announce its length.
    let is_bare = head.starts_with(b"HTTP/") && body == Framing::Length(0);
    assert!(count(&OURS[1..]) < 2 || is_bare, "two lengths: {shown}");
    assert!(count(&OURS[..1]) < 2 || head.starts_with(b"HTTP/"), "two hosts: {shown}");
}

/// The request as we write it, with a length or chunks, is parsed to the same.
fn write_again(request: &Request<'_>, body: &[u8]) {
    let Some(host) = request.host else { return };
    let method = match request.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
        Method::Other if !request.path.starts_with(['/', '*']) => "CONNECT",
        Method::Other => "PUT",
        Method::Unknown => "BREW",
    };
    let target = [request.path, request.query].join(if request.query.is_empty() { "" } else { "?" });
    let fields = OTHERS.iter().flat_map(|name| request.fields.values(name).map(move |value| (*name, value)));
    let fields: Vec<_> = fields.filter_map(|(name, value)| Some((name, ascii(value)?))).collect();
    let head = fields.iter().fold(Head::request(method, &target, host), |head, (name, value)| head.field(name, value));
    let with_length = head.clone().field("Content-Length", body.len()).end().into_bytes();
    let mut with_chunks = head.field("Transfer-Encoding", "chunked").end().into_bytes();
    for piece in body.chunks(3) {
        chunk(&mut with_chunks, |out| {
            out.extend_from_slice(piece);
            true
        });
    }
    chunk(&mut with_chunks, |_| false);
    for written in [[&with_length[..], body].concat(), with_chunks] {
        let seen = requests(&written, body.len() as u64, &[]);
        let [HeadEvent::Head(again), HeadEvent::Body(same), HeadEvent::Partial(..)] = &seen[..] else {
            panic!("{} is read as {seen:?}", written.escape_ascii());
        };
        assert_eq!((again.method, again.path, again.query), (request.method, request.path, request.query));
        assert_eq!((again.host, &same[..]), (request.host, body));
        assert!(again.keeps_alive == request.keeps_alive || request.is_old);
        for (name, value) in &fields {
            assert!(again.fields.values(name).any(|other| other == value.as_bytes()), "{name}: {value}");
        }
    }
}
