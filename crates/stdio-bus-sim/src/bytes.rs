//! Input bytes of fuzzers and property tests: how an input says where its stream is cut.

/// Where a stream of `length` bytes is cut: `pieces` holds the lengths of the pieces in turn, zero standing for a long
/// one. Without pieces it is not cut.
pub fn cuts(pieces: &[u8], length: usize) -> Vec<usize> {
    let mut at = 0;
    let ends = pieces.iter().cycle().map(|piece| {
        at += if *piece == 0 { LONG_PIECE } else { usize::from(*piece) };
        at
    });
    ends.take_while(|end| *end < length).collect()
}

/// Length of a piece that is too long for a byte.
const LONG_PIECE: usize = 4000;

/// The first byte of an input is the number of piece lengths that follow; the rest is the stream.
pub fn pieces_and_stream(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count) % 8)
}

/// An input with a byte before its pieces: the byte, the pieces and the stream.
pub fn parts(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (pieces, stream) = pieces_and_stream(rest)?;
    Some((*first, pieces, stream))
}
