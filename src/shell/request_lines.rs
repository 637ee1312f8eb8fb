//! Log lines for finished requests of clients, if enabled (`log.requests`). There may be a hundred thousand per second:
//! common parts are formatted once, and plain text is copied verbatim.

use std::time::Duration;

use super::entry::{self, Entry, Look};
use super::log::{self, Whose};
use crate::bus::Bus;
use crate::bus::ended::{Ended, Words};
use crate::bus::port::Moment;
use crate::bus::report::WorkerName;
use crate::config::Pool;

const MILLISECOND: Duration = Duration::from_millis(1);
/// Interval of reports about requests without a line.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The common parts of request lines, and how many lines were lost.
#[derive(Default)]
pub(super) struct RequestLines {
    /// Clients by the index of their key: number, format, and formatted identity fields.
    clients: Vec<(u32, Look, String)>,
    line: String,
    /// The beginning of all lines with this format and time.
    begin: (Moment, Look, String),
    lost: u64,
    told: Moment,
}

/// The name of a field as formatted in text and in JSON.
macro_rules! named {
    ($name:literal) => {
        (concat!(" ", $name, "="), concat!(",\"", $name, "\":"))
    };
}

type Named = (&'static str, &'static str);

impl RequestLines {
    /// Writes a line for each request that has finished since the last call.
    pub(super) fn write(&mut self, now: Moment, bus: &mut Bus, pools: &[Pool]) {
        let mut output = None;
        self.lost += bus.take_ended(|ended, words| {
            let (output, look) = output.get_or_insert_with(|| (log::lines(), self.begin(now)));
            output.push_with(Whose::Requests, || {
                self.write_one(*look, ended, words, pools);
                self.line.as_bytes()
            });
        });
        drop(output);
        self.tell_lost(now, TELL_EVERY);
    }

    /// Whether requests without a line have to be reported.
    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Reports how many have no line, at this interval.
    pub(super) fn tell_lost(&mut self, now: Moment, every: Duration) {
        if self.lost == 0 || self.told != Moment::default() && now.since(self.told) < every {
            return;
        }
        log::requests_lost(std::mem::take(&mut self.lost));
        self.told = now;
    }

    /// Prepares the beginning of lines, and returns the format.
    fn begin(&mut self, now: Moment) -> Look {
        let (made, of, begin) = &self.begin;
        let look = log::look();
        if begin.is_empty() || *of != look || now.since(*made) >= MILLISECOND {
            self.begin = (now, look, begin_of_line(look));
        }
        look
    }

    fn write_one(&mut self, look: Look, ended: &Ended, words: Words<'_>, pools: &[Pool]) {
        self.know(look, ended);
        let Self { clients, line, begin, .. } = self;
        line.clear();
        line.push_str(&begin.2);
        line.push_str(&clients[ended.client.index()].2);
        let mut line = Line { look, line };
        line.chosen(named!("method"), words.method);
        line.token(named!("id"), words.id);
        if let Some(pool) = ended.worker.map(|worker| worker.pool).or(ended.pool).and_then(|pool| pools.get(pool)) {
            let id = &pool.core.id;
            line.chosen(named!("pool"), id.as_bytes());
            if let Some(worker) = ended.worker {
                line.worker(id, worker);
            }
        }
        line.chosen(named!("session"), words.session);
        line.word(named!("outcome"), ended.ending.outcome);
        if let Some(code) = ended.ending.code {
            line.name(named!("code"));
            line.line.push_str(if code < 0 { "-" } else { "" });
            line.digits(code.unsigned_abs());
        }
        if let Some(reason) = ended.ending.reason {
            line.word(named!("reason"), reason);
        }
        let took = u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX);
        line.number(named!("ms"), took / 1000);
        let below = 1000 + took % 1000;
        line.line.push('.');
        (0..3).for_each(|digit| line.line.push(char::from(b'0' + (below / [100, 10, 1][digit] % 10) as u8)));
        line.number(named!("bytes_in"), ended.bytes_in);
        line.number(named!("bytes_out"), ended.bytes_out);
        line.line.push_str(if look.json { "}\n" } else { "\n" });
    }

    /// Prepares the fields of the request's client.
    fn know(&mut self, look: Look, ended: &Ended) {
        let index = ended.client.index();
        if self.clients.len() <= index {
            self.clients.resize_with(index + 1, Default::default);
        }
        let known = &mut self.clients[index];
        if known.2.is_empty() || (known.0, known.1) != (ended.number, look) {
            let entry = Entry::new(look, tracing::Level::INFO).plain("client", ended.number);
            *known = (ended.number, look, log::who(entry, &ended.origin).into_fields());
        }
    }
}

/// The beginning of all lines at this moment.
fn begin_of_line(look: Look) -> String {
    let priority = look.priority(tracing::Level::INFO);
    let time = entry::now();
    match look {
        Look { json: true, .. } => format!(r#"{priority}{{"time":"{time}","level":"INFO","message":"request""#),
        Look { journal: true, .. } => format!("{priority}INFO  request"),
        _ => format!("{priority}{time} INFO  request"),
    }
}

/// A line being written.
struct Line<'a> {
    look: Look,
    line: &'a mut String,
}

impl Line<'_> {
    fn name(&mut self, (text, json): Named) {
        self.line.push_str(if self.look.json { json } else { text });
    }

    /// A word of our own.
    fn word(&mut self, name: Named, word: &str) {
        self.name(name);
        let quote = if self.look.json { "\"" } else { "" };
        self.line.extend([quote, word, quote]);
    }

    fn number(&mut self, name: Named, number: u64) {
        self.name(name);
        self.digits(number);
    }

    fn digits(&mut self, mut number: u64) {
        let (mut digits, mut begin) = ([0; 20], 20);
        loop {
            begin -= 1;
            digits[begin] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.line.push_str(str::from_utf8(&digits[begin..]).unwrap_or_default());
    }

    fn worker(&mut self, pool: &str, worker: WorkerName) {
        if plain(pool.as_bytes()).is_some() {
            self.name(named!("worker"));
            let quote = if self.look.json { "\"" } else { "" };
            self.line.extend([quote, pool, "/"]);
            self.digits(worker.place as u64);
            self.line.push_str(quote);
        } else {
            self.as_entry(named!("worker"), |entry, name| entry.text(name, &format!("{pool}/{}", worker.place)));
        }
        self.number(named!("incarnation"), worker.incarnation.into());
    }

    /// Text from a peer, unless there is none.
    fn chosen(&mut self, name: Named, value: &[u8]) {
        match plain(value) {
            Some("") => {}
            Some(value) => self.word(name, value),
            None => self.as_entry(name, |entry, name| entry.chosen(name, &String::from_utf8_lossy(value))),
        }
    }

    /// A JSON token from a peer.
    fn token(&mut self, name: Named, token: &[u8]) {
        let inner = token.strip_prefix(b"\"").and_then(|token| token.strip_suffix(b"\""));
        let is_number = inner.is_none() && token.len() < 16 && token.iter().all(u8::is_ascii_digit);
        match str::from_utf8(token) {
            Ok(token) if is_number || inner.is_some_and(|inner| plain(inner).is_some()) => {
                self.name(name);
                self.line.push_str(token);
            }
            _ => self.as_entry(name, |entry, name| entry.token(name, &String::from_utf8_lossy(token))),
        }
    }

    /// A field that needs escaping, written like those of other entries.
    #[cold]
    fn as_entry(&mut self, (name, _): Named, add: impl FnOnce(Entry, &str) -> Entry) {
        let entry = Entry::new(self.look, tracing::Level::INFO);
        self.line.push_str(&add(entry, name.trim_matches([' ', '='])).into_fields());
    }
}

/// Text that is valid in either format verbatim.
fn plain(text: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'"' | b'\\' | b'=');
    str::from_utf8(text).ok().filter(|text| text.as_bytes().iter().all(is_plain))
}
