//! What connections yield, however they are cut, and what is refused.

use std::time::Duration;

use super::*;
use stdio_bus_core::port::Moment;

const LIMITS: Limits = Limits {
    body: 16,
    head_time: Duration::from_secs(10),
    body_time: Duration::from_secs(20),
    idle_time: Duration::from_secs(60),
};

/// The events of a connection, one line each.
fn said(bytes: &[u8], ends: impl IntoIterator<Item = usize>) -> Vec<String> {
    let mut reader = RequestReader::new(Moment::default(), LIMITS);
    let (mut all, mut at, mut data) = (Vec::new(), 0, Vec::new());
    for end in ends.into_iter().chain([bytes.len()]) {
        loop {
            let event = reader.next(Moment::default(), &bytes[at..end]);
            match event {
                Event::More(length) => {
                    at += length;
                    break;
                }
                Event::Head(head) => {
                    at += head.length;
                    all.push(format!("{:?} {} {:?} {}", head.method, head.path, head.body, head.keeps_alive));
                }
                Event::Data { data: piece, length } => {
                    at += length;
                    data.extend_from_slice(piece);
                }
                Event::End(length) => {
                    at += length;
                    all.push(format!("{:?}", String::from_utf8_lossy(&std::mem::take(&mut data))));
                }
                Event::Wrong(error) => {
                    all.push(format!("{} {}", error.status.code(), error.why));
                    return all;
                }
            }
        }
    }
    all
}

fn every_way(text: &str) -> Vec<String> {
    let whole = said(text.as_bytes(), []);
    assert_eq!(said(text.as_bytes(), 0..text.len()), whole, "{text:?}, byte by byte");
    for cut in 0..text.len() {
        assert_eq!(said(text.as_bytes(), [cut]), whole, "{text:?}, cut at {cut}");
    }
    whole
}

/// The status of a refusal, and its reason.
fn refused(text: &str) -> String {
    every_way(text).pop().unwrap_or_default()
}

#[test]
fn requests_follow_each_other_with_their_bodies() {
    let text = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcPOST /b HTTP/1.1\r\nhost: h\r\n\
        transfer-encoding: Chunked\r\n\r\n2\r\nde\r\n1;x\r\nf\r\n0\r\nA: b\r\n\r\nDELETE /c HTTP/1.1\r\nHost:\r\n\r\n\
        GET * HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\nGET /d HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\nGET /e";
    let all = [
        "Post /a Length(3) true",
        "\"abc\"",
        "Post /b Chunked true",
        "\"def\"",
        "Delete /c Length(0) true",
        "\"\"",
        "Get * Length(0) true",
        "\"\"",
        "Get /d Length(0) false",
        "\"\"",
    ];
    assert_eq!(every_way(text), all);
}

#[test]
fn an_empty_line_before_a_request_is_skipped() {
    let post = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\r\n";
    let once = ["Post /a Length(3) true", "\"abc\""];
    assert_eq!(every_way(&format!("\r\n{post}{post}")), [once, once].concat());
    assert_eq!(refused(&format!("{post}\r\n{post}")), "400 this is not HTTP", "two lines without a field name");
}

#[test]
fn ambiguous_requests_are_refused() {
    let with = |fields: &str| refused(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\nxyz"));
    for (fields, why) in [
        ("Content-Length: 3\r\nContent-Length: 3", "400 more than one Content-Length"),
        ("Content-Length: 3\r\nContent-Length: 4", "400 more than one Content-Length"),
        ("Content-Length: 3, 3", "400 Content-Length is not a number"),
        ("Content-Length: +3", "400 Content-Length is not a number"),
        ("Content-Length: 03", "400 Content-Length is not a number"),
        ("Content-Length: 0x3", "400 Content-Length is not a number"),
        ("Content-Length:", "400 Content-Length is not a number"),
        ("Content-Length: 17", "413 the body is too long"),
        ("Content-Length: 99999999999999999999999", "413 the body is too long"),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", "400 a Content-Length beside a Transfer-Encoding"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "400 more than one Transfer-Encoding"),
        ("Transfer-Encoding: gzip, chunked", "501 the only Transfer-Encoding known here is chunked"),
        ("Transfer-Encoding: xchunked", "501 the only Transfer-Encoding known here is chunked"),
        ("Transfer-Encoding: \u{b}chunked", "400 this is not HTTP: the head is malformed"),
        ("Transfer-Encoding: chunked", "400 the body is no sequence of chunks"),
        ("A: b\r\n c: d", "400 this is not HTTP: the head is malformed"),
        ("A: b\r\n\tc: d", "400 this is not HTTP: the head is malformed"),
        ("A : b", "400 this is not HTTP: the head is malformed"),
        ("A: b\rc: d", "400 this is not HTTP: the head is malformed"),
        ("A: b\0", "400 this is not HTTP: the head is malformed"),
        ("A: b\nc: d", "400 a line of the head does not end with CR LF"),
        ("Host: h", "400 more than one Host"),
    ] {
        assert_eq!(with(fields), why, "{fields:?}");
    }
    assert_eq!(
        refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        "400 HTTP/1.0 has no Transfer-Encoding"
    );
    for (head, why) in [
        ("GET / HTTP/1.1\r\n\r\n", "400 HTTP/1.1 needs a Host"),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400 Host is not a host and a port"),
        ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "400 Host is not a host and a port"),
        (
            "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
            "400 the target of the request names another host than Host does",
        ),
        ("GET a HTTP/1.1\r\nHost: b\r\n\r\n", "400 the target of the request is not a path"),
        ("GET / HTTP/1.2\r\nHost: b\r\n\r\n", "505 HTTP/1.1 is spoken here, and HTTP/1.0"),
        ("{\"jsonrpc\":\"2.0\"}\n", "400 this is not HTTP"),
        ("\r\n\r\n", "400 this is not HTTP"),
        ("GET / HTTP/1.1\nHost: b\n\n", "400 a line of the head does not end with CR LF"),
    ] {
        assert_eq!(refused(head), why, "{head:?}");
    }
}

#[test]
fn a_head_has_at_most_thirty_two_kibibytes_and_sixty_four_fields() {
    let with = |fields: String| format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let long = |bytes: usize| with(format!("A: {}\r\n", "a".repeat(bytes - with("A: \r\n".into()).len())));
    let last = |text: &str| said(text.as_bytes(), []).pop().unwrap_or_default();
    assert_eq!(LONGEST_HEAD, 32 * 1024);
    assert_eq!((last(&long(LONGEST_HEAD)), last(&with("A: b\r\n".repeat(63)))), ("\"\"".to_owned(), "\"\"".to_owned()));
    assert!(
        last(&long(LONGEST_HEAD + 1)).starts_with("431 ") && last(&with("A: b\r\n".repeat(64))).starts_with("431 ")
    );
    assert!(last(&format!("GET /{}", "a".repeat(LONGEST_HEAD))).starts_with("414 "));
}

#[test]
fn a_request_may_wait_for_continue_before_its_body() {
    let expects = |version: &str, fields: &str| {
        let text = format!("POST / HTTP/{version}\r\nHost: h\r\n{fields}\r\n");
        HeadReader::default().read(text.as_bytes()).ok().flatten().map(|head| head.expects_continue())
    };
    assert_eq!(expects("1.1", "expect: 100-Continue\r\n"), Some(true));
    assert_eq!((expects("1.0", "Expect: 100-continue\r\n"), expects("1.1", "")), (Some(false), Some(false)));
}

#[test]
fn each_part_of_a_request_has_its_timeout() {
    let at = |seconds: u64| Moment(seconds * 1_000_000_000);
    let mut reader = RequestReader::new(at(0), LIMITS);
    assert_eq!((reader.next(at(1), b"POST / HT"), reader.deadline()), (Event::More(0), at(10)));
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n";
    assert!(matches!(reader.next(at(2), head), Event::Head(_)));
    assert_eq!(reader.deadline(), at(22));
    assert!(matches!(reader.next(at(3), b"a"), Event::Data { .. }));
    assert_eq!((reader.next(at(4), b""), reader.deadline()), (Event::More(0), at(23)));
    assert!(matches!(reader.next(at(5), b"b"), Event::Data { .. }));
    assert_eq!(reader.next(at(5), b""), Event::End(0));
    reader.answered(at(6), 0);
    assert_eq!((reader.awaits_head(), reader.deadline()), (true, at(66)));
    assert_eq!(reader.next(at(60), b"G"), Event::More(0));
    assert_eq!(reader.deadline(), at(70));
    reader.answered(at(70), 2);
    assert_eq!(reader.next(at(71), b"\r\n"), Event::More(0));
    assert_eq!(reader.deadline(), at(130), "an empty line begins no request");
    reader.answered(at(80), 3);
    assert_eq!(reader.deadline(), at(90), "the next one has begun to come");
}

/// A complete response: its statuses, and its body.
fn answered(text: &str, to: Method, step: usize) -> Result<(Vec<u16>, String), &'static str> {
    let mut reader = ResponseReader::new(to, 1000);
    let (mut statuses, mut data, mut at) = (Vec::new(), Vec::new(), 0);
    for end in (0..text.len()).step_by(step).chain([text.len()]) {
        loop {
            match reader.next(&text.as_bytes()[at..end], end == text.len()) {
                Event::More(length) => {
                    at += length;
                    break;
                }
                Event::Head(head) => {
                    at += head.length;
                    statuses.push(head.status);
                }
                Event::Data { data: piece, length } => {
                    at += length;
                    data.extend_from_slice(piece);
                }
                Event::End(_) => return Ok((statuses, String::from_utf8_lossy(&data).into_owned())),
                Event::Wrong(error) => return Err(error.why),
            }
        }
    }
    Err("it continues")
}

#[test]
fn an_answer_ends_as_its_head_says() {
    for step in [1, 2, 3, 1000] {
        let get = |text: &str| answered(text, Method::Get, step);
        let is = |statuses: &[u16], body: &str| Ok((statuses.to_vec(), body.to_owned()));
        assert_eq!(get("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef"), is(&[200], "abc"));
        assert_eq!(get("HTTP/1.1 200 \r\n\r\nabc"), is(&[200], "abc"), "its end is that of the connection");
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(get(chunks), is(&[200], "abc"));
        assert_eq!(answered(chunks, Method::Head, step), is(&[200], ""));
        let hints =
            "HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 100 \r\n\r\nHTTP/1.1 204 None\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(get(hints), is(&[103, 100, 204], ""));
        assert_eq!(get("HTTP/1.1 101 Switching Protocols\r\n\r\n\x01\x02"), is(&[101], ""), "frames follow");
        assert_eq!((get(""), get("HTTP/1.1 20")), (Err(Error::NOTHING.why), Err(Error::CUT_OFF.why)));
        assert_eq!(get("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), Err(Error::CUT_OFF.why));
        assert_eq!(get(&chunks[..chunks.len() - 1]), Err(Error::CUT_OFF.why));
        for text in ["{}\n", "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"] {
            assert_eq!(get(text), Err(Error::NOT_HTTP.why), "{text:?}");
        }
        for fields in
            ["Content-Length: 1\r\nTransfer-Encoding: chunked", "Content-Length: 1\r\nContent-Length: 1", "A: b\n"]
        {
            assert!(get(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\na")).is_err(), "{fields}");
        }
    }
}
