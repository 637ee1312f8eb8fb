//! Large tables of which most scanners use a small part: the system gives them cleared, and what is never used takes up no
//! memory.

use alloc::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use alloc::boxed::Box;

/// What may consist of zeros.
///
/// # Safety
/// A value whose bytes are all zero is a valid one.
pub(crate) unsafe trait Zeroable {}

// SAFETY: integers.
unsafe impl Zeroable for u8 {}
// SAFETY: the same.
unsafe impl Zeroable for u16 {}
// SAFETY: each of them may be zero.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

/// One that is all zeros.
pub(crate) fn zeroed<T: Zeroable>() -> Box<T> {
    const { assert!(size_of::<T>() > 0) };
    let layout = Layout::new::<T>();
    // SAFETY: the layout is not empty; what the allocator gives for it is of that size and alignment, is ours alone, and
    // holds a value of a type that zeros are a value of.
    unsafe {
        let memory = alloc_zeroed(layout).cast::<T>();
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(memory)
    }
}
