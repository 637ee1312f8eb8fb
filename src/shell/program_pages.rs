//! The pages of the program and of its libraries: most of an idle daemon's memory. Around everything that the start runs
//! the kernel maps what is in the page cache, and of that the daemon needs little later on.

use std::ffi::{c_int, c_void};
use std::fs;
use std::ptr;

/// Gives back all pages of code and constants, once the start is over. Those that are needed are mapped again from the page
/// cache as they are used, which costs each a fault.
///
/// A debugger's breakpoints are in its own copies of such pages, so a process that is traced keeps all of them.
pub(super) fn give_back() {
    let is_alone = fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("TracerPid:\t0\n"));
    if is_alone {
        // SAFETY: `of_object` has the signature, and uses what it is given only while it is called (dl_iterate_phdr(3)).
        unsafe { libc::dl_iterate_phdr(Some(of_object), ptr::null_mut()) };
    }
}

unsafe extern "C" fn of_object(object: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the caller gives a valid object with this many headers.
    let (base, segments) = unsafe {
        let object = &*object;
        if object.dlpi_phdr.is_null() {
            return 0;
        }
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    // SAFETY: the call takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    for segment in segments.iter().filter(|it| it.p_type == libc::PT_LOAD && it.p_flags & libc::PF_W == 0) {
        let begin = (base + segment.p_vaddr) as usize;
        let end = (begin + segment.p_memsz as usize).next_multiple_of(page);
        let begin = begin - begin % page;
        // SAFETY: nothing has written to a segment that is not writable, so each page comes back from its file as it was
        // (madvise(2)). An error, as that of locked memory, leaves them in place.
        unsafe { libc::madvise(ptr::without_provenance_mut(begin), end - begin, libc::MADV_DONTNEED) };
    }
    0
}
