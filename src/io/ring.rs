//! The ring: the only path to the kernel while the daemon runs. It submits the entries that other files build and
//! returns completions; it knows nothing of clients or workers.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};

use super::clocks::monotonic;
use crate::error::StartError;

/// Sizes of the two queues. Their memory counts against the user's limit of locked memory, which other daemons may
/// share: if it is exceeded, smaller queues do the same in more calls.
const SIZES: [(u32, u32); 3] = [(1024, 4096), (256, 1024), (64, 256)];

/// All operations that the ring may submit, and the flags of its entries: the kernel refuses any other with EACCES. It
/// cannot open a file, create a socket or connect one.
const OPERATIONS: [u8; 12] = [
    opcode::Nop::CODE,
    opcode::Timeout::CODE,
    opcode::Recv::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
    opcode::Writev::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];
const FLAGS: squeue::Flags = squeue::Flags::BUFFER_SELECT.union(squeue::Flags::ASYNC);

/// IORING_CQE_F_BUFFER and IORING_CQE_F_SOCK_NONEMPTY (io_uring_enter(2)).
const CQE_F_BUFFER: u32 = 1;
const CQE_F_SOCK_NONEMPTY: u32 = 4;

/// A completed operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The token that the operation was submitted with.
    pub token: u64,
    /// Its result: a count, a descriptor, or a negative errno.
    pub result: i32,
    flags: u32,
}

impl Completion {
    /// A completion that does not come from a ring.
    pub fn of(token: u64, result: i32, buffer: Option<u16>, more_to_read: bool) -> Self {
        let buffer = buffer.map_or(0, |buffer| CQE_F_BUFFER | u32::from(buffer) << 16);
        let completion = Self { token, result, flags: buffer | if more_to_read { CQE_F_SOCK_NONEMPTY } else { 0 } };
        debug_assert_eq!(completion.more_to_read(), more_to_read);
        completion
    }

    /// The provided buffer that the kernel chose.
    pub fn buffer(&self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }

    /// Whether the socket had more to read when this receive completed.
    pub fn more_to_read(&self) -> bool {
        cqueue::sock_nonempty(self.flags)
    }
}

/// The argument of io_uring_enter(2) with IORING_ENTER_EXT_ARG.
#[repr(C)]
struct GetEventsArgument {
    signal_mask: u64,
    signal_mask_bytes: u32,
    min_wait_usec: u32,
    timeout: u64,
}

/// The maximum number of pending alarms.
const MOST_ALARMS: usize = 4;

/// Timeouts that are operations of the ring. Most turns find one pending that ends their wait in time. If each turn had
/// its own, the kernel would arm and cancel a timer on every sleep, which in a virtual machine causes an exit.
#[derive(Default)]
struct Alarms {
    /// When they expire ([`monotonic`]), the next one last. One may expire when nothing is due any more.
    at: Vec<Duration>,
    /// The timeout of the last one; the kernel reads it on submission.
    after: types::Timespec,
    /// The kernel refused one: each wait has its own timeout.
    are_refused: bool,
    /// When the last turn ended: timeouts count from then.
    turned_at: Duration,
}

impl Alarms {
    /// The next one expired, or was refused.
    fn has_rung(&mut self, result: i32) {
        self.at.pop();
        self.are_refused |= result != -libc::ETIME;
    }
}

/// An io_uring with a single submitter thread.
pub struct Ring {
    ring: IoUring,
    wait: EnterFlags,
    /// Boxed, since the kernel reads a time from this address.
    alarms: Box<Alarms>,
    /// Operations that did not fit into the queue.
    waiting: VecDeque<squeue::Entry>,
    /// The operation submitted as [`ROUSE`] has completed.
    pub was_roused: bool,
    /// The features in use, for the log.
    pub description: String,
}

impl Ring {
    /// Sets up the ring with the best flags that this kernel supports. Memory is registered next; nothing is submitted
    /// before [`Ring::enable`].
    ///
    /// # Errors
    /// [`StartError::NoIoUring`] if the kernel lacks io_uring or it is blocked, [`StartError::RingTooOld`] if the
    /// kernel lacks DEFER_TASKRUN (6.1), which the daemon requires.
    pub fn new() -> Result<Self, StartError> {
        let mut last = None;
        for (submissions, completions) in SIZES {
            match Self::of_size(submissions, completions) {
                Err(StartError::NoIoUring { source }) if source.raw_os_error() == Some(libc::ENOMEM) => {
                    last = Some(source);
                }
                other => return other,
            }
        }
        Err(StartError::NoIoUring { source: last.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM)) })
    }

    fn of_size(submissions: u32, completions: u32) -> Result<Self, StartError> {
        let mut builder = IoUring::builder();
        builder
            .setup_cqsize(completions)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .dontfork();
        let mut description = match (submissions, completions) == SIZES[0] {
            true => "DEFER_TASKRUN".to_owned(),
            false => format!("{submissions} entries, DEFER_TASKRUN"),
        };
        let ring = match builder.clone().setup_no_sqarray().build(submissions) {
            Ok(ring) => {
                description.push_str(" NO_SQARRAY");
                ring
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match builder.build(submissions) {
                Ok(ring) => ring,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    return Err(StartError::RingTooOld { missing: "DEFER_TASKRUN".to_owned(), needed: "6.1" });
                }
                Err(source) => return Err(StartError::NoIoUring { source }),
            },
            Err(source) => return Err(StartError::NoIoUring { source }),
        };
        let mut wait = EnterFlags::GETEVENTS;
        if ring.params().is_feature_no_iowait() {
            wait |= EnterFlags::NO_IOWAIT;
            description.push_str(" NO_IOWAIT");
        }
        let mut allowed: Vec<_> = OPERATIONS.into_iter().map(Restriction::sqe_op).collect();
        allowed.push(Restriction::sqe_flags_allowed(FLAGS.bits()));
        // Registrations are not on the list: they are over once the ring is enabled.
        match ring.submitter().register_restrictions(&mut allowed) {
            Ok(()) => description.push_str(" RESTRICTED"),
            // This is a second line of defence: without it the ring works the same.
            Err(error) => description.push_str(&format!(", not restricted ({error})")),
        }
        Ok(Self {
            ring,
            wait,
            alarms: Box::new(Alarms { turned_at: monotonic(), ..Alarms::default() }),
            waiting: VecDeque::new(),
            was_roused: false,
            description,
        })
    }

    /// Binds the ring to the calling thread, its only user from now on, disables registrations, and proves that it
    /// works.
    ///
    /// # Errors
    /// [`StartError::NoIoUring`] if the kernel does not complete a no-op.
    pub fn enable(&mut self) -> Result<(), StartError> {
        self.ring.submitter().register_enable_rings().map_err(|source| StartError::NoIoUring { source })?;
        // SAFETY: a no-op touches no memory.
        unsafe { self.submit(opcode::Nop::new().build()) };
        let turned = self.turn(Some(Duration::ZERO), &mut Vec::new());
        turned.map_err(|source| StartError::NoIoUring { source })
    }

    /// Registers memory for READ_FIXED and WRITE_FIXED, before the ring is enabled.
    ///
    /// # Safety
    /// The memory must outlive the ring.
    pub unsafe fn register_buffers(&self, buffers: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.submitter().register_buffers(buffers) }
    }

    /// Registers a ring of provided buffers as group `group`, before the ring is enabled.
    ///
    /// # Safety
    /// `address` must point at a page-aligned array of `entries` buffer entries that outlives the ring.
    pub unsafe fn register_buffer_ring(&self, address: u64, entries: u16, group: u16) -> io::Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(address, entries, group, 0) }
    }

    /// Queues an operation for the next turn.
    ///
    /// # Safety
    /// Memory and descriptors that the operation names stay valid until its completion was taken.
    pub unsafe fn submit(&mut self, entry: squeue::Entry) {
        if self.waiting.is_empty() {
            // SAFETY: guaranteed by the caller.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The queue is full: submit it. A failure here recurs in the next turn, which reports it.
            let _ = self.ring.submit();
            // SAFETY: guaranteed by the caller.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.waiting.push_back(entry);
    }

    /// When the last turn ended ([`monotonic`]).
    pub fn turned_at(&self) -> Duration {
        self.alarms.turned_at
    }

    /// Whether the next turn would return at once.
    pub fn has_news(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// Asks the kernel to cancel the operation with this token; it completes with ECANCELED, or as usual.
    pub fn cancel(&mut self, token: u64) {
        let entry = opcode::AsyncCancel::new(token).build().user_data(IGNORE);
        // SAFETY: a cancellation names no memory.
        unsafe { self.submit(entry) };
    }

    /// Whether an alarm ends a wait within this time. If none does, sets one.
    fn rings_within(&mut self, timeout: Duration) -> bool {
        let alarms = &mut *self.alarms;
        let due = alarms.turned_at + timeout;
        if alarms.at.last().is_some_and(|at| *at <= due) {
            return true;
        }
        if alarms.are_refused || alarms.at.len() >= MOST_ALARMS {
            return false;
        }
        alarms.after = due.saturating_sub(monotonic()).into();
        let entry = opcode::Timeout::new(&raw const alarms.after).build().user_data(ALARM);
        // SAFETY: the time stays in place; a time overwritten before the kernel read it is replaced by an earlier one.
        let is_set = unsafe { self.ring.submission().push(&entry) }.is_ok();
        if is_set {
            alarms.at.push(due);
        }
        is_set
    }

    /// Submits what is queued, waits for a completion or until `timeout` has passed (none: for ever), and appends all
    /// completions to `completions`.
    pub fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()> {
        let waits = timeout != Some(Duration::ZERO);
        while let Some(entry) = self.waiting.front() {
            // SAFETY: guaranteed when it was submitted.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        let rings_in_time = timeout.is_none_or(|timeout| !waits || self.rings_within(timeout));
        let timespec = timeout.map(types::Timespec::from);
        let argument = GetEventsArgument {
            signal_mask: 0,
            signal_mask_bytes: 0,
            min_wait_usec: 0,
            timeout: timespec.as_ref().map_or(0, |timespec| std::ptr::from_ref(timespec) as u64),
        };
        let queued = self.ring.submission().len() as u32;
        let (flags, argument) = match rings_in_time {
            true => (self.wait, None),
            false => (self.wait | EnterFlags::EXT_ARG, Some(&argument)),
        };
        // SAFETY: the argument and the time it points at live until the call returns.
        let entered = unsafe { self.ring.submitter().enter(queued, u32::from(waits), flags.bits(), argument) };
        self.alarms.turned_at = monotonic();
        match entered {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                // The timeout expired, a signal arrived, or completions have to be taken first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
        let (was_roused, alarms) = (&mut self.was_roused, &mut *self.alarms);
        let queue = self.ring.completion().filter(|entry| {
            match entry.user_data() {
                ROUSE => *was_roused = true,
                ALARM => alarms.has_rung(entry.result()),
                _ => {}
            }
            entry.user_data() < ALARM
        });
        completions.extend(queue.map(|entry| Completion {
            token: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
        Ok(())
    }
}

/// The token of operations whose completion is ignored.
pub const IGNORE: u64 = u64::MAX;

/// The token of an operation whose completion sets [`Ring::was_roused`].
pub const ROUSE: u64 = IGNORE - 1;

/// The token of alarms.
const ALARM: u64 = IGNORE - 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn result_of(ring: &mut Ring, entry: squeue::Entry) -> i32 {
        // SAFETY: the tests' operations name only static memory.
        unsafe { ring.submit(entry.user_data(7)) };
        let mut completions = Vec::new();
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        while completions.is_empty() && std::time::Instant::now() < deadline {
            ring.turn(Some(Duration::from_secs(1)), &mut completions).expect("the ring works");
        }
        let [completion] = completions[..] else { panic!("not one completion: {completions:?}") };
        assert_eq!(completion.token, 7);
        completion.result
    }

    fn enabled() -> Ring {
        let mut ring = Ring::new().expect("the tests need io_uring");
        ring.enable().expect("it can be enabled");
        ring
    }

    #[test]
    fn the_kernel_refuses_operations_that_the_daemon_never_submits() {
        let mut ring = enabled();
        let file = c"/dev/null";
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), file.as_ptr()).build();
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        let linked = opcode::Nop::new().build().flags(squeue::Flags::IO_LINK);
        for forbidden in [open, socket, opcode::Close::new(types::Fd(-1)).build(), linked] {
            assert_eq!(result_of(&mut ring, forbidden), -libc::EACCES);
        }
        // Operations after a refused one still run.
        assert_eq!(result_of(&mut ring, opcode::Nop::new().build()), 0);
        let nothing = opcode::AsyncCancel::new(1).build();
        assert_eq!(result_of(&mut ring, nothing), -libc::ENOENT);
    }

    /// Runs one turn of a ring, in which a no-op completes if `has_news`. Returns the number of completions and of
    /// alarms set.
    fn turn(ring: &mut Ring, timeout: Duration, has_news: bool) -> (usize, usize) {
        if has_news {
            // SAFETY: a no-op touches no memory.
            unsafe { ring.submit(opcode::Nop::new().build().user_data(7)) };
        }
        let mut completions = Vec::new();
        ring.turn(Some(timeout), &mut completions).expect("the ring works");
        (completions.len(), ring.alarms.at.len())
    }

    #[test]
    fn a_wait_ends_in_time_by_an_earlier_alarm_or_its_own() {
        let mut ring = enabled();
        let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(1));
        assert_eq!(turn(&mut ring, Duration::ZERO, false), (0, 0), "nothing is waited for");
        for _ in 0..3 {
            assert_eq!(turn(&mut ring, hour, true), (1, 1), "one alarm is in time for all that are due later");
        }
        assert_eq!(turn(&mut ring, moment, false), (0, 1), "one that is due sooner has one of its own, which has rung");
        let sooner = |number| hour / 2 - Duration::from_secs(number);
        let most = (0..10).map(|number| turn(&mut ring, sooner(number), true)).last();
        assert_eq!(most, Some((1, MOST_ALARMS)));
        assert_eq!(turn(&mut ring, moment, false), (0, MOST_ALARMS), "a wait ends without another one");
    }

    #[test]
    fn the_first_alarm_is_recorded_with_the_time_when_it_expires() {
        let mut ring = Ring::new().expect("the tests need io_uring");
        assert!(ring.rings_within(Duration::from_secs(3600)));
        assert!(ring.alarms.at[0] > monotonic(), "it would be in time for all that is due later, and is not");
    }

    #[test]
    fn a_wait_ends_although_the_kernel_refused_an_alarm() {
        let mut ring = enabled();
        let refused = opcode::Timeout::new(std::ptr::null()).build().user_data(ALARM);
        // SAFETY: the point is that the kernel finds no time there.
        unsafe { ring.submit(refused) };
        ring.alarms.at.push(monotonic());
        assert_eq!(turn(&mut ring, Duration::from_secs(3600), false), (0, 0));
        assert_eq!(turn(&mut ring, Duration::from_millis(1), false), (0, 0));
        assert!(ring.alarms.are_refused);
    }

    #[test]
    fn nothing_can_be_registered_with_an_enabled_ring() {
        let ring = enabled();
        let mut byte = 0u8;
        let memory = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: the point is that nothing gets registered; if it were, nothing would use it.
        let refused = unsafe { ring.register_buffers(&[memory]) };
        assert_eq!(refused.map_err(|error| error.raw_os_error()), Err(Some(libc::EACCES)));
    }
}
