//! Any bytes in any pieces: the PROXY header before a client's lines, or its absence, depends neither on how the bytes
//! are cut nor on what follows it.

use super::Cut;
use crate::proxy::{HeaderReading, LONGEST, read};

/// Parses the bytes whole, in pieces, and one by one.
///
/// # Panics
/// If the results differ, if a header is longer than the limit or the bytes, or if more bytes are requested than any
/// header has.
pub fn check(stream: &[u8], cut: Cut<'_>) {
    let expected = read(stream);
    let each: Vec<usize> = (1..stream.len()).collect();
    for cuts in [cut(stream.len()), each] {
        let readings = cuts.iter().map(|end| read(&stream[..*end]));
        let first = readings.chain([read(stream)]).find(|reading| *reading != HeaderReading::More);
        assert_eq!(first.unwrap_or(HeaderReading::More), expected, "cut at {cuts:?}");
    }
    match &expected {
        HeaderReading::Header(header) => {
            assert!((1..=stream.len().min(LONGEST)).contains(&header.length), "{} bytes", header.length);
            assert_eq!(read(&stream[..header.length]), expected, "without what is behind it");
            let names = [&header.names.common_name, &header.names.server_name, &header.names.unique_id];
            for name in names.into_iter().flatten() {
                assert!(!name.is_empty() && !name.chars().any(char::is_control), "{name:?}");
            }
        }
        HeaderReading::More => assert!(stream.len() < LONGEST, "{} bytes are waited for", stream.len()),
        HeaderReading::Other | HeaderReading::Malformed(_) => {}
    }
}
