//! A connection as the scanner sees it: bytes that arrive in pieces, between pads with arbitrary content.

use crate::scan::{BATCH, Fault, InstructionSet, Line, Meta, PAD, Partial, ScanResult, Scanner, Span, Window};

/// Every instruction set that this machine can run.
pub(super) fn sets() -> Vec<InstructionSet> {
    [InstructionSet::Reference, InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512]
        .into_iter()
        .filter(|&set| Scanner::with(set).is_some())
        .collect()
}

/// The result of scanning a stream: its lines, relative to the first byte of the stream, and where and why it ended if
/// it was malformed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) lines: Vec<Line>,
    pub(super) malformed: Option<(usize, Fault)>,
}

/// Scans `stream` in the pieces that end at `cuts`, dropping consumed bytes after each piece as the bus does. The pads,
/// and the room that later pieces fill, hold `garbage`.
pub(super) fn read(scanner: &mut Scanner, stream: &[u8], cuts: &[usize], garbage: u8) -> Reading {
    let mut reading = Reading::default();
    let mut partial = Partial::new();
    let mut lines = Vec::with_capacity(BATCH);
    let mut buffer = vec![garbage; PAD + stream.len() + PAD];
    // The stream byte at the start of the window.
    let mut dropped = 0;
    let mut received = 0;
    for &cut in cuts.iter().chain([&stream.len()]) {
        buffer[PAD + received - dropped..][..cut - received].copy_from_slice(&stream[received..cut]);
        received = cut;
        loop {
            let window = Window::new(&buffer, PAD, PAD + received - dropped);
            let outcome = scanner.scan(&mut partial, window, &mut lines);
            assert!(partial.consumed() <= partial.scanned() && partial.scanned() <= window.data().len());
            assert!(lines.len() <= BATCH);
            for line in lines.drain(..) {
                assert_eq!(window.get(line.span), &stream[dropped..][line.span.start as usize..line.span.end as usize]);
                reading.lines.push(counted_from(line, dropped));
            }
            match outcome {
                ScanResult::More => break,
                ScanResult::Full => {}
                ScanResult::Malformed { line, at, fault } => {
                    assert!(line <= at && at < window.data().len(), "{line} {at}");
                    assert_eq!(line, partial.consumed());
                    reading.malformed = Some((dropped + line, fault));
                    return reading;
                }
            }
        }
        let consumed = partial.consume();
        let left = received - dropped - consumed;
        buffer.copy_within(PAD + consumed..PAD + consumed + left, PAD);
        buffer[PAD + left..].fill(garbage);
        dropped += consumed;
    }
    reading
}

/// The same line with its spans `by` bytes further on.
pub(super) fn counted_from(line: Line, by: usize) -> Line {
    let by = by as u32;
    let moved = |span: Span| {
        if span.is_some() { Span { start: span.start + by, end: span.end + by } } else { span }
    };
    Line {
        span: moved(line.span),
        id: moved(line.id),
        method: moved(line.method),
        session: moved(line.session),
        params_session: moved(line.params_session),
        result_session: moved(line.result_session),
        pool: moved(line.pool),
        request_id: moved(line.request_id),
        params_id: moved(line.params_id),
        token: moved(line.token),
        meta: Meta {
            progress: moved(line.meta.progress),
            subscription: moved(line.meta.subscription),
            twice: if line.meta.twice == 0 { 0 } else { line.meta.twice + by },
        },
        flags: line.flags,
    }
}
