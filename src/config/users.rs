//! Users and groups of this machine by name or number.

use std::ffi::{CStr, CString};

use rustix::io::Errno;

/// The highest id: the one above it means nobody to chown(2) and SO_PEERCRED.
pub(super) const MAX_ID: u32 = u32::MAX - 1;
/// Longest record of a user or a group that is looked at, in bytes: a group lists its members.
const LONGEST_RECORD: usize = 1 << 20;

/// The id of a user.
///
/// # Errors
/// What is wrong with the name.
pub(super) fn user(name: &str) -> Result<u32, String> {
    let look_up = |name: &CStr, buffer: &mut [u8]| {
        // SAFETY: a record of which every field may be zero.
        let mut record: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all of these live during the call, and the size of the buffer is its own (getpwnam_r(3)).
        let result = unsafe {
            libc::getpwnam_r(name.as_ptr(), &raw mut record, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
        };
        (result, (!found.is_null()).then_some(record.pw_uid))
    };
    id("user", name, look_up)
}

/// The id of a group.
///
/// # Errors
/// What is wrong with the name.
pub(super) fn group(name: &str) -> Result<u32, String> {
    let look_up = |name: &CStr, buffer: &mut [u8]| {
        // SAFETY: a record of which every field may be zero.
        let mut record: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all of these live during the call, and the size of the buffer is its own (getgrnam_r(3)).
        let result = unsafe {
            libc::getgrnam_r(name.as_ptr(), &raw mut record, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
        };
        (result, (!found.is_null()).then_some(record.gr_gid))
    };
    id("group", name, look_up)
}

/// The number that a text is, or that the system has for it as a name. `look_up` gives an errno and the id.
fn id(what: &str, name: &str, look_up: impl Fn(&CStr, &mut [u8]) -> (i32, Option<u32>)) -> Result<u32, String> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        let id = name.parse().ok().filter(|id| *id <= MAX_ID);
        return id.ok_or_else(|| format!("the number of a {what} is at most {MAX_ID}, not {name}"));
    }
    let name = CString::new(name).map_err(|_| "must not contain a zero byte".to_owned())?;
    let mut buffer = vec![0; 4096];
    loop {
        match look_up(&name, &mut buffer) {
            (_, Some(id)) => return Ok(id),
            (libc::ERANGE, _) if buffer.len() < LONGEST_RECORD => buffer.resize(4 * buffer.len(), 0),
            (libc::EINTR, _) => {}
            // Which errors mean that nobody has the name depends on who is asked (getpwnam(3)).
            (0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM, _) => {
                return Err(format!("there is no {what} {name:?} on this machine"));
            }
            (errno, _) => {
                return Err(format!("the {what} {name:?} cannot be looked up: {}", Errno::from_raw_os_error(errno)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_a_group_are_known_by_name_or_number() {
        assert_eq!((user("root"), user("0"), user("4294967294")), (Ok(0), Ok(0), Ok(MAX_ID)));
        assert_eq!((group("root"), group("1000")), (Ok(0), Ok(1000)));
    }

    #[test]
    fn one_who_is_not_there_is_named() {
        assert_eq!(user("nobody-at-all"), Err("there is no user \"nobody-at-all\" on this machine".to_owned()));
        assert_eq!(group("no-group"), Err("there is no group \"no-group\" on this machine".to_owned()));
        assert_eq!(user("4294967295"), Err("the number of a user is at most 4294967294, not 4294967295".to_owned()));
        assert!(user("a\0b").is_err_and(|why| why.contains("zero byte")));
    }
}
