//! Disjoint parts of one slice for threads that work side by side.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice of which each thread takes parts of its own.
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    whole: PhantomData<&'a mut [T]>,
}

// SAFETY: it is an exclusive borrow of plain numbers; `take` promises that parts do not overlap.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// All of it.
    pub fn new(whole: &'a mut [T]) -> Self {
        Self { start: whole.as_mut_ptr(), len: whole.len(), whole: PhantomData }
    }

    /// One part.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)] // the point of this type; the caller promises disjointness
    pub unsafe fn take(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: the range lies within the borrowed slice, and by the caller's promise nothing else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
