//! Lines like those that agents, clients and tools exchange, the same on every run, for benchmarks to measure and tests
//! to mutate. A class is a kind of traffic, in the style of a serializer (spaces, escapes, order of members).

mod json;

use json::{Json, Style, object, plain, text};

/// Lines of one kind of traffic.
pub struct Corpus {
    /// The name of the class.
    pub name: &'static str,
    /// The lines, each with its newline.
    pub bytes: Vec<u8>,
    /// Number of lines.
    pub lines: usize,
}

/// Every class, each about `size` bytes.
pub fn all(size: usize) -> Vec<Corpus> {
    type Class = (&'static str, u64, fn(&mut Source) -> String);
    let classes: [Class; 9] = [
        ("small", 12, Source::small),
        ("stream", 1, Source::small),
        ("requests", 12, Source::request),
        ("medium", 12, Source::medium),
        ("base64", 1, Source::base64),
        ("code", 1, Source::code_file),
        ("CJK", 1, Source::cjk_answer),
        ("nested", 1, Source::nested_update),
        ("mixed", 4, Source::mixed),
    ];
    let classes = classes.into_iter().enumerate().map(|(index, (name, sessions, line))| {
        let mut source = Source::new(index as u64 + 1, sessions);
        let (mut bytes, mut lines) = (Vec::new(), 0);
        while bytes.len() < size {
            bytes.extend_from_slice(line(&mut source).as_bytes());
            bytes.push(b'\n');
            lines += 1;
        }
        Corpus { name, bytes, lines }
    });
    classes.collect()
}

/// The most expensive lines for their length, each class about `size` bytes.
pub fn worst(size: usize) -> Vec<Corpus> {
    type Class = (&'static str, fn(&mut Source) -> String);
    let classes: [Class; 9] = [
        ("empty objects", |_| "{}".into()),
        ("blank lines", |source| if source.one_in(1000) { "{}".into() } else { String::new() }),
        ("one-byte tokens", |_| format!(r#"{{"a":[{}0]}}"#, "0,".repeat(500))),
        ("brackets", |_| format!(r#"{{"a":[{}0]}}"#, "{},".repeat(500))),
        ("depth 60", |_| format!(r#"{{"id":1,"a":{}{}}}"#, "[".repeat(59), "]".repeat(59))),
        ("depth 100", |_| format!(r#"{{"id":1,"a":{}{}}}"#, "[".repeat(99), "]".repeat(99))),
        ("escapes", |_| format!(r#"{{"id":1,"a":"{}"}}"#, r"\u00e9\n\\".repeat(40))),
        ("escaped keys", |_| r#"{"\u0069d":1,"method":"m"}"#.into()),
        ("new shapes", Source::odd_shape),
    ];
    let classes = classes.into_iter().map(|(name, line)| {
        let mut source = Source::new(99, 1);
        let (mut bytes, mut lines) = (Vec::new(), 0);
        while bytes.len() < size {
            let line = line(&mut source);
            lines += usize::from(!line.is_empty());
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        Corpus { name, bytes, lines }
    });
    classes.collect()
}

const WORDS: &[&str] = &[
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "at",
    "are",
    "this",
    "have",
    "from",
    "or",
    "an",
    "which",
    "one",
    "you",
    "were",
    "all",
    "function",
    "returns",
    "value",
    "when",
    "parser",
    "reads",
    "next",
    "token",
    "buffer",
    "session",
    "update",
    "error",
    "handle",
    "stream",
    "file",
    "line",
    "test",
    "build",
    "cargo",
    "run",
    "check",
    "result",
    "option",
    "match",
    "some",
    "none",
    "let",
    "mut",
    "impl",
    "trait",
    "struct",
    "async",
    "await",
    "channel",
    "router",
    "message",
    "client",
    "agent",
    "tool",
    "call",
    "permission",
    "request",
    "response",
    "cancel",
    "prompt",
];
const CODE: &[&str] = &[
    "    let mut buf = Vec::with_capacity(64 * 1024);",
    "    if let Some(id) = msg.get(\"id\") {",
    "\treturn fmt.Errorf(\"read %q: %w\", path, err)",
    "const RE = /^\\s*\"([^\"\\\\]|\\\\.)*\"\\s*:/;",
    "    println!(\"{:?}\\t{}\", key, value);",
    "// TODO: handle \"quoted\" paths like C:\\\\Users\\\\me",
    "}",
    "",
    "    assert_eq!(parse(\"{\\\"a\\\":1}\"), Ok(()));",
    "def main(argv: list[str]) -> int:",
    "    \"\"\"Docstring with \\\"escapes\\\".\"\"\"",
    "\t\tcase '\\n':",
    "<div className=\"row\">{items.map(i => <Item key={i.id} {...i}/>)}</div>",
    "    for (i, (k, v)) in map.iter().enumerate() {",
    "SELECT \"id\", \"name\" FROM \"users\" WHERE \"email\" = 'a@b.c' AND data->>'x' = \"y\";",
    "#include <stdio.h>",
    "  \"scripts\": { \"build\": \"tsc -p .\", \"test\": \"vitest run\" },",
];
const CJK: &str = "这是一个用于测试的中文文本片段包含常见的汉字以及标点符号，会话更新消息代理工具调用结果。日本語のテキストも\
                   含まれています。カタカナ。한국어 문장도 있습니다.";
const EMOJI: &[&str] = &["😀", "🚀", "✅", "🔧", "📦", "🎉", "👩‍💻", "🐛", "⚡️", "🔥", "  abc"];

/// The generator of lines: sessions, counters, and pseudo-random numbers.
pub struct Source {
    state: u64,
    ids: u64,
    sessions: Vec<Session>,
}

#[derive(Clone)]
struct Session {
    id: String,
    style: Style,
    has_meta: bool,
    has_message_ids: bool,
}

impl Session {
    /// The member that names it.
    fn named(&self) -> (&'static str, Json) {
        ("sessionId", text(&self.id))
    }
}

impl Source {
    /// A source with this many sessions; the same seed gives the same lines.
    pub fn new(seed: u64, sessions: u64) -> Self {
        let mut source = Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, ids: 0, sessions: Vec::new() };
        for _ in 0..sessions {
            let id = if source.below(3) < 2 { source.uuid() } else { format!("sess_{}", source.hex(24)) };
            let style = match source.below(20) {
                0 => Style::Python,
                1 | 2 => Style::Go,
                _ => Style::Compact,
            };
            // A single stream is one agent, which writes compactly.
            let style = if sessions == 1 { Style::Compact } else { style };
            let (has_meta, has_message_ids) = (sessions > 1 && source.one_in(7), sessions > 1 && source.one_in(3));
            source.sessions.push(Session { id, style, has_meta, has_message_ids });
        }
        source
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() >> 33) as usize % limit
    }

    /// True once in `times` calls.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| char::from_digit(self.below(16) as u32, 16).unwrap()).collect()
    }

    fn uuid(&mut self) -> String {
        let hex = self.hex(32);
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    fn words(&mut self, length: usize) -> String {
        let mut out = String::new();
        while out.len() < length {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(self.pick(WORDS));
            match self.below(200) {
                0..8 => out.push('.'),
                8..14 => out.push(','),
                14..17 => out.push_str(" \"so\""),
                17..19 => out.push_str(" `so`"),
                19..21 => out.push('\n'),
                _ => {}
            }
        }
        out
    }

    fn code(&mut self, length: usize) -> String {
        let mut out = String::new();
        while out.len() < length {
            out.push_str(self.pick(CODE));
            out.push('\n');
        }
        out
    }

    fn cjk(&mut self, characters: usize) -> String {
        let all: Vec<char> = CJK.chars().collect();
        let mut out = String::new();
        for _ in 0..characters {
            if self.below(100) < 93 {
                out.push(all[self.below(all.len())]);
            } else {
                out.push_str(self.pick(EMOJI));
            }
        }
        out
    }

    /// A piece of a streamed answer: some words, sometimes a line of code or something else.
    fn token(&mut self) -> String {
        match self.below(1000) {
            0..30 => self.pick(&["\n", "\n\n", "```rust\n", "```\n", " {\n", "\t"]).to_owned(),
            30..60 => {
                let characters = self.between(1, 8);
                self.cjk(characters)
            }
            60..75 => format!("{} ", self.pick(EMOJI)),
            75..110 => {
                let length = self.between(4, 40);
                self.pick(CODE).chars().take(length).collect()
            }
            _ => {
                let length = self.between(2, 48);
                format!(" {}", self.words(length))
            }
        }
    }

    fn path(&mut self) -> String {
        let mut out = "/home/user/project/".to_owned();
        for _ in 0..self.between(1, 3) {
            out += self.pick(&["src/", "lib/", "core/", "net/", "proto/", "ui/"]);
        }
        out + self.pick(&["main.rs", "index.ts", "mod.rs", "scanner.go", "README.md", "app.py"])
    }

    fn id(&mut self) -> Json {
        self.ids += 1;
        match self.below(12) {
            0 => text(self.uuid()),
            1 => text(format!("req_{}", self.ids)),
            _ => plain(self.ids),
        }
    }

    fn session(&mut self) -> Session {
        let index = self.below(self.sessions.len());
        self.sessions[index].clone()
    }

    /// One line of a token stream.
    pub fn small(&mut self) -> String {
        let session = self.session();
        let kind = match self.below(100) {
            0..70 => "agent_message_chunk",
            70..88 => "agent_thought_chunk",
            _ => "tool_call_update",
        };
        let mut params = vec![("sessionId".to_owned(), text(&session.id))];
        if kind == "tool_call_update" {
            let status = self.pick(&["in_progress", "completed", "pending"]);
            let update = [
                ("sessionUpdate", text(kind)),
                ("toolCallId", text(format!("toolu_{}", self.hex(24)))),
                ("status", text(status)),
            ];
            params.push(("update".to_owned(), object(update)));
        } else {
            let content = object([("type", text("text")), ("text", text(self.token()))]);
            let mut update = vec![("sessionUpdate".to_owned(), text(kind)), ("content".to_owned(), content)];
            if session.has_message_ids {
                update.push(("messageId".to_owned(), text(format!("msg_{}", self.hex(16)))));
            }
            params.push(("update".to_owned(), Json::Object(update)));
            if session.has_meta {
                let time = 1_760_000_000_000 + self.below(1_000_000_000);
                let meta = object([("parentToolUseId", plain("null")), ("ts", plain(time))]);
                params.push(("_meta".to_owned(), object([("claudeCode", meta)])));
            }
        }
        line(notification("session/update", Json::Object(params)), session.style)
    }

    /// One request or answer.
    pub fn request(&mut self) -> String {
        let session = self.session();
        let id = self.id();
        let json = match self.below(20) {
            0..9 => {
                let (method, params) = match self.below(9) {
                    0 => self.file_read(&session),
                    1 => self.terminal_made(&session),
                    2 => self.initialize(),
                    3 => session_new(),
                    4 => self.permission_asked(&session),
                    5 => self.search(),
                    6 => {
                        let length = self.between(20, 160);
                        let block = object([("type", text("text")), ("text", text(self.words(length)))]);
                        ("session/prompt", object([session.named(), ("prompt", Json::List(vec![block]))]))
                    }
                    7 => ("ping", object([])),
                    _ => self.mode_set(&session),
                };
                call(id, method, params)
            }
            9..18 => answer(id, self.result(&session)),
            _ => {
                let (code, message, details) =
                    (self.pick(&["-32601", "-32602", "-32603", "-32000"]), self.words(40), self.words(80));
                let error = object([
                    ("code", plain(code)),
                    ("message", text(message)),
                    ("data", object([("details", text(details))])),
                ]);
                object([("jsonrpc", text("2.0")), ("id", id), ("error", error)])
            }
        };
        line(json, session.style)
    }

    fn file_read(&mut self, session: &Session) -> (&'static str, Json) {
        let (path, from) = (self.path(), self.between(1, 4000));
        let params = object([
            session.named(),
            ("path", text(path)),
            ("line", plain(from)),
            ("limit", plain(self.pick(&["50", "100", "2000"]))),
        ]);
        ("fs/read_text_file", params)
    }

    fn terminal_made(&mut self, session: &Session) -> (&'static str, Json) {
        let args = ["test", "--workspace", "--", self.pick(WORDS)].map(text).into();
        let env = Json::List(vec![object([("name", text("CI")), ("value", text("1"))])]);
        let params = object([
            session.named(),
            ("command", text("cargo")),
            ("args", Json::List(args)),
            ("env", env),
            ("cwd", text("/home/user/project")),
            ("outputByteLimit", plain(1_048_576)),
        ]);
        ("terminal/create", params)
    }

    fn initialize(&mut self) -> (&'static str, Json) {
        let fs = object([("readTextFile", plain(true)), ("writeTextFile", plain(true))]);
        let capabilities = object([("fs", fs), ("terminal", plain(true))]);
        let version = format!("0.210.{}", self.below(10));
        let info = object([("name", text("zed")), ("version", text(version))]);
        let params =
            object([("protocolVersion", plain(1)), ("clientCapabilities", capabilities), ("clientInfo", info)]);
        ("initialize", params)
    }

    fn permission_asked(&mut self, session: &Session) -> (&'static str, Json) {
        let call = format!("call_{}", self.between(1, 999));
        let call = object([("toolCallId", text(call)), ("title", text("Edit file"))]);
        let option = |id: &str, name: &str, kind: &str| {
            object([("optionId", text(id)), ("name", text(name)), ("kind", text(kind))])
        };
        let options = vec![option("allow", "Allow", "allow_once"), option("reject", "Reject", "reject_once")];
        let params = object([session.named(), ("toolCall", call), ("options", Json::List(options))]);
        ("session/request_permission", params)
    }

    fn search(&mut self) -> (&'static str, Json) {
        let (query, limit, part) = (self.words(30), self.between(1, 50), self.below(1000));
        let arguments =
            object([("query", text(query)), ("limit", plain(limit)), ("threshold", plain(format!("0.{part:03}")))]);
        ("tools/call", object([("name", text("search")), ("arguments", arguments)]))
    }

    fn mode_set(&mut self, session: &Session) -> (&'static str, Json) {
        let trace = format!("00-{}-{}-01", self.hex(32), self.hex(16));
        let meta = object([("traceparent", text(trace))]);
        let mode = self.pick(&["ask", "code"]);
        ("session/set_mode", object([session.named(), ("modeId", text(mode)), ("_meta", meta)]))
    }

    /// The result of a request.
    fn result(&mut self, session: &Session) -> Json {
        match self.below(8) {
            0 => object([("stopReason", text("end_turn"))]),
            1 => plain("null"),
            2 => {
                let mode = |id: &str, name: &str| object([("id", text(id)), ("name", text(name))]);
                let modes = Json::List(vec![mode("ask", "Ask"), mode("code", "Code")]);
                let modes = object([("currentModeId", text("code")), ("availableModes", modes)]);
                object([session.named(), ("modes", modes)])
            }
            3 => {
                let outcome = object([("outcome", text("selected")), ("optionId", text("allow"))]);
                object([("outcome", outcome)])
            }
            4 => object([("terminalId", text(format!("term_{}", self.between(1, 99))))]),
            5 => object([("exitCode", plain(0)), ("signal", plain("null"))]),
            6 => {
                let length = self.between(60, 200);
                object([("content", text(self.words(length)))])
            }
            _ => {
                let (input, output, cached) = (self.between(1000, 90_000), self.below(4000), self.below(90_000));
                let usage = object([
                    ("inputTokens", plain(input)),
                    ("outputTokens", plain(output)),
                    ("cachedReadTokens", plain(cached)),
                    ("cost", plain(format!("{}.{:06}", self.below(3), self.below(1_000_000)))),
                ]);
                object([("stopReason", text("end_turn")), ("usage", usage)])
            }
        }
    }

    /// One message of some kilobytes.
    pub fn medium(&mut self) -> String {
        let session = self.session();
        let own = || ("sessionId", text(&session.id));
        let length = self.between(2000, 8000);
        let json = match self.below(20) {
            0..7 => {
                let (words, uri, code) =
                    (self.words(length / 3), format!("file://{}", self.path()), self.code(length / 2));
                let resource = object([("uri", text(&uri)), ("mimeType", text("text/x-rust")), ("text", text(code))]);
                let prompt = Json::List(vec![
                    object([("type", text("text")), ("text", text(words))]),
                    object([("type", text("resource")), ("resource", resource)]),
                    object([("type", text("resource_link")), ("uri", text(uri)), ("name", text("spec.md"))]),
                ]);
                call(self.id(), "session/prompt", object([own(), ("prompt", prompt)]))
            }
            7..12 => {
                let (path, from) = (self.path(), self.between(1, 900));
                let diff = object([
                    ("type", text("diff")),
                    ("path", text(&path)),
                    ("oldText", text(self.code(length / 2))),
                    ("newText", text(self.code(length / 2))),
                ]);
                let place = object([("path", text(&path)), ("line", plain(from))]);
                let input = object([("file_path", text(&path)), ("old_string", text(self.code(200)))]);
                let update = object([
                    ("sessionUpdate", text("tool_call")),
                    ("toolCallId", text(format!("toolu_{}", self.hex(24)))),
                    ("title", text(format!("Edit {path}"))),
                    ("kind", text("edit")),
                    ("status", text("pending")),
                    ("content", Json::List(vec![diff])),
                    ("locations", Json::List(vec![place])),
                    ("rawInput", input),
                ]);
                notification("session/update", object([own(), ("update", update)]))
            }
            12..15 => answer(self.id(), object([("content", text(self.code(length)))])),
            15..17 => {
                let commands = (0..length / 130).map(|_| {
                    let (name, description, hint) = (self.pick(WORDS), self.words(60), self.words(15));
                    let input = object([("hint", text(hint))]);
                    object([("name", text(name)), ("description", text(description)), ("input", input)])
                });
                let update = [
                    ("sessionUpdate", text("available_commands_update")),
                    ("availableCommands", Json::List(commands.collect())),
                ];
                notification("session/update", object([own(), ("update", object(update))]))
            }
            17 => {
                let block = object([("type", text("text")), ("text", text(self.cjk(length / 3)))]);
                call(self.id(), "session/prompt", object([own(), ("prompt", Json::List(vec![block]))]))
            }
            _ => {
                let entries = (0..length / 110).map(|_| {
                    let (content, priority) = (self.words(50), self.pick(&["high", "medium", "low"]));
                    let status = self.pick(&["pending", "in_progress", "completed"]);
                    object([("content", text(content)), ("priority", text(priority)), ("status", text(status))])
                });
                let update = [("sessionUpdate", text("plan")), ("entries", Json::List(entries.collect()))];
                notification("session/update", object([own(), ("update", object(update))]))
            }
        };
        line(json, session.style)
    }

    /// The length of the next large line: 64 KB to 1 MB.
    fn large(&mut self) -> usize {
        65_536 << self.below(5)
    }

    /// A prompt with a picture.
    pub fn base64(&mut self) -> String {
        let length = self.large();
        self.base64_of(length)
    }

    fn base64_of(&mut self, length: usize) -> String {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let session = self.session();
        let data: String = (0..length).map(|_| DIGITS[self.below(64)] as char).collect();
        let image = object([("type", text("image")), ("mimeType", text("image/png")), ("data", text(data))]);
        let words = object([("type", text("text")), ("text", text("look at this"))]);
        let params = object([("sessionId", text(session.id)), ("prompt", Json::List(vec![words, image]))]);
        line(call(self.id(), "session/prompt", params), session.style)
    }

    /// A file of code to write.
    pub fn code_file(&mut self) -> String {
        let (session, length) = (self.session(), self.large());
        let (path, code) = (self.path(), self.code(length));
        let params = object([("sessionId", text(session.id)), ("path", text(path)), ("content", text(code))]);
        line(call(self.id(), "fs/write_text_file", params), session.style)
    }

    /// An answer in Chinese, Japanese and Korean.
    pub fn cjk_answer(&mut self) -> String {
        let (session, length) = (self.session(), self.large());
        let result = object([("content", text(self.cjk(length / 3)))]);
        line(answer(self.id(), result), session.style)
    }

    /// A tool's output as a deep tree.
    pub fn nested_update(&mut self) -> String {
        let (session, length) = (self.session(), self.large());
        let (mut output, mut written) = (Vec::new(), 0);
        while written < length {
            let depth = self.between(4, 24);
            let tree = self.tree(depth, 3000);
            let mut text = String::new();
            tree.write(session.style, &mut text);
            written += text.len();
            output.push(tree);
        }
        let update = object([
            ("sessionUpdate", text("tool_call_update")),
            ("toolCallId", text(format!("toolu_{}", self.hex(24)))),
            ("status", text("completed")),
            ("rawOutput", Json::List(output)),
        ]);
        let params = object([("sessionId", text(session.id)), ("update", update)]);
        line(notification("session/update", params), session.style)
    }

    fn tree(&mut self, depth: usize, budget: usize) -> Json {
        if depth == 0 || budget < 60 {
            return match self.below(7) {
                0 => plain(self.below(2_000_000) as i64 - 1_000_000),
                1 => plain(format!("{}.{}", self.below(10_000), self.below(10_000))),
                2 => plain(true),
                3 => plain(false),
                4 => plain("null"),
                5 => text(self.words(12)),
                _ => text(self.path()),
            };
        }
        let branches = self.between(2, 6);
        if self.one_in(2) {
            let member = |index| {
                let key = format!("{}_{index}", self.pick(WORDS));
                (key, self.tree(depth - 1, budget / branches))
            };
            Json::Object((0..branches).map(member).collect())
        } else {
            Json::List((0..branches).map(|_| self.tree(depth - 1, budget / branches)).collect())
        }
    }

    /// A short line of a rare shape.
    pub fn odd_shape(&mut self) -> String {
        let mut line = r#"{"id":1,"params":["#.to_owned();
        for _ in 0..20 {
            line += self.pick(&["0,", "\"\",", "[],", "{},", "[0],"]);
        }
        line + "0]}"
    }

    /// The traffic of a day: nearly all token streams, some requests, few large lines.
    pub fn mixed(&mut self) -> String {
        match self.below(1000) {
            0..950 => self.small(),
            950..985 => self.request(),
            985..999 => self.medium(),
            _ => self.base64_of(65_536),
        }
    }
}

fn session_new() -> (&'static str, Json) {
    let args = Json::List(["--root", "/home/user"].map(text).into());
    let server = object([
        ("name", text("fs")),
        ("command", text("/usr/bin/mcp-fs")),
        ("args", args),
        ("env", Json::List(Vec::new())),
    ]);
    let cwd = ("cwd", text("/home/user/project"));
    ("session/new", object([cwd, ("mcpServers", Json::List(vec![server]))]))
}

fn call(id: Json, method: &str, params: Json) -> Json {
    object([("jsonrpc", text("2.0")), ("id", id), ("method", text(method)), ("params", params)])
}

fn answer(id: Json, result: Json) -> Json {
    object([("jsonrpc", text("2.0")), ("id", id), ("result", result)])
}

fn notification(method: &str, params: Json) -> Json {
    object([("jsonrpc", text("2.0")), ("method", text(method)), ("params", params)])
}

fn line(json: Json, style: Style) -> String {
    let mut out = String::new();
    json.write(style, &mut out);
    out
}
