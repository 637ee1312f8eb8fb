//! Requests to an admin listener.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sends a GET. Returns the response with its head.
pub fn ask(admin: &Path, path: &str) -> io::Result<String> {
    request(admin, "GET", path, "200")
}

/// Sends a POST.
pub fn post(admin: &Path, path: &str) -> io::Result<()> {
    request(admin, "POST", path, "202").map(drop)
}

fn request(admin: &Path, method: &str, path: &str, status: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("{method} {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.get(9..12) {
        Some(said) if said == status => Ok(answer),
        _ => Err(io::Error::other(format!("{path}: {answer}"))),
    }
}

/// Fetches /metrics and /status.json every second, as Prometheus and `status --watch` do together, until it is dropped.
pub struct Scraper(Option<(Sender<()>, JoinHandle<()>)>);

impl Scraper {
    /// Starts at once.
    pub fn of(admin: PathBuf) -> Self {
        let (going, is_over) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            loop {
                let began = Instant::now();
                for path in ["/metrics", "/status.json"] {
                    if let Err(error) = ask(&admin, path) {
                        eprintln!("\nthroughput: the scraper: {error}");
                    }
                }
                let rest = Duration::from_secs(1).saturating_sub(began.elapsed());
                if is_over.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        Self(Some((going, thread)))
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        if let Some((going, thread)) = self.0.take() {
            drop(going);
            let _ = thread.join();
        }
    }
}
