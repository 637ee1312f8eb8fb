//! Looks up users and groups of this machine by name or number.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

/// The highest id: the next one means "none" to chown(2) and SO_PEERCRED.
pub(super) const MAX_ID: u32 = u32::MAX - 1;
/// Maximum size of a user's or group's record in bytes: a group lists its members.
const LONGEST_RECORD: usize = 1 << 20;

/// Maximum number of groups of a user: the kernel's limit (NGROUPS_MAX in limits.h).
const MOST_GROUPS: usize = 65_536;

/// A user of this machine.
pub(super) struct Account {
    pub id: u32,
    /// None for a number without an account.
    pub group: Option<u32>,
    pub name: Option<String>,
    pub home: PathBuf,
}

/// The id of a user.
///
/// # Errors
/// The name is wrong or unknown.
pub(super) fn user(name: &str) -> Result<u32, String> {
    match number("user", name) {
        Some(number) => number,
        None => account(name).map(|account| account.id),
    }
}

/// A user by name, or by a number, which need not have an account.
///
/// # Errors
/// The name is wrong or unknown.
pub(super) fn account(name: &str) -> Result<Account, String> {
    let id = number("user", name).transpose()?;
    let c_name = c_name(name)?;
    let look_up = |buffer: &mut [u8]| {
        // SAFETY: a record whose fields may all be zero.
        let mut record: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: all of these live during the call, and the buffer has the given size (getpwnam_r(3)).
        let result = unsafe {
            match id {
                Some(id) => libc::getpwuid_r(id, &raw mut record, start, length, &raw mut found),
                None => libc::getpwnam_r(c_name.as_ptr(), &raw mut record, start, length, &raw mut found),
            }
        };
        // SAFETY: the strings of a found record are zero-terminated, and lie in the buffer.
        let account = (!found.is_null()).then(|| unsafe {
            let home = CStr::from_ptr(record.pw_dir).to_bytes();
            Account {
                id: record.pw_uid,
                group: Some(record.pw_gid),
                name: CStr::from_ptr(record.pw_name).to_str().map(str::to_owned).ok(),
                home: OsStr::from_bytes(if home.is_empty() { b"/" } else { home }).into(),
            }
        });
        (result, account)
    };
    match (found("user", name, look_up)?, id) {
        (Some(account), _) => Ok(account),
        (None, Some(id)) => Ok(Account { id, group: None, name: None, home: "/".into() }),
        (None, None) => Err(format!("there is no user {name:?} on this machine")),
    }
}

/// The groups of a user, including this one (getgrouplist(3)).
///
/// # Errors
/// There are more than the kernel supports.
pub(super) fn groups(name: &str, group: u32) -> Result<Vec<u32>, String> {
    let c_name = c_name(name)?;
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: the name and the groups live during the call, and there are `count` of them.
        let result = unsafe { libc::getgrouplist(c_name.as_ptr(), group, groups.as_mut_ptr(), &raw mut count) };
        if result >= 0 {
            groups.truncate(count as usize);
            groups.sort_unstable();
            return Ok(groups);
        }
        if groups.len() >= MOST_GROUPS {
            return Err(format!("the user {name:?} is in more than {MOST_GROUPS} groups"));
        }
        groups.resize(4 * groups.len(), 0);
    }
}

/// The id of a group.
///
/// # Errors
/// The name is wrong or unknown.
pub(super) fn group(name: &str) -> Result<u32, String> {
    if let Some(number) = number("group", name) {
        return number;
    }
    let c_name = c_name(name)?;
    let look_up = |buffer: &mut [u8]| {
        // SAFETY: a record whose fields may all be zero.
        let mut record: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all of these live during the call, and the buffer has the given size (getgrnam_r(3)).
        let result = unsafe {
            libc::getgrnam_r(c_name.as_ptr(), &raw mut record, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
        };
        (result, (!found.is_null()).then_some(record.gr_gid))
    };
    found("group", name, look_up)?.ok_or_else(|| format!("there is no group {name:?} on this machine"))
}

fn c_name(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| "must not contain a zero byte".to_owned())
}

/// The number in a text, if it is one.
fn number(what: &str, text: &str) -> Option<Result<u32, String>> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = || text.parse().ok().filter(|id| *id <= MAX_ID);
    is_number.then(|| id().ok_or_else(|| format!("the number of a {what} is at most {MAX_ID}, not {text}")))
}

/// Looks up a name. `look_up` returns an errno and its result.
fn found<T>(what: &str, name: &str, look_up: impl Fn(&mut [u8]) -> (i32, Option<T>)) -> Result<Option<T>, String> {
    let mut buffer = vec![0; 4096];
    loop {
        match look_up(&mut buffer) {
            (_, Some(found)) => return Ok(Some(found)),
            (libc::ERANGE, _) if buffer.len() < LONGEST_RECORD => buffer.resize(4 * buffer.len(), 0),
            (libc::EINTR, _) => {}
            // Which errors mean "unknown" depends on the name service (getpwnam(3)).
            (0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM, _) => return Ok(None),
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
    fn an_unknown_user_is_named() {
        assert_eq!(user("nobody-at-all"), Err("there is no user \"nobody-at-all\" on this machine".to_owned()));
        assert_eq!(group("no-group"), Err("there is no group \"no-group\" on this machine".to_owned()));
        assert_eq!(user("4294967295"), Err("the number of a user is at most 4294967294, not 4294967295".to_owned()));
        assert!(user("a\0b").is_err_and(|why| why.contains("zero byte")));
    }

    #[test]
    fn an_account_has_its_group_and_home_and_a_number_needs_no_account() {
        for name in ["root", "0"] {
            let root = account(name).expect("everybody has root");
            assert_eq!((root.id, root.group, root.name.as_deref()), (0, Some(0), Some("root")));
            assert!(root.home.is_absolute());
        }
        assert!(groups("root", 0).is_ok_and(|groups| groups.contains(&0)));
        let nobody = account("3999999999").expect("a number needs no name");
        assert_eq!((nobody.id, nobody.group, nobody.name), (3_999_999_999, None, None));
    }
}
