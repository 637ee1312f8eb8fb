//! Durations, counted in buckets that a monitor can add up over time and over daemons.

use core::time::Duration;

/// Inclusive upper bounds of the buckets in nanoseconds: 1, 2.5 and 5 times each power of ten from 10 µs to 1,000 s.
/// Longer durations are in one more bucket. No two bounds lie in one octave, so the bucket of a duration follows from
/// its highest bit and one comparison.
pub const BOUNDS: [u64; 25] = bounds();

const fn bounds() -> [u64; 25] {
    let (mut bounds, mut at) = ([0; 25], 0);
    while at < bounds.len() {
        bounds[at] = [10_000, 25_000, 50_000][at % 3] * 10_u64.pow(at as u32 / 3);
        at += 1;
    }
    bounds
}

/// For each octave the number of bounds below it, and the next one.
const OCTAVES: [(u8, u64); 64] = octaves();

const fn octaves() -> [(u8, u64); 64] {
    let (mut octaves, mut octave, mut at) = ([(0, 0); 64], 0, 0);
    while octave < octaves.len() {
        while at < BOUNDS.len() && (BOUNDS[at].ilog2() as usize) < octave {
            at += 1;
        }
        octaves[octave] = (at as u8, if at < BOUNDS.len() { BOUNDS[at] } else { u64::MAX });
        octave += 1;
    }
    octaves
}

/// Durations by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    /// In nanoseconds.
    sum: u64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&mut self, duration: Duration) {
        let nanoseconds = duration.as_nanos() as u64;
        let (below, bound) = OCTAVES[(nanoseconds | 1).ilog2() as usize];
        self.counts[usize::from(below) + usize::from(nanoseconds > bound)] += 1;
        self.sum += nanoseconds;
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// For each bound the number of durations up to it, in rising order.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS.iter().map(|bound| Duration::from_nanos(*bound)).zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_class_whose_bound_is_not_below_it() {
        let class = |nanoseconds: u64| {
            let mut histogram = Histogram::default();
            histogram.observe(Duration::from_nanos(nanoseconds));
            assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_nanos(nanoseconds)));
            histogram.counts.iter().position(|count| *count == 1)
        };
        assert_eq!((class(0), class(1)), (Some(0), Some(0)));
        for (at, bound) in BOUNDS.into_iter().enumerate() {
            assert_eq!(
                (class(bound - 1), class(bound), class(bound + 1)),
                (Some(at), Some(at), Some(at + 1)),
                "{bound}"
            );
        }
        assert_eq!(class(u64::MAX), Some(BOUNDS.len()));
    }

    #[test]
    fn the_buckets_add_up() {
        let mut histogram = Histogram::default();
        for milliseconds in [1, 2, 2, 400, 5_000_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let at =
            |seconds| histogram.cumulative().find(|(bound, _)| bound.as_secs_f64() == seconds).map(|(_, count)| count);
        assert_eq!(
            (at(0.0005), at(0.001), at(0.0025), at(0.5), at(1000.0)),
            (Some(0), Some(1), Some(3), Some(4), Some(4))
        );
        assert_eq!(histogram.count(), 5);
    }
}
