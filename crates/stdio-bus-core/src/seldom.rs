//! What most do not have, kept apart: it takes up a word until it is first changed. A thousand connections may be idle, and
//! of most no request was lost, no output is full and no close has begun.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// What has a state in which it is most of the time (`blank!`).
pub trait Blank: Default + 'static {
    /// That state: the default.
    const BLANK: &'static Self;
}

/// Says what the usual state of a type is: its default, too.
macro_rules! blank {
    ($type:ty, $usual:expr) => {
        impl $crate::seldom::Blank for $type {
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

/// Is read as what it holds, or as that in its usual state; the first change gives it memory. Who changes nothing that is
/// not there asks [`Seldom::get_mut`].
#[derive(Clone, Debug)]
pub struct Seldom<T>(Option<Box<T>>);

impl<T> Seldom<T> {
    /// What was changed, if anything was: for those who ask often, and mostly in vain.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// It has memory from now on.
    pub fn begin(&mut self)
    where
        T: Default,
    {
        self.0.get_or_insert_default();
    }

    /// What is as usual.
    pub const fn unchanged() -> Self {
        Self(None)
    }
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Blank + PartialEq> PartialEq for Seldom<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Blank + Eq> Eq for Seldom<T> {}

impl<T: Blank + PartialEq> From<T> for Seldom<T> {
    fn from(value: T) -> Self {
        Self((value != *T::BLANK).then(|| Box::new(value)))
    }
}

impl<T: Blank> Deref for Seldom<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::BLANK)
    }
}

impl<T: Blank> DerefMut for Seldom<T> {
    #[inline]
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
    fn what_was_not_changed_takes_up_a_word_and_is_as_usual() {
        let mut count = Seldom::<Count>::default();
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
