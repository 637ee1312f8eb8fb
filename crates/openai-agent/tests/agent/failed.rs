//! What fails at once, what is retried, and what breaks off.

use super::row::*;

/// Failures that are reported at once.
pub fn refused() -> Vec<Row> {
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
            let advice = if code == 426 { ". This agent speaks HTTP/1.1 only." } else { "" };
            row(&format!("{code} with words"), source, vec![error(code, "", words)])
                .fails(&format!("Request refused (HTTP {code}) by {{url}}: {words}{advice}"))
        })
        .into();
    // The key may not be meant for the new address: a redirect is reported and not followed.
    for code in [301, 302, 303, 307, 308] {
        let head = format!("HTTP/1.1 {code} X\nlocation: https://elsewhere.test/v1/chat/completions?token=abc");
        let place = "https://elsewhere.test/v1/chat/completions?***";
        let text = format!(
            "Request refused (HTTP {code}) by {{url}}: it redirects to {place}; set OPENAI_BASE_URL accordingly"
        );
        let name = format!("{code} to another host");
        rows.push(row(&name, "nginx: http to https, trailing slashes", vec![sized(&head, "")]).fails(&text));
    }
    rows.extend(refusals_in_words());
    rows.extend(refusals_of_members());
    rows
}

fn refusals_in_words() -> Vec<Row> {
    vec![
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
        row("407", "corporate proxies", vec![sized("HTTP/1.1 407 Proxy Authentication Required", "")]).fails(
            "Request refused (HTTP 407) by {url}. A proxy asks for a user and a password: write user:password@ \
                 before its host in HTTP_PROXY or HTTPS_PROXY.",
        ),
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
    ]
}

fn refusals_of_members() -> Vec<Row> {
    vec![
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
    ]
}

/// Failures that are retried, or would be.
pub fn retried() -> Vec<Row> {
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
    rows.extend(retries());
    rows.extend(retries_by_the_servers_word());
    rows
}

fn retries() -> Vec<Row> {
    vec![
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
    ]
}

fn retries_by_the_servers_word() -> Vec<Row> {
    vec![
        row(
            "two retries",
            "OPENAI_MAX_RETRIES=2",
            vec![error(503, "\nretry-after-ms: 1", "again"), error(429, "\nretry-after-ms: 2", "again"), ok()],
        )
        .with(&[("OPENAI_MAX_RETRIES", "2")])
        .retried("Server error (HTTP 503) from {url}. It says: again", "1")
        .retried("Rate limit exceeded (HTTP 429) calling {url}. Please retry later. It says: again", "2"),
    ]
}

/// Connections that end or stall, and answers that are not HTTP.
pub fn broken() -> Vec<Row> {
    [broken_heads(), broken_bodies(), broken_ends()].into_iter().flatten().collect()
}

fn broken_heads() -> Vec<Row> {
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
    ]
}

fn broken_bodies() -> Vec<Row> {
    vec![
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
            .with(&[("OPENAI_IDLE_TIMEOUT_SEC", "1")])
            .fails("Network error connecting to {url}: silence for 1 s"),
        row("silence within the answer", "stuck GPUs", vec![Answer::raw(chunked(EVENTS, &[SAID], ""), End::Hold)])
            .with(&[("OPENAI_IDLE_TIMEOUT_SEC", "1")])
            .breaks("Network error connecting to {url}: silence for 1 s"),
        row(
            "a server of another protocol",
            "SSH on the port",
            vec![Answer::raw("SSH-2.0-OpenSSH_9.6\r\n", End::Close)],
        )
        .retried("Network error connecting to {url}: invalid HTTP version parsed", "#")
        .fails("Network error connecting to {url}: invalid HTTP version parsed"),
        row("a TLS alert", "an HTTPS port asked by http://", vec![Answer::raw([0x15, 3, 1, 0, 2, 2, 22], End::Close)])
            .fails(
                "Network error connecting to {url}: the server speaks TLS on this port: OPENAI_BASE_URL has to begin with \
                 https://",
            ),
        row(
            "HTTP to an HTTPS port",
            "Go",
            vec![sized("HTTP/1.0 400 Bad Request", "Client sent an HTTP request to an HTTPS server.\n")],
        )
        .fails("Request refused (HTTP 400) by {url}: Client sent an HTTP request to an HTTPS server."),
        row("HTTP/2's SETTINGS", "h2c-only servers", vec![Answer::raw([0, 0, 0, 4, 0, 0, 0, 0, 0], End::Close)])
            .fails(
                "Network error connecting to {url}: the server speaks HTTP/2 only, and this agent HTTP/1.1: let it accept \
                 HTTP/1.1, or put a proxy before it that speaks both",
            ),
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
    ]
}

fn broken_ends() -> Vec<Row> {
    vec![
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
