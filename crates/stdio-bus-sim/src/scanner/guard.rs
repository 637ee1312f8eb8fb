//! The scanner reads nothing beyond the pads: windows between inaccessible pages.

use super::sets;
use ndjson_scan::{BATCH, PAD, Partial, ScanResult, Scanner, Window};
use std::ptr;

/// Some pages of memory between two guard pages.
struct Guarded {
    start: *mut u8,
    length: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    fn new(length: usize) -> Self {
        let length = length.next_multiple_of(PAGE);
        // SAFETY: a new private mapping, of which all but the first and the last page are made accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(ptr::null_mut(), length + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let start = map.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(start.cast(), length, libc::PROT_READ | libc::PROT_WRITE), 0);
            Self { start, length }
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the accessible pages, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which is not borrowed any more.
        unsafe { libc::munmap(self.start.sub(PAGE).cast(), self.length + 2 * PAGE) };
    }
}

#[test]
fn nothing_beyond_the_pads_is_read() {
    let lines = [
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"text":"é\n"}}}"#.to_owned(),
        r#"{"id":12345678,"result":{"sessionId":"abcdefghijklmnopqrstuvwxyz"}}"#.to_owned(),
        format!(r#"{{"result":"{}","id":1}}"#, "x".repeat(700)),
        format!(r#"{{"result":[{}0],"pool":"p"}}"#, "1,[true],".repeat(40)),
        r#"{"\u0069d":1}"#.to_owned(),
        "{}".to_owned(),
    ];
    let mut memory = Guarded::new(3 * PAGE);
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for line in &lines {
            let line = format!("{line}\n");
            // The whole line and every part of it, against either end of the memory.
            for length in (0..=line.len()).step_by(if line.len() > 300 { 31 } else { 1 }).chain([line.len()]) {
                for is_at_end in [false, true] {
                    let bytes = memory.bytes();
                    bytes.fill(b'"');
                    let start = if is_at_end { bytes.len() - PAD - length } else { PAD };
                    bytes[start..start + length].copy_from_slice(&line.as_bytes()[..length]);
                    let bytes = if is_at_end { &bytes[start - PAD..] } else { &bytes[..start + length + PAD] };
                    let mut batch = Vec::with_capacity(BATCH);
                    let window = Window::new(bytes, PAD, PAD + length);
                    let outcome = scanner.scan(&mut Partial::new(), window, &mut batch);
                    assert_eq!(outcome, ScanResult::More, "{set:?} {length} {line}");
                    assert_eq!(batch.len(), usize::from(length == line.len()));
                }
            }
        }
    }
}
