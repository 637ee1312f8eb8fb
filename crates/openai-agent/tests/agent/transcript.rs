//! All input and output of the tests' agents, for the check against ACP's schema (`tests/clients/agent/schema.mjs`).
//!
//! `OPENAI_AGENT_TRANSCRIPTS` names a directory; each agent gets two files there, `NAME.in` with all bytes of its stdin
//! and `NAME.out` with all bytes of its stdout. Without the variable nothing is kept.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of the two files of an agent, or nothing.
#[derive(Debug)]
pub struct Transcript(Option<File>);

impl Transcript {
    /// The files for the next agent: for its stdin and for its stdout. They are named after the test.
    pub fn pair() -> (Self, Self) {
        static AGENTS: AtomicUsize = AtomicUsize::new(0);
        let Some(directory) = std::env::var_os("OPENAI_AGENT_TRANSCRIPTS") else { return (Self(None), Self(None)) };
        let (thread, number) = (std::thread::current(), AGENTS.fetch_add(1, Ordering::Relaxed));
        let test = thread.name().unwrap_or("a_thread").replace("::", ".");
        let name = format!("{test}.{}-{number}", std::process::id());
        let open = |end: &str| {
            let path = Path::new(&directory).join(format!("{name}.{end}"));
            Self(Some(File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))))
        };
        (open("in"), open("out"))
    }

    /// Writes these bytes.
    pub fn keep(&mut self, bytes: &[u8]) {
        if let Some(file) = &mut self.0 {
            file.write_all(bytes).unwrap();
        }
    }
}
