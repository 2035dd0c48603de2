//! Scratch memory that outlives a call: the steady state of training allocates nothing.

use std::cell::RefCell;

use crate::Real;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::Tile;

thread_local! {
    /// Buffers of this thread that are not in use. `f64` words, so that they are aligned for both number types.
    static FREE: RefCell<Vec<Vec<f64>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of a cache line, on which the buffers begin.
const LINE: usize = 64;

/// Runs `work` with a buffer of `len` numbers whose contents are arbitrary.
///
/// The buffer is taken out of the thread's store meanwhile: `work` may ask for more, and another task that the thread
/// takes up while it waits finds the store without this one.
pub(super) fn with_scratch<T: Real, R>(len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut words = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    // A length in bytes that wraps around must not pass for a small buffer.
    let bytes = len.checked_mul(size_of::<T>()).expect("scratch memory larger than the address space");
    let needed = bytes.div_ceil(size_of::<f64>()) + LINE / size_of::<f64>();
    if words.len() < needed {
        words.resize(needed, 0.0);
    }
    let start = words.as_ptr().align_offset(LINE);
    let words_used = &mut words[start..];
    // SAFETY: `T` is f32 or f64 (`Real` is sealed): every bit pattern is a value, the alignment of f64 suffices for
    // both. Fewer than a line's words lie before `start`, so at least `len * size_of::<T>()` initialised bytes, which
    // nothing else refers to, lie after it.
    let buffer = unsafe { std::slice::from_raw_parts_mut(words_used.as_mut_ptr().cast::<T>(), len) };
    let result = work(buffer);
    FREE.with_borrow_mut(|free| free.push(words));
    result
}

/// The same for matrix tiles.
#[cfg(target_arch = "x86_64")]
pub(super) fn with_tiles<R>(count: usize, work: impl FnOnce(&mut [Tile]) -> R) -> R {
    let numbers = count.checked_mul(size_of::<Tile>() / size_of::<f32>());
    with_scratch(numbers.expect("more tiles than the address space holds"), |numbers: &mut [f32]| {
        // SAFETY: tiles are plain numbers, every bit pattern is one; the buffer begins on a cache line, which is their
        // alignment, and holds as many bytes.
        work(unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast::<Tile>(), count) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_buffers_are_distinct_and_returned() {
        with_scratch::<f32, _>(5, |a| {
            a.fill(1.0);
            with_scratch::<f64, _>(7, |b| b.fill(2.0));
            assert!(a.iter().all(|&x| x == 1.0));
        });
        assert_eq!(FREE.with_borrow(Vec::len), 2);
    }
}
