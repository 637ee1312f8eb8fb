//! A memory reserve: a few MiB that are kept back, and an allocator that releases them when the system refuses memory,
//! so that an infallible allocation does not abort the daemon. The loop checks [`is_spent`], frees memory, and restores
//! the reserve with [`keep`].
//!
//! The pages of the reserve are never touched: they only cost address space.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The size of the reserve. The C library's allocator requests a MiB at a time when it cannot extend its heap, and one
/// turn of the loop allocates less than that.
const BYTES: usize = 8 << 20;

static RESERVE: Reserve = Reserve::new();

/// Maps the reserve, if it is not mapped. False if the system has no memory for it.
pub fn keep() -> bool {
    RESERVE.keep()
}

/// Returns the reserve to the system. False if there is none.
pub fn give_up() -> bool {
    RESERVE.give_up()
}

/// Whether the reserve was released and not restored since.
pub fn is_spent() -> bool {
    RESERVE.spent.load(Ordering::Relaxed)
}

struct Reserve {
    /// Its address; zero while there is none.
    address: AtomicUsize,
    spent: AtomicBool,
}

impl Reserve {
    const fn new() -> Self {
        Self { address: AtomicUsize::new(0), spent: AtomicBool::new(false) }
    }

    fn keep(&self) -> bool {
        if self.address.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let address = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return false;
        }
        self.spent.store(false, Ordering::Relaxed);
        release(self.address.swap(address as usize, Ordering::Relaxed));
        true
    }

    fn give_up(&self) -> bool {
        let address = self.address.swap(0, Ordering::Relaxed);
        if address != 0 {
            self.spent.store(true, Ordering::Relaxed);
        }
        release(address)
    }
}

fn release(address: usize) -> bool {
    // SAFETY: an address swapped out of a reserve is the start of a mapping of `BYTES` made in `keep`, which is never
    // accessed and can be swapped out only once.
    address != 0 && unsafe { libc::munmap(address as *mut libc::c_void, BYTES) } == 0
}

/// The system's allocator, with the reserve as a fallback.
pub struct Allocator;

/// Retries a failed `allocate` if there was a reserve to release.
fn twice(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if memory.is_null() && give_up() { allocate() } else { memory }
}

// SAFETY: every call is passed with the same arguments to the system's allocator, which upholds the trait's contract;
// it is retried only if it returned nothing. Nothing here allocates or unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the layout is not empty.
        twice(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the layout is not empty.
        twice(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the memory is from this allocator, which is the system's, with this
        // layout, and that the new size is not zero; if the first try fails the memory is unchanged.
        twice(|| unsafe { System.realloc(memory, layout, bytes) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that the memory is from this allocator, which is the system's, with this
        // layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_released_once_and_restored() {
        let reserve = Reserve::new();
        let is_spent = || reserve.spent.load(Ordering::Relaxed);
        assert!(!reserve.give_up() && !is_spent(), "it was not taken yet");
        assert!(reserve.keep() && reserve.keep());
        assert!(!is_spent());
        assert!(reserve.give_up() && is_spent());
        assert!(!reserve.give_up(), "there is none any more");
        assert!(reserve.keep() && !is_spent());
        assert!(reserve.give_up());
    }
}
