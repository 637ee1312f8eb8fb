//! Figures from many measurements, and who goes first while they are taken.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// For times in nanoseconds, up to a minute.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// Microseconds: p50, p99, p99.9.
pub fn percentiles(times: &Histogram<u64>) -> [f64; 3] {
    [0.5, 0.99, 0.999].map(|quantile| times.value_at_quantile(quantile) as f64 / 1e3)
}

/// Says on the terminal what is under way; nothing, to clear the line.
pub fn progress(text: &str) {
    eprint!("\r\x1b[K{text}");
}

/// Lets others go before a process, or with 0 before the calling thread: with 19 all others.
pub fn give_way(process: u32, nice: i32) {
    // SAFETY: the call has no memory arguments.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, process, nice) };
}

/// Puts a process, or with 0 the calling thread, before all others of its CPU, or back among them. Without the right to
/// it, the scheduler's part in the times is larger.
pub fn put_first(process: u32, first: bool) {
    let parameter = libc::sched_param { sched_priority: i32::from(first) };
    let policy = if first { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: the parameter outlives the call.
    unsafe { libc::sched_setscheduler(process as libc::pid_t, policy, &parameter) };
}

/// Measures with the calling thread before all others of its CPU.
pub fn first<T>(measure: impl FnOnce() -> T) -> T {
    put_first(0, true);
    let measured = measure();
    put_first(0, false);
    measured
}

/// What a thread has returned.
pub fn joined<T>(result: std::thread::Result<io::Result<T>>) -> io::Result<T> {
    result.unwrap_or_else(|_| Err(io::Error::other("a thread of the bench has panicked")))
}

/// Tells threads that it is over when it is dropped, also where the measuring has failed.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
