//! From generic code to kernels that exist for `f32` only.

use std::any::TypeId;

/// Whether the number type is `f32`.
pub fn is_f32<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<f32>()
}

/// The same slice, if the two types are the same.
pub fn same<T: 'static, U: 'static>(slice: &[T]) -> Option<&[U]> {
    if TypeId::of::<T>() != TypeId::of::<U>() {
        return None;
    }
    // SAFETY: the types are the same.
    Some(unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) })
}

/// As [`same`].
pub fn same_mut<T: 'static, U: 'static>(slice: &mut [T]) -> Option<&mut [U]> {
    if TypeId::of::<T>() != TypeId::of::<U>() {
        return None;
    }
    // SAFETY: the types are the same, and the borrow is exclusive.
    Some(unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), slice.len()) })
}
