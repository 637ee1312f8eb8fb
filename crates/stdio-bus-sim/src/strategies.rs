//! Inputs that proptest makes of the words that the fuzzers try (`fuzz/words`).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// The words of a file, each in quotes, with `\"`, `\\` and `\x0a` for bytes that need an escape.
///
/// # Panics
/// If the file has another format.
pub fn words(file: &str) -> Vec<Vec<u8>> {
    let quoted = file.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    let words: Vec<Vec<u8>> = quoted
        .map(|mut text| {
            let mut word = Vec::new();
            while let Some((plain, escape)) = text.split_once('\\') {
                word.extend_from_slice(plain.as_bytes());
                match escape.strip_prefix('x') {
                    Some(hex) => {
                        word.push(u8::from_str_radix(&hex[..2], 16).expect("two digits"));
                        text = &hex[2..];
                    }
                    None => {
                        word.push(escape.as_bytes()[0]);
                        text = &escape[1..];
                    }
                }
            }
            [&word, text.as_bytes()].concat()
        })
        .collect();
    assert!(words.len() > 8 && words.iter().all(|word| !word.is_empty()));
    words
}

/// Bytes made of words and, now and then, others.
pub fn text(file: &str, most: usize) -> impl Strategy<Value = Vec<u8>> + use<> {
    let piece = prop_oneof![
        8 => select(words(file)),
        1 => vec(any::<u8>(), 0..6),
        1 => "\\PC{0,6}".prop_map(String::into_bytes),
    ];
    vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

/// What [`parts`](crate::bytes::parts) reads: a byte, up to seven lengths of pieces, and the stream.
pub fn in_pieces(stream: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let head = (any::<u8>(), vec(prop_oneof![1_u8..9, any::<u8>()], 0..8));
    (head, stream).prop_map(|((first, pieces), stream)| {
        let count = pieces.len() as u8;
        [&[first, count][..], &pieces, &stream].concat()
    })
}
