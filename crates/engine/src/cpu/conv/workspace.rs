//! Scratch memory that stays with its thread, so that batch operations allocate only the first time.

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static STORE: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with this thread's scratch memory of type `S`.
///
/// The memory is taken out of the store meanwhile: work that is started inside (a thread that waits may take on other
/// tasks) finds none and makes its own instead of meeting half-used memory.
pub fn with<S: Default + 'static, R>(work: impl FnOnce(&mut S) -> R) -> R {
    let taken = STORE.with_borrow_mut(|store| {
        store.iter().position(|boxed| boxed.is::<S>()).map(|index| store.swap_remove(index))
    });
    let mut boxed: Box<S> = taken.and_then(|boxed| boxed.downcast().ok()).unwrap_or_default();
    let result = work(&mut boxed);
    STORE.with_borrow_mut(|store| store.push(boxed));
    result
}

#[cfg(test)]
mod tests {
    use super::with;

    #[test]
    fn kept_between_calls_but_never_shared() {
        with(|outer: &mut Vec<u8>| {
            outer.push(1);
            with(|inner: &mut Vec<u8>| assert!(inner.is_empty()));
        });
        // Both are back in the store: the one that was written to and the fresh one.
        let total = with(|first: &mut Vec<u8>| with(|second: &mut Vec<u8>| first.len() + second.len()));
        assert_eq!(total, 1);
    }
}
