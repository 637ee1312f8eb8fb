//! Statistics of measurements, and scheduling priorities while measuring.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// A histogram of times in nanoseconds, up to a minute.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// Microseconds: p50, p99, p99.9.
pub fn percentiles(times: &Histogram<u64>) -> [f64; 3] {
    [0.5, 0.99, 0.999].map(|quantile| times.value_at_quantile(quantile) as f64 / 1e3)
}

/// Shows progress on the terminal; an empty text clears the line.
pub fn progress(text: &str) {
    eprint!("\r\x1b[K{text}");
}

/// Lowers the priority of a process, or of the calling thread if 0.
pub fn give_way(process: u32, nice: i32) {
    // SAFETY: the call has no memory arguments.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, process, nice) };
}

/// Has a process run before others, but not what it starts from now on, as the shipped units for systemd do. Without
/// permission (CAP_SYS_NICE) nothing changes.
pub fn prefer(process: u32) {
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: the calls read nothing but the parameter, which outlives them.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, process, -10);
        libc::sched_setscheduler(process as i32, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, &usual);
    }
}

/// Gives a process, or the calling thread if 0, real-time priority on its CPU, or takes it away. Without permission,
/// latencies include more scheduling.
pub fn put_first(process: u32, first: bool) {
    let parameter = libc::sched_param { sched_priority: i32::from(first) };
    let policy = if first { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: the parameter outlives the call.
    unsafe { libc::sched_setscheduler(process as libc::pid_t, policy, &parameter) };
}

/// Measures with real-time priority of the calling thread.
pub fn first<T>(measure: impl FnOnce() -> T) -> T {
    put_first(0, true);
    let measured = measure();
    put_first(0, false);
    measured
}

/// A thread's result.
pub fn joined<T>(result: std::thread::Result<io::Result<T>>) -> io::Result<T> {
    result.unwrap_or_else(|_| Err(io::Error::other("a thread of the bench has panicked")))
}

/// Stops threads when it is dropped, including on errors.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
