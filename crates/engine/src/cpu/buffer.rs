//! Memory that starts on a cache line.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A cache line, and the width of the widest vector, in bytes.
const ALIGNMENT: usize = 64;

mod sealed {
    /// Number types for which all-zero bytes are the number zero and which need no destructor.
    pub trait Zeroable: Copy {}
    impl Zeroable for f32 {}
    impl Zeroable for f64 {}
    impl Zeroable for u16 {}
    impl Zeroable for u32 {}
    impl Zeroable for i32 {}
}
pub(crate) use sealed::Zeroable;

/// A fixed number of numbers in memory aligned to 64 bytes; the array type of the CPU.
///
/// ```
/// use subdeq_engine::cpu::Buffer;
/// let buffer = Buffer::from_slice(&[1.0f32, 2.0]);
/// assert_eq!(buffer[1], 2.0);
/// assert_eq!(buffer.as_ptr() as usize % 64, 0);
/// ```
pub struct Buffer<T: Zeroable> {
    start: NonNull<T>,
    len: usize,
    /// Whether the memory is its own; else it is lent.
    owned: bool,
}

// SAFETY: a buffer has its memory to itself (or, lent to be read, shares it with readers) and `T` is plain numbers; it is as
// shareable as a `Vec<T>`.
unsafe impl<T: Zeroable + Send> Send for Buffer<T> {}
// SAFETY: as above; a shared buffer only gives out shared slices.
unsafe impl<T: Zeroable + Sync> Sync for Buffer<T> {}

impl<T: Zeroable> Buffer<T> {
    /// `None` for more than the address space.
    fn layout(len: usize) -> Option<Layout> {
        Layout::array::<T>(len).ok()?.align_to(ALIGNMENT).ok()
    }

    /// `len` zeros; `None` where memory does not suffice.
    #[must_use]
    pub fn try_zeros(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self { start: NonNull::dangling(), len, owned: true });
        }
        // SAFETY: the layout has a nonzero size since `len > 0` and `T` is not zero-sized.
        let raw = unsafe { alloc_zeroed(Self::layout(len)?) };
        Some(Self { start: NonNull::new(raw.cast::<T>())?, len, owned: true })
    }

    /// `len` zeros; ends the process where memory does not suffice, as `Vec` does.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        Self::try_zeros(len)
            .unwrap_or_else(|| handle_alloc_error(Self::layout(len).unwrap_or(Layout::new::<T>())))
    }

    /// A copy of `numbers`.
    pub fn from_slice(numbers: &[T]) -> Self {
        let mut buffer = Self::zeros(numbers.len());
        buffer.copy_from_slice(numbers);
        buffer
    }

    /// Somebody else's numbers as a buffer to read, where they are: no copy. They need not be aligned.
    ///
    /// ```
    /// use subdeq_engine::cpu::Buffer;
    /// let numbers = vec![1.0f32, 2.0, 3.0];
    /// let lent = Buffer::lend(&numbers[1..]);
    /// assert_eq!((lent[0], lent.as_ptr()), (2.0, numbers[1..].as_ptr()));
    /// ```
    pub fn lend(numbers: &[T]) -> Lent<'_, T> {
        let (start, len) = (NonNull::from(numbers).cast(), numbers.len());
        Lent { buffer: Self { start, len, owned: false }, numbers: PhantomData }
    }

    /// Calls `work` with somebody else's numbers as a buffer to write, where they are: no copy. They need not be aligned.
    ///
    /// The process ends if `work` puts another buffer in its place (`mem::swap`): the numbers would outlive their owner.
    ///
    /// ```
    /// use subdeq_engine::cpu::Buffer;
    /// let mut numbers = vec![1.0f32, 2.0];
    /// Buffer::lend_mut(&mut numbers, |buffer| buffer[1] = 5.0);
    /// assert_eq!(numbers, [1.0, 5.0]);
    /// ```
    pub fn lend_mut<R>(numbers: &mut [T], work: impl FnOnce(&mut Self) -> R) -> R {
        let len = numbers.len();
        let start = NonNull::from(numbers).cast();
        let mut borrowed = Borrowed { buffer: Self { start, len, owned: false }, start, len };
        work(&mut borrowed.buffer)
    }

    /// Makes it at least `len` long, all zeros if it has to grow; a buffer that is long enough is left as it is.
    pub fn reserve_zeros(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeros(len);
        }
    }
}

/// Somebody's numbers, lent as a [`Buffer`] to read ([`Buffer::lend`]).
pub struct Lent<'a, T: Zeroable> {
    buffer: Buffer<T>,
    numbers: PhantomData<&'a [T]>,
}

impl<T: Zeroable> Deref for Lent<'_, T> {
    type Target = Buffer<T>;
    fn deref(&self) -> &Buffer<T> {
        &self.buffer
    }
}

/// A buffer of somebody's numbers that is to be written, with what it was when it was lent.
struct Borrowed<T: Zeroable> {
    buffer: Buffer<T>,
    start: NonNull<T>,
    len: usize,
}

impl<T: Zeroable> Drop for Borrowed<T> {
    /// Also on the way out of a panic.
    fn drop(&mut self) {
        if self.buffer.start != self.start || self.buffer.len != self.len {
            std::process::abort();
        }
    }
}

impl<T: Zeroable> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len).filter(|_| self.owned && self.len > 0) {
            // SAFETY: the memory is the buffer's own, so it came from `alloc_zeroed` with the same layout and is freed once.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}

impl<T: Zeroable> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to `len` initialised numbers (or dangles, aligned, when `len` is 0), the buffer's own or lent
        // by somebody who cannot have them back before the buffer is gone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl<T: Zeroable> Default for Buffer<T> {
    fn default() -> Self {
        Self::zeros(0)
    }
}

impl<T: Zeroable + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn empty_and_grown() {
        let mut buffer = Buffer::<f64>::default();
        assert!(buffer.is_empty());
        buffer.reserve_zeros(33);
        assert_eq!(&buffer[..], &[0.0; 33]);
        assert_eq!(buffer.as_ptr() as usize % 64, 0);
        buffer[7] = 2.0;
        buffer.reserve_zeros(5);
        assert_eq!(buffer.clone()[7], 2.0);
    }

    #[test]
    fn what_is_lent_stays_where_it_is() {
        let mut numbers = vec![1.0f32; 5];
        let copy = Buffer::lend(&numbers[1..4]).clone();
        assert_eq!((&copy[..], copy.as_ptr() as usize % 64), (&[1.0; 3][..], 0));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Buffer::lend_mut(&mut numbers[1..4], |buffer| {
                buffer.fill(2.0);
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(numbers, [1.0, 2.0, 2.0, 2.0, 1.0]);
        assert_eq!(Buffer::lend_mut(&mut numbers[..0], |buffer| buffer.len()), 0);
    }
}
