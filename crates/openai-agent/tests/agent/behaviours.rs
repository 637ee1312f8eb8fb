//! What servers, gateways and proxies do with HTTP, and what must come of it: the words in the chat, how often was
//! asked, and what is logged at level info. The turn ends with `end_turn` in each case. One row is one behaviour and
//! says where it comes from: a server, a document or a mishap.
//!
//! In the expected texts `{url}` is the address that was called and `#` is any number. A row without words expects the
//! answer `ok`, one request and no line of the log; there is one retry unless a row says otherwise.

use std::io::Write;
use std::sync::Mutex;

use super::client::Client;
use super::endpoint::{Conn, Endpoint};

/// How the connection goes on after the bytes of an answer.
#[derive(Clone, Copy)]
enum End {
    /// It can be used again.
    Keep,
    /// It is closed properly.
    Close,
    /// It is reset.
    Reset,
    /// Nothing happens until the agent closes it.
    Hold,
}

/// The answer to one request.
struct Answer {
    bytes: Vec<u8>,
    end: End,
}

impl Answer {
    fn raw(bytes: impl AsRef<[u8]>, end: End) -> Self {
        Self { bytes: bytes.as_ref().to_vec(), end }
    }

    fn give(&self, conn: &mut Conn) {
        conn.raw(&self.bytes);
        match self.end {
            End::Keep => {}
            End::Close => conn.cut(),
            End::Reset => conn.reset(),
            End::Hold => conn.wait_closed(),
        }
    }
}

const SAID: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const WHOLE: &str = "{\"choices\":[{\"message\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}";
const REPEATED: &str = "{\"detail\":[{\"loc\":[\"body\",\"messages\"],\"msg\":\"Extra inputs are not permitted\",\
    \"input\":{\"stream_options\":{}}}]}";
const EVENTS: &str = "HTTP/1.1 200 OK\ncontent-type: text/event-stream";

fn stream() -> String {
    format!("{SAID}{STOP}{DONE}")
}

/// A response with these lines of a head (without its end) and this body, with its length.
fn sized(head: &str, body: impl AsRef<[u8]>) -> Answer {
    let body = body.as_ref();
    let mut bytes = format!("{}\r\ncontent-length: {}\r\n\r\n", head.replace('\n', "\r\n"), body.len()).into_bytes();
    bytes.extend_from_slice(body);
    Answer::raw(bytes, End::Keep)
}

/// A status with a body of this type.
fn status(status: u16, kind: &str, body: &str) -> Answer {
    sized(&format!("HTTP/1.1 {status} X\ncontent-type: {kind}"), body)
}

/// An error in OpenAI's JSON, with more headers.
fn error(code: u16, headers: &str, message: &str) -> Answer {
    let body = serde_json::json!({"error": {"message": message, "type": "x", "param": null, "code": null}});
    sized(&format!("HTTP/1.1 {code} X{headers}\ncontent-type: application/json"), body.to_string())
}

/// What an account without money gets, though a wait is named.
fn spent(kind: &str) -> Answer {
    let body = serde_json::json!({"error": {"message": "the account is empty", "type": kind}});
    sized("HTTP/1.1 429 X\nretry-after-ms: 1", body.to_string())
}

fn ok() -> Answer {
    sized(EVENTS, stream())
}

/// The beginning of a response in chunks.
fn chunked(head: &str, pieces: &[&str], end: &str) -> Vec<u8> {
    let mut bytes = format!("{}\r\ntransfer-encoding: chunked\r\n\r\n", head.replace('\n', "\r\n"));
    for piece in pieces {
        bytes.push_str(&format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    bytes.push_str(end);
    bytes.into_bytes()
}

/// Bytes as chunks of so many, and the last one.
fn chunks(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(length) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zlib(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    zstd::bulk::compress(text.as_bytes(), 3).unwrap()
}

/// What [`stream`] gives, as Node.js compresses it.
const BROTLI: &[u8] = b"\x1b\x8a\x00\x30\x2c\x0a\xec\x46\x63\x8a\x87\xab\x41\xe3\xf3\x6a\x97\xde\xa2\x87\x5a\x64\x0b\
    \x66\x6f\x2b\x74\xb1\xf4\x4d\x90\xb5\xb7\xd6\xe9\xdb\x13\x99\x22\x3a\x5f\x4e\x39\x60\x0f\x5b\x40\x2d\x8d\xd2\x0b\
    \xf0\x75\x72\x62\xe7\xcb\xb7\xc3\xb1\xb4\x16\x42\x80\xe6\x0e\x1c\x7d\xde\xd8\x8c\x5e\x3e\xfa\x02\x4e\xef\x28\x69\
    \x56\xd4\xe5\x8c\xb6\x47\x9d\x08\xfb\x26\x76\x00";

/// A behaviour and what must come of it.
struct Row {
    name: String,
    source: &'static str,
    /// The answer to each request; the last one to all that follow.
    answers: Vec<Answer>,
    env: &'static [(&'static str, &'static str)],
    text: String,
    requests: usize,
    log: Vec<String>,
}

fn row(name: &str, source: &'static str, answers: Vec<Answer>) -> Row {
    Row { name: name.to_owned(), source, answers, env: &[], text: "ok".to_owned(), requests: 1, log: Vec::new() }
}

impl Row {
    fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    /// It is said before another attempt, after so many milliseconds.
    fn retried(mut self, text: &str, milliseconds: &str) -> Self {
        self.requests += 1;
        self.logs(&format!("info: {text}. Again in {milliseconds} ms."))
    }

    /// So many requests, though not for a retry.
    fn asked(self, requests: usize) -> Self {
        Self { requests, ..self }
    }

    fn logs(mut self, line: &str) -> Self {
        self.log.push(line.to_owned());
        self
    }

    /// These are the words in the chat and in the log.
    fn fails(self, text: &str) -> Self {
        Self { text: text.to_owned(), ..self }.logs(&format!("warning: {text}"))
    }

    /// The server's own words follow.
    fn adds(mut self, detail: &str) -> Self {
        self.log.pop();
        let text = format!("{} It says: {detail}", self.text);
        self.fails(&text)
    }

    /// It fails so after the words of the answer.
    fn breaks(self, text: &str) -> Self {
        Self { text: format!("ok\n\n{text}"), ..self }.logs(&format!("warning: {text}"))
    }

    /// What is wrong with what came of it, if anything is.
    fn try_out(self) -> Option<String> {
        let answers = self.answers;
        let endpoint = Endpoint::start(move |request, conn| answers[request.number.min(answers.len() - 1)].give(conn));
        let url = endpoint.url();
        let mut env = vec![("OPENAI_BASE_URL", url.as_str()), ("OPENAI_MAX_RETRIES", "1")];
        env.extend(self.env);
        let mut client = Client::logging("info", &env);
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        let (text, stop) = (answered.text(), answered.answer["result"]["stopReason"].clone());
        let (log, requests) = (client.log(), endpoint.requests().len());
        let log: Vec<String> = log.lines().map(|line| line.replacen("openai-agent: ", "", 1)).collect();
        let is_as = |expected: &str, said: &str| {
            let expected = expected.replace("{url}", &endpoint.chat_url());
            let (mut pieces, mut rest) = (expected.split('#'), said);
            let first = pieces.next().unwrap_or_default();
            let Some(after) = rest.strip_prefix(first) else { return false };
            rest = after;
            for piece in pieces {
                let after = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
                match after.strip_prefix(piece).filter(|_| after.len() < rest.len()) {
                    Some(more) => rest = more,
                    None => return false,
                }
            }
            rest.is_empty()
        };
        let is_right = is_as(&self.text, &text)
            && stop == "end_turn"
            && requests == self.requests
            && log.len() == self.log.len()
            && self.log.iter().zip(&log).all(|(expected, line)| is_as(expected, line));
        let came = serde_json::json!({"text": text.replace(&endpoint.chat_url(), "{url}"), "asked": requests, "log":
            log.iter().map(|line| line.replace(&endpoint.chat_url(), "{url}")).collect::<Vec<_>>(), "stop": stop});
        (!is_right).then(|| format!("{} ({}): {came}", self.name, self.source))
    }
}

#[test]
fn every_behaviour_has_its_words_its_retries_and_its_log() {
    let rows = rows();
    assert!(rows.len() >= 80, "{} behaviours", rows.len());
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rows.len(), "each name stands once");
    let (rows, wrong) = (Mutex::new(rows), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let Some(row) = rows.lock().unwrap().pop() else { return };
                    wrong.lock().unwrap().extend(row.try_out());
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn rows() -> Vec<Row> {
    let mut rows = answered();
    rows.extend(refused());
    rows.extend(retried());
    rows.extend(broken());
    rows
}

/// Answers, however they are wrapped.
fn answered() -> Vec<Row> {
    vec![
        row(
            "a stream in chunks",
            "OpenAI",
            vec![Answer::raw(chunked(EVENTS, &[SAID, STOP, DONE], "0\r\n\r\n"), End::Keep)],
        ),
        row("a stream with a length", "mock servers", vec![ok()]),
        row(
            "a stream of HTTP/1.0 that ends with the connection",
            "nginx without proxy_http_version 1.1",
            vec![Answer::raw(
                format!("HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{}", stream()),
                End::Close,
            )],
        ),
        row(
            "a stream of HTTP/1.1 without a length",
            "simple Python servers",
            vec![Answer::raw(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", stream()), End::Close)],
        ),
        row(
            "a stream of one byte a chunk",
            "llama.cpp behind a slow tunnel",
            vec![Answer::raw([chunked(EVENTS, &[], ""), chunks(stream().as_bytes(), 1)].concat(), End::Keep)],
        ),
        row(
            "a chunk with an extension",
            "RFC 9112, 7.1.1",
            vec![Answer::raw(
                format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x};ieof=1\r\n{}\r\n0\r\n\r\n",
                    stream().len(),
                    stream()
                ),
                End::Keep,
            )],
        ),
        row(
            "trailers after the last chunk",
            "gRPC gateways",
            vec![Answer::raw(chunked(EVENTS, &[SAID, STOP, DONE], "0\r\nx-status: 0\r\n\r\n"), End::Keep)],
        ),
        row(
            "chunk sizes with leading zeros",
            "IIS",
            vec![Answer::raw(
                format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0000{:X}\r\n{}\r\n0\r\n\r\n",
                    stream().len(),
                    stream()
                ),
                End::Keep,
            )],
        ),
        row(
            "plain JSON though a stream was asked for",
            "LiteLLM with fake streams off",
            vec![status(200, "application/json", WHOLE)],
        ),
        row("plain JSON as text/plain", "Hugging Face endpoints", vec![status(200, "text/plain", WHOLE)]),
        row("an answer with status 201", "AWS API Gateway mappings", vec![status(201, "text/event-stream", &stream())]),
        row("an answer with status 202", "queueing gateways", vec![status(202, "text/event-stream", &stream())]),
        row("an answer with status 206", "caching proxies", vec![status(206, "text/event-stream", &stream())]),
        row("no content type", "bare Python servers", vec![sized("HTTP/1.1 200 OK", stream())]),
        row("events as text/html", "misconfigured PHP proxies", vec![status(200, "text/html", &stream())]),
        row("events as octets", "S3-like gateways", vec![status(200, "application/octet-stream", &stream())]),
        row(
            "a status without a reason",
            "HTTP/2 gateways that speak HTTP/1.1 behind",
            vec![sized("HTTP/1.1 200 ", stream())],
        ),
        row(
            "100 Continue before the answer",
            "IIS",
            vec![Answer::raw([b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), ok().bytes].concat(), End::Keep)],
        ),
        row(
            "103 Early Hints before the answer",
            "Cloudflare, RFC 8297",
            vec![Answer::raw(
                [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".to_vec(), ok().bytes].concat(),
                End::Keep,
            )],
        ),
        row(
            "header names in capitals",
            "old load balancers",
            vec![sized("HTTP/1.1 200 OK\nCONTENT-TYPE: TEXT/EVENT-STREAM", stream())],
        ),
        row(
            "fifty headers and long cookies",
            "Cloudflare",
            vec![sized(
                &format!(
                    "HTTP/1.1 200 OK{}",
                    "\nset-cookie: __cf_bm=0123456789012345678901234567890123456789".repeat(50)
                ),
                stream(),
            )],
        ),
        row(
            "gzip although identity was asked for",
            "nginx with gzip_types *",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: gzip", gzip(&stream()))],
        ),
        row("x-gzip", "Apache 2.2", vec![sized("HTTP/1.1 200 OK\ncontent-encoding: x-gzip", gzip(&stream()))]),
        row(
            "gzip by any name in capitals",
            "IIS",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: GZIP", gzip(&stream()))],
        ),
        row("deflate", "old appliances", vec![sized("HTTP/1.1 200 OK\ncontent-encoding: deflate", zlib(&stream()))]),
        row("br", "Cloudflare", vec![sized("HTTP/1.1 200 OK\ncontent-encoding: br", BROTLI)]),
        row("zstd", "Cloudflare, Caddy", vec![sized("HTTP/1.1 200 OK\ncontent-encoding: zstd", zstd(&stream()))]),
        row(
            "gzip in two members",
            "RFC 1952, 2.2: bgzip",
            vec![sized(
                "HTTP/1.1 200 OK\ncontent-encoding: gzip",
                [gzip(SAID), gzip(&format!("{STOP}{DONE}"))].concat(),
            )],
        ),
        row(
            "gzip in chunks",
            "nginx",
            vec![Answer::raw(
                [chunked("HTTP/1.1 200 OK\ncontent-encoding: gzip", &[], ""), chunks(&gzip(&stream()), 7)].concat(),
                End::Keep,
            )],
        ),
        row("gzip that nobody names", "proxies that drop the header", vec![sized("HTTP/1.1 200 OK", gzip(&stream()))]),
        row(
            "gzip that is none",
            "proxies that keep the header",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: gzip", stream())],
        ),
        row(
            "br that is none",
            "proxies that keep the header",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: br", stream())],
        ),
        row(
            "the coding identity",
            "RFC 9110, 8.4.1",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: identity", stream())],
        ),
        row(
            "an unknown coding",
            "AWS SDK proxies",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: aws-chunked", stream())],
        )
        .fails(
            "Unexpected answer from {url}: a body of the content coding \"aws-chunked\" (gzip, \
                 deflate, br and zstd can be read) instead of a chat completion. Check your \
                 OPENAI_BASE_URL.",
        ),
        row(
            "two codings",
            "stacked proxies",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: gzip, br", gzip(&stream()))],
        )
        .fails(
            "Unexpected answer from {url}: a body of the content coding \"gzip, br\" (gzip, deflate, \
                 br and zstd can be read) instead of a chat completion. Check your OPENAI_BASE_URL.",
        ),
        row(
            "gzip that is cut off",
            "crashing proxies",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: gzip", &gzip(&stream())[..40])],
        )
        .retried("Network error connecting to {url}: the gzip-compressed answer is cut off", "#")
        .fails("Network error connecting to {url}: the gzip-compressed answer is cut off"),
        row(
            "gzip that is damaged",
            "faulty memory",
            vec![sized(
                "HTTP/1.1 200 OK\ncontent-encoding: gzip",
                gzip(&stream())
                    .iter()
                    .enumerate()
                    .map(|(at, byte)| if at > 12 { !byte } else { *byte })
                    .collect::<Vec<u8>>(),
            )],
        )
        .retried("Network error connecting to {url}: the gzip-compressed answer is damaged", "#")
        .fails("Network error connecting to {url}: the gzip-compressed answer is damaged"),
        row(
            "a gzip bomb",
            "fault catalogue",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: gzip", gzip(&" ".repeat(32 << 20)))],
        )
        .fails(
            "Network error connecting to {url}: the gzip-compressed answer grows to # times its size \
                 and is given up",
        ),
        row(
            "a compressed error",
            "nginx with gzip_types *",
            vec![sized(
                "HTTP/1.1 400 Bad Request\ncontent-encoding: gzip",
                gzip("{\"error\":{\"message\":\"too long\"}}"),
            )],
        )
        .fails("Request refused (HTTP 400) by {url}: too long"),
        row(
            "an error of an unknown coding",
            "AWS SDK proxies",
            vec![sized("HTTP/1.1 400 Bad Request\ncontent-encoding: compress", "xxxx")],
        )
        .fails("Request refused (HTTP 400) by {url}."),
        row(
            "200 without a body, then an answer",
            "vLLM behind a gateway that restarts",
            vec![status(200, "text/event-stream", ""), ok()],
        )
        .retried("Network error connecting to {url}: the answer is empty", "#"),
        row(
            "200 without a body for ever",
            "vLLM behind a gateway that restarts",
            vec![status(200, "text/event-stream", "")],
        )
        .retried("Network error connecting to {url}: the answer is empty", "#")
        .fails("Network error connecting to {url}: the answer is empty"),
        row("204", "health-checking gateways", vec![sized("HTTP/1.1 204 No Content", ""), ok()])
            .retried("Network error connecting to {url}: the answer is empty", "#"),
        row(
            "only comments",
            "OpenRouter: \": OPENROUTER PROCESSING\"",
            vec![status(200, "text/event-stream", ": OPENROUTER PROCESSING\n\n")],
        )
        .fails("Network error connecting to {url}: the answer is empty"),
    ]
}

/// What is told at once.
fn refused() -> Vec<Row> {
    let refusals = [
        (400, "OpenAI", "bad"),
        (402, "DeepSeek, OpenRouter", "Insufficient Balance"),
        (404, "OpenAI", "The model `x` does not exist"),
        (405, "Starlette", "Method Not Allowed"),
        (406, "Spring", "Not Acceptable"),
        (410, "retired deployments", "gone"),
        (413, "Anthropic", "request_too_large"),
        (415, "Spring", "Unsupported Media Type"),
        (418, "moderation gateways", "no"),
        (421, "HTTP/2 coalescing behind CDNs", "misdirected"),
        (422, "Mistral", "unprocessable"),
        (424, "Azure", "Failed Dependency"),
        (425, "CDNs with 0-RTT", "Too Early"),
        (426, "Envoy", "Upgrade Required"),
        (428, "API managers", "Precondition Required"),
        (431, "Node.js", "Header Fields Too Large"),
        (451, "regional gateways", "unavailable"),
        (499, "nginx", "Client Closed Request"),
    ];
    let mut rows: Vec<Row> = refusals
        .map(|(code, source, words)| {
            row(&format!("{code} with words"), source, vec![error(code, "", words)])
                .fails(&format!("Request refused (HTTP {code}) by {{url}}: {words}"))
        })
        .into();
    // Nobody knows whether the key may go there: a redirect is told and not followed.
    for code in [301, 302, 303, 307, 308] {
        let head = format!("HTTP/1.1 {code} X\nlocation: https://elsewhere.test/v1/chat/completions?token=abc");
        let place = "https://elsewhere.test/v1/chat/completions?***";
        let text = format!(
            "Request refused (HTTP {code}) by {{url}}: it redirects to {place}; set OPENAI_BASE_URL accordingly"
        );
        let name = format!("{code} to another host");
        rows.push(row(&name, "nginx: http to https, trailing slashes", vec![sized(&head, "")]).fails(&text));
    }
    rows.extend([
        row("400 without a body", "HTTP.sys", vec![sized("HTTP/1.1 400 Bad Request", "")])
            .fails("Request refused (HTTP 400) by {url}."),
        row("400 with a page", "nginx", vec![status(400, "text/html", "<html><h1>400 Bad Request</h1></html>")])
            .fails("Request refused (HTTP 400) by {url}."),
        row("400 with plain words", "llama.cpp", vec![status(400, "text/plain", "context is full\nmore")])
            .fails("Request refused (HTTP 400) by {url}: context is full more"),
        row(
            "400 whose body never ends",
            "broken keep-alive",
            vec![Answer::raw("HTTP/1.1 400 Bad Request\r\ncontent-length: 1000\r\n\r\n{\"error\":", End::Close)],
        )
        .fails("Request refused (HTTP 400) by {url}: {\"error\":"),
        row("401", "OpenAI", vec![error(401, "\nwww-authenticate: Bearer", "Incorrect API key provided")])
            .fails("Authentication error (HTTP 401) calling {url}. Check your OPENAI_API_KEY.")
            .adds("Incorrect API key provided"),
        row(
            "401 without a body",
            "nginx auth_request",
            vec![sized("HTTP/1.1 401 Unauthorized\nwww-authenticate: Basic realm=x", "")],
        )
        .fails("Authentication error (HTTP 401) calling {url}. Check your OPENAI_API_KEY."),
        row("403 with a page", "Cloudflare, error 1020", vec![status(403, "text/html", "<html>Access denied</html>")])
            .fails("Authentication error (HTTP 403) calling {url}. Check your OPENAI_API_KEY."),
        row("407", "corporate proxies", vec![sized("HTTP/1.1 407 Proxy Authentication Required", "")])
            .fails("Request refused (HTTP 407) by {url}."),
        row(
            "413 with a page",
            "nginx client_max_body_size",
            vec![status(413, "text/html", "<html>413 Request Entity Too Large</html>")],
        )
        .fails("Request refused (HTTP 413) by {url}."),
        row(
            "302 to a login page",
            "SSO gateways",
            vec![sized("HTTP/1.1 302 Found\nlocation: /login?next=%2Fv1", "<html>")],
        )
        .fails(
            "Request refused (HTTP 302) by {url}: it redirects to /login?***; set OPENAI_BASE_URL \
                 accordingly",
        ),
        row("300 without a place", "RFC 9110, 15.4.1", vec![status(300, "text/plain", "choose")])
            .fails("Request refused (HTTP 300) by {url}: choose"),
        row("304", "caching proxies", vec![sized("HTTP/1.1 304 Not Modified", "")])
            .fails("Request refused (HTTP 304) by {url}."),
        row(
            "101",
            "WebSocket gateways",
            vec![Answer::raw(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
                End::Close,
            )],
        )
        .fails("Request refused (HTTP 101) by {url}."),
        row(
            "a page with status 200",
            "captive portals",
            vec![status(200, "text/html; charset=utf-8", "<!doctype html><title>log in</title>")],
        )
        .fails(
            "Unexpected answer from {url}: text/html; charset=utf-8 instead of a chat completion. \
                 Check your OPENAI_BASE_URL.",
        ),
        row(
            "other JSON with status 200",
            "wrong base URL",
            vec![status(200, "application/json", "{\"status\":\"ok\"}")],
        )
        .logs("warning: An event of 15 bytes that says nothing is passed over: {\"status\":\"ok\"}")
        .fails(
            "Unexpected answer from {url}: application/json instead of a chat completion. Check your \
                 OPENAI_BASE_URL.",
        ),
        row(
            "stream_options refused",
            "vLLM 0.4",
            vec![error(400, "", "Extra inputs are not permitted: stream_options"), ok()],
        )
        .logs("info: The endpoint refuses a request of gpt-4o (HTTP 400): stream_options is left out.")
        .asked(2),
        row("the request repeated in a refusal", "FastAPI", vec![status(422, "application/json", REPEATED)])
            .fails("Request refused (HTTP 422) by {url}: body.messages: Extra inputs are not permitted"),
        row(
            "a key in the path of an error",
            "gateways that quote the request",
            vec![error(400, "", "POST https://h/v1?api_key=abc123 by sk-0123456789abcdef is bad")],
        )
        .with(&[("OPENAI_API_KEY", "sk-0123456789abcdef")])
        .fails("Request refused (HTTP 400) by {url}: POST https://h/v1?*** by *** is bad"),
    ]);
    rows
}

/// What is tried again, or would be.
fn retried() -> Vec<Row> {
    let passing = [
        (408, "OpenAI"),
        (409, "OpenAI"),
        (500, "OpenAI"),
        (501, "old LocalAI"),
        (502, "nginx"),
        (503, "Hugging Face: model is loading"),
        (504, "AWS API Gateway"),
        (507, "WebDAV-like storages"),
        (520, "Cloudflare: unknown error"),
        (521, "Cloudflare: web server is down"),
        (522, "Cloudflare: connection timed out"),
        (524, "Cloudflare: a timeout occurred"),
        (529, "Anthropic: overloaded"),
        (530, "Cloudflare: origin DNS error"),
        (599, "proxies that time out"),
    ];
    let mut rows: Vec<Row> = passing
        .map(|(code, source)| {
            let text = match code {
                ..500 => format!("Request refused (HTTP {code}) by {{url}}: again"),
                _ => format!("Server error (HTTP {code}) from {{url}}. It says: again"),
            };
            let answers = vec![error(code, "\nretry-after-ms: 1", "again"), ok()];
            row(&format!("{code} once"), source, answers).retried(&text, "1")
        })
        .into();
    rows.extend([
        row("429 once, with seconds", "OpenAI", vec![error(429, "\nretry-after: 0", "slow down"), ok()])
            .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: slow down", "#"),
        row(
            "429 once, with fractions of seconds",
            "Azure",
            vec![error(429, "\nretry-after: 0.001", "slow down"), ok()],
        )
        .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: slow down", "1"),
        row(
            "429 once, with a date",
            "RFC 9110, 10.2.3",
            vec![error(429, "\nretry-after: Thu, 01 Jan 1970 00:00:00 GMT", "slow down"), ok()],
        )
        .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: slow down", "#"),
        row(
            "429 once, with milliseconds before seconds",
            "Azure",
            vec![error(429, "\nretry-after: 3600\nretry-after-ms: 1", "slow down"), ok()],
        )
        .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: slow down", "1"),
        row("429 with an hour", "Groq, daily limits", vec![error(429, "\nretry-after: 3600", "come back tomorrow")])
            .fails("Rate limit exceeded (HTTP 429) calling {url}. Please retry later.")
            .adds("come back tomorrow"),
        row("429 for ever", "Groq", vec![error(429, "\nretry-after-ms: 1", "slow down")])
            .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: slow down", "1")
            .fails("Rate limit exceeded (HTTP 429) calling {url}. Please retry later.")
            .adds("slow down"),
        row("429 that says not to", "OpenAI SDKs: x-should-retry", vec![error(429, "\nx-should-retry: false", "no")])
            .fails("Rate limit exceeded (HTTP 429) calling {url}. Please retry later.")
            .adds("no"),
        row(
            "400 that says to",
            "OpenAI SDKs: x-should-retry",
            vec![error(400, "\nx-should-retry: true\nretry-after-ms: 1", "yes"), ok()],
        )
        .retried("Request refused (HTTP 400) by {url}: yes", "1"),
        row("429 of an empty account", "OpenAI: insufficient_quota", vec![spent("insufficient_quota")])
            .fails("Rate limit exceeded (HTTP 429) calling {url}. Please retry later.")
            .adds("the account is empty"),
        row(
            "429 of an empty account, by type",
            "Moonshot: exceeded_current_quota_error",
            vec![spent("exceeded_current_quota_error")],
        )
        .fails("Rate limit exceeded (HTTP 429) calling {url}. Please retry later.")
        .adds("the account is empty"),
        row(
            "500 for ever with a page",
            "nginx",
            vec![sized("HTTP/1.1 500 X\nretry-after-ms: 1\ncontent-type: text/html", "<html>")],
        )
        .retried("Server error (HTTP 500) from {url}", "1")
        .fails("Server error (HTTP 500) from {url}."),
        row("a status beyond all", "LinkedIn: 999", vec![sized("HTTP/1.1 999 Request denied\nretry-after-ms: 1", "")])
            .retried("Server error (HTTP 999) from {url}", "1")
            .fails("Server error (HTTP 999) from {url}."),
        row("no retries at all", "OPENAI_MAX_RETRIES=0", vec![error(503, "\nretry-after-ms: 1", "again")])
            .with(&[("OPENAI_MAX_RETRIES", "0")])
            .fails("Server error (HTTP 503) from {url}.")
            .adds("again"),
        row(
            "two retries",
            "OPENAI_MAX_RETRIES=2",
            vec![error(503, "\nretry-after-ms: 1", "again"), error(429, "\nretry-after-ms: 2", "again"), ok()],
        )
        .with(&[("OPENAI_MAX_RETRIES", "2")])
        .retried("Server error (HTTP 503) from {url}. It says: again", "1")
        .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: again", "2"),
    ]);
    rows
}

/// Connections that end or stand still, and what is no HTTP.
fn broken() -> Vec<Row> {
    vec![
        row("closed before the first byte, once", "gunicorn worker restarts", vec![Answer::raw("", End::Close), ok()])
            .retried("Network error connecting to {url}: connection closed before message completed", "#"),
        row("closed before the first byte, for ever", "crashing servers", vec![Answer::raw("", End::Close)])
            .retried("Network error connecting to {url}: connection closed before message completed", "#")
            .fails("Network error connecting to {url}: connection closed before message completed"),
        row("reset before the first byte, once", "HAProxy reloads", vec![Answer::raw("", End::Reset), ok()]).retried(
            "Network error connecting to {url}: connection error: Connection reset by peer (os error \
                 104)",
            "#",
        ),
        row("closed within the status line", "crashing servers", vec![Answer::raw("HTTP/1.1 2", End::Close), ok()])
            .retried("Network error connecting to {url}: connection closed before message completed", "#"),
        row(
            "closed within the headers",
            "crashing servers",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ncontent-ty", End::Close), ok()],
        )
        .retried("Network error connecting to {url}: connection closed before message completed", "#"),
        row(
            "closed after the headers",
            "crashing workers behind a gateway",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", End::Close), ok()],
        )
        .retried(
            "Network error connecting to {url}: error reading a body from connection: unexpected EOF \
                 during chunk size line",
            "#",
        ),
        row(
            "closed before the promised body",
            "crashing workers behind a gateway",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", End::Close), ok()],
        )
        .retried(
            "Network error connecting to {url}: error reading a body from connection: end of file \
                 before message length reached",
            "#",
        ),
        row("closed within the answer", "spot instances", vec![Answer::raw(chunked(EVENTS, &[SAID], ""), End::Close)])
            .breaks(
                "Network error connecting to {url}: error reading a body from connection: unexpected EOF \
                 during chunk size line",
            ),
        row("reset within the answer", "HAProxy timeouts", vec![Answer::raw(chunked(EVENTS, &[SAID], ""), End::Reset)])
            .breaks(
                "Network error connecting to {url}: error reading a body from connection: Connection \
                 reset by peer (os error 104)",
            ),
        row(
            "closed within an answer of a length",
            "spot instances",
            vec![Answer::raw(format!("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{SAID}"), End::Close)],
        )
        .breaks(
            "Network error connecting to {url}: error reading a body from connection: end of file \
                 before message length reached",
        ),
        row(
            "closed after the reason to stop",
            "proxies that count idle time",
            vec![Answer::raw(chunked(EVENTS, &[SAID, STOP], ""), End::Close)],
        ),
        row(
            "reset after [DONE]",
            "gateways in a hurry",
            vec![Answer::raw(chunked(EVENTS, &[SAID, STOP, DONE], ""), End::Reset)],
        ),
        row(
            "held open after [DONE]",
            "Ollama behind a tunnel",
            vec![Answer::raw(chunked(EVENTS, &[SAID, STOP, DONE], ""), End::Hold)],
        ),
        row("silence before the headers", "overloaded servers", vec![Answer::raw("", End::Hold)])
            .with(&[("OPENAI_IDLE_TIMEOUT_SEC", "0.1")])
            .fails("Network error connecting to {url}: no answer within 0.1 s"),
        row("silence after the headers", "overloaded workers", vec![Answer::raw(chunked(EVENTS, &[], ""), End::Hold)])
            .with(&[("OPENAI_IDLE_TIMEOUT_SEC", "0.1")])
            .fails("Network error connecting to {url}: silence for 0.1 s"),
        row("silence within the answer", "stuck GPUs", vec![Answer::raw(chunked(EVENTS, &[SAID], ""), End::Hold)])
            .with(&[("OPENAI_IDLE_TIMEOUT_SEC", "0.1")])
            .breaks("Network error connecting to {url}: silence for 0.1 s"),
        row(
            "a server of another protocol",
            "SSH on the port",
            vec![Answer::raw("SSH-2.0-OpenSSH_9.6\r\n", End::Close)],
        )
        .retried("Network error connecting to {url}: invalid HTTP version parsed", "#")
        .fails("Network error connecting to {url}: invalid HTTP version parsed"),
        row("a TLS alert", "an HTTPS port asked by http://", vec![Answer::raw([0x15, 3, 1, 0, 2, 2, 22], End::Close)])
            .retried("Network error connecting to {url}: invalid HTTP version parsed", "#")
            .fails("Network error connecting to {url}: invalid HTTP version parsed"),
        row(
            "HTTP to an HTTPS port",
            "Go",
            vec![sized("HTTP/1.0 400 Bad Request", "Client sent an HTTP request to an HTTPS server.\n")],
        )
        .fails("Request refused (HTTP 400) by {url}: Client sent an HTTP request to an HTTPS server."),
        row("an HTTP/2 preface", "h2c-only servers", vec![Answer::raw([0, 0, 0, 4, 0, 0, 0, 0, 0], End::Close)])
            .retried("Network error connecting to {url}: invalid HTTP version parsed", "#")
            .fails("Network error connecting to {url}: invalid HTTP version parsed"),
        row("no status line", "HTTP/0.9", vec![Answer::raw(stream(), End::Close)])
            .retried("Network error connecting to {url}: invalid HTTP version parsed", "#")
            .fails("Network error connecting to {url}: invalid HTTP version parsed"),
        row(
            "a line that is no header",
            "broken CGI",
            vec![Answer::raw("HTTP/1.1 200 OK\r\nthis is no header\r\n\r\n", End::Close)],
        )
        .retried("Network error connecting to {url}: invalid HTTP header parsed", "#")
        .fails("Network error connecting to {url}: invalid HTTP header parsed"),
        row(
            "two lengths that differ",
            "request smuggling, RFC 9112, 6.3",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", End::Close)],
        )
        .retried("Network error connecting to {url}: invalid content-length parsed", "#")
        .fails("Network error connecting to {url}: invalid content-length parsed"),
        row(
            "a length that is no number",
            "broken CGI",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\nab", End::Close)],
        )
        .retried("Network error connecting to {url}: invalid content-length parsed", "#")
        .fails("Network error connecting to {url}: invalid content-length parsed"),
        row(
            "a chunk size that is no number",
            "broken proxies",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", End::Close)],
        )
        .retried(
            "Network error connecting to {url}: error reading a body from connection: Invalid chunk \
                 size line: missing size digit",
            "#",
        )
        .fails(
            "Network error connecting to {url}: error reading a body from connection: Invalid chunk \
                 size line: missing size digit",
        ),
        row(
            "a chunk longer than memory",
            "fault catalogue",
            vec![Answer::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n", End::Close)],
        )
        .retried(
            "Network error connecting to {url}: error reading a body from connection: invalid chunk \
                 size: overflow",
            "#",
        )
        .fails(
            "Network error connecting to {url}: error reading a body from connection: invalid chunk \
                 size: overflow",
        ),
        row(
            "headers without end",
            "fault catalogue",
            vec![Answer::raw(format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(1 << 17)), End::Close)],
        )
        .retried("Network error connecting to {url}: message head is too large", "#")
        .fails("Network error connecting to {url}: message head is too large"),
        row(
            "more headers than anybody needs",
            "fault catalogue",
            vec![Answer::raw(format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(200)), End::Close)],
        )
        .retried("Network error connecting to {url}: message head is too large", "#")
        .fails("Network error connecting to {url}: message head is too large"),
    ]
}
