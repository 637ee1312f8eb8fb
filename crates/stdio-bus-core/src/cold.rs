//! State that is rarely present, stored separately: it takes one word until it is first changed. A thousand connections
//! may be idle, and most of them have lost no request, have no full output and are not being closed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A type with a usual state (`blank!`).
pub trait Blank: Default + 'static {
    /// That state: the default.
    const BLANK: &'static Self;
}

/// Defines the usual state of a type, which is also its default.
macro_rules! blank {
    ($type:ty, $usual:expr) => {
        impl $crate::cold::Blank for $type {
            const BLANK: &'static Self = &$usual;
        }

        impl Default for $type {
            fn default() -> Self {
                $usual
            }
        }
    };
}
pub(crate) use blank;

impl<T: 'static> Blank for Vec<T> {
    const BLANK: &'static Self = &Self::new();
}

/// Dereferences to its value, or to the usual state; the first mutable access allocates. Use [`Cold::get_mut`] to
/// change only what is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cold<T>(Option<Box<T>>);

impl<T> Cold<T> {
    /// The value, if anything was changed: for frequent checks that mostly find nothing.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// The usual state.
    pub const fn unchanged() -> Self {
        Self(None)
    }
}

impl<T: Blank + PartialEq> From<T> for Cold<T> {
    fn from(value: T) -> Self {
        Self((value != *T::BLANK).then(|| Box::new(value)))
    }
}

impl<T: Blank> Deref for Cold<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::BLANK)
    }
}

impl<T: Blank> DerefMut for Cold<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u64);

    blank!(Count, Count(0));

    #[test]
    fn an_unchanged_value_takes_one_word_and_reads_as_usual() {
        let mut count = Cold::<Count>::default();
        assert_eq!(
            (size_of_val(&count), count.0.is_none(), count.get_mut().is_none()),
            (size_of::<usize>(), true, true)
        );
        assert_eq!(Deref::deref(&count).0, 0);
        DerefMut::deref_mut(&mut count).0 += 1;
        assert_eq!(count.get_mut().map(|count| count.0), Some(1));
        assert_eq!(Deref::deref(&count).0, 1);
    }
}
