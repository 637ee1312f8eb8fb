//! Any bytes in any pieces: what stands before a client's lines is the same PROXY header, or none, however it comes, and
//! what stands behind it does not matter.

use super::Cut;
use crate::proxy::{LONGEST, Reading, read};

/// Reads the bytes whole, in the pieces, and one by one.
///
/// # Panics
/// If the readings are not the same, if a header is longer than it may be or than the bytes are, or if one that is longer
/// than any is waited for.
pub fn check(stream: &[u8], cut: Cut<'_>) {
    let expected = read(stream);
    let each: Vec<usize> = (1..stream.len()).collect();
    for cuts in [cut(stream.len()), each] {
        let readings = cuts.iter().map(|end| read(&stream[..*end]));
        let first = readings.chain([read(stream)]).find(|reading| *reading != Reading::More);
        assert_eq!(first.unwrap_or(Reading::More), expected, "cut at {cuts:?}");
    }
    match &expected {
        Reading::Header(header) => {
            assert!((1..=stream.len().min(LONGEST)).contains(&header.length), "{} bytes", header.length);
            assert_eq!(read(&stream[..header.length]), expected, "without what stands behind it");
            let names = [&header.names.common_name, &header.names.server_name, &header.names.unique_id];
            for name in names.into_iter().flatten() {
                assert!(!name.is_empty() && !name.chars().any(char::is_control), "{name:?}");
            }
        }
        Reading::More => assert!(stream.len() < LONGEST, "{} bytes are waited for", stream.len()),
        Reading::Other | Reading::Malformed(_) => {}
    }
}
