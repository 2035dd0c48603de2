//! Independent pieces of work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// `work` of every item, in the items' order, by `threads` threads (0: as many as the machine has cores).
pub(crate) fn in_parallel<I: Copy + Sync, R: Send>(
    threads: usize,
    items: &[I],
    work: impl Fn(I) -> R + Sync,
) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = if threads == 0 { cores } else { threads }.min(items.len());
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        let mut done = take();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_for_any_number_of_threads() {
        let items: Vec<usize> = (0..100).collect();
        let squares: Vec<usize> = items.iter().map(|i| i * i).collect();
        for threads in [0, 1, 3, 200] {
            assert_eq!(in_parallel(threads, &items, |i| i * i), squares);
        }
        assert!(in_parallel(2, &[] as &[usize], |i| i).is_empty());
    }
}
