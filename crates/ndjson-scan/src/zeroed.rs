//! Large tables of which most scanners use a small part: the system hands them out zeroed, and unused pages take up no
//! memory.

use alloc::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use alloc::boxed::Box;

/// A type that may consist of zeros.
///
/// # Safety
/// All zero bytes must be a valid value of the type.
pub(crate) unsafe trait Zeroable {}

// SAFETY: integers.
unsafe impl Zeroable for u8 {}
// SAFETY: the same.
unsafe impl Zeroable for u16 {}
// SAFETY: each element may be zero.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

/// A value that is all zeros.
pub(crate) fn zeroed<T: Zeroable>() -> Box<T> {
    const { assert!(size_of::<T>() > 0) };
    let layout = Layout::new::<T>();
    // SAFETY: the layout is not empty; the allocation has its size and alignment, is exclusively ours, and holds a
    // value of a type for which zeros are valid.
    unsafe {
        let memory = alloc_zeroed(layout).cast::<T>();
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(memory)
    }
}
