//! System calls that fail as in a container whose seccomp profile forbids them.

use std::io;

/// Makes a system call fail with `errno`, like a container's seccomp profile; given an offset in struct seccomp_data
/// (seccomp(2)) and a value, only calls with that value there. For a new process, between fork and exec: it only makes
/// system calls, and cannot be undone.
pub fn forbid(call: libc::c_long, argument: Option<(u32, u32)>, errno: i32) -> io::Result<()> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // If it differs, skips the rest except the last.
    let is = |k, skipped| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skipped,
        k,
    };
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    /// The offset of the system call's number.
    const NUMBER: u32 = 0;
    let fail = statement(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32);
    let pass = statement(RETURN, libc::SECCOMP_RET_ALLOW);
    let (place, value) = argument.unwrap_or_default();
    let with_argument = [statement(LOAD, NUMBER), is(call as u32, 3), statement(LOAD, place), is(value, 1), fail, pass];
    let without = [statement(LOAD, NUMBER), is(call as u32, 1), fail, pass];
    let filter: &[libc::sock_filter] = if argument.is_some() { &with_argument } else { &without };
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: prctl(2) reads `program` and the filter it points to, which live until it returns.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if set { Ok(()) } else { Err(io::Error::last_os_error()) }
}
