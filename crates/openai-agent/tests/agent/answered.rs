//! Answers, however they are wrapped.

use super::row::*;

/// Answers, however they are wrapped.
pub fn answered() -> Vec<Row> {
    [streams(), coded_answers(), large_answers(), answers_in_the_end()].into_iter().flatten().collect()
}

fn streams() -> Vec<Row> {
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
    ]
}

fn coded_answers() -> Vec<Row> {
    vec![
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
        row("br", "Cloudflare, Caddy", vec![sized("HTTP/1.1 200 OK\ncontent-encoding: br", stream())]).fails(
            "Unexpected answer from {url}: a body of the content coding \"br\" (only gzip can be read) instead of a chat \
             completion. Check your OPENAI_BASE_URL.",
        ),
        row(
            "gzip in two members",
            "RFC 1952, 2.2: bgzip",
            vec![sized(
                "HTTP/1.1 200 OK\ncontent-encoding: gzip",
                [gzip(SAID), gzip(&format!("{STOP}{DONE}"))].concat(),
            )],
        ),
    ]
}

fn large_answers() -> Vec<Row> {
    vec![
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
            "Unexpected answer from {url}: a body of the content coding \"aws-chunked\" (only gzip can be read) instead of a chat completion. Check your \
                 OPENAI_BASE_URL.",
        ),
        row(
            "two codings",
            "stacked proxies",
            vec![sized("HTTP/1.1 200 OK\ncontent-encoding: gzip, br", gzip(&stream()))],
        )
        .fails(
            "Unexpected answer from {url}: a body of the content coding \"gzip, br\" (only gzip can be read) instead of a chat completion. Check your OPENAI_BASE_URL.",
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
    ]
}

fn answers_in_the_end() -> Vec<Row> {
    vec![
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
