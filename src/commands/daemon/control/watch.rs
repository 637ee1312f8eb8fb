//! `status --watch`: repeats the overview every second, in place on a terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use super::http::{Ask, Server, parsed};
use super::text::{self, say};
use crate::error::StartError;
use crate::printable;

const EVERY: Duration = Duration::from_secs(1);
/// Terminal control: cursor home, and clear below.
const REDRAW: &str = "\u{1b}[H\u{1b}[J";

/// Repeats until the daemon stops answering, or stdout is closed.
pub(super) fn watch(server: &Server, json: bool) -> Result<io::Result<()>, StartError> {
    let mut before = None;
    loop {
        let body = server.body(&Ask::get("/status.json"))?;
        let now = parsed(&body)?;
        let shown = match size() {
            _ if json => printable::json(&now.to_string()).into_owned() + "\n",
            Some((rows, columns)) => REDRAW.to_owned() + &fitted(&text::status(&now, before.as_ref()), rows, columns),
            None => text::status(&now, before.as_ref()) + "\n",
        };
        if let Err(error) = say(&shown) {
            return Ok(Err(error));
        }
        before = Some(now);
        std::thread::sleep(EVERY);
    }
}

/// Rows and columns of stdout, if it is a terminal.
fn size() -> Option<(usize, usize)> {
    if !io::stdout().is_terminal() {
        return None;
    }
    // SAFETY: all zeros is a valid value, and the kernel writes no more than it holds.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) == 0).then_some(size)?
    };
    (size.ws_row > 0 && size.ws_col > 0).then(|| (usize::from(size.ws_row), usize::from(size.ws_col)))
}

/// As much of the text as fits.
fn fitted(text: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<String> = text.lines().take(rows - 1).map(|line| line.chars().take(columns).collect()).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_do_not_fit_are_omitted() {
        assert_eq!(fitted("abc\ndé\nf\ng\n", 4, 2), "ab\ndé\nf\n");
    }
}
