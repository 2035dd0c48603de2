//! A team of threads for short pieces of work.
//!
//! A training step of a small model is a chain of pieces that take some ten microseconds each. Waking a sleeping thread
//! takes longer than that. So the caller works itself, from the first moment; helpers that have just finished a piece
//! look out for the next one for a while before they sleep; and nobody waits for a helper that has not begun.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For how long a helper spins, waiting for the next piece, before it parks.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Spins between two glances at the clock, or two offers of the core to somebody else.
const SPINS: u32 = 64;

/// The piece of work is open: helpers may join.
const OPEN: u64 = 1;
/// One helper inside.
const HELPER: u64 = 2;
/// The team is shut down: helpers end.
const SHUTDOWN: u64 = 1 << 16;
/// One more piece of work.
const PIECE: u64 = 1 << 17;

/// Work on the items of a queue, taken from one end: the front for the caller, the back for helpers.
type Work<'a> = dyn Fn(End) + Sync + 'a;

/// The threads that help the caller.
pub(crate) struct Team {
    shared: Arc<Shared>,
    /// Held during a piece of work. Who finds it held works alone.
    busy: Mutex<()>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// [`OPEN`], helpers inside, [`SHUTDOWN`], and the number of the piece: all in one word, so that a helper enters the
    /// very piece that it saw open.
    state: AtomicU64,
    /// Where the caller keeps the reference to its work, while the piece is open or helpers are inside.
    work: AtomicPtr<&'static Work<'static>>,
    parked: AtomicUsize,
    parking: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Team {
    /// A team of the caller and `helpers` others.
    pub fn new(helpers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            work: AtomicPtr::new(std::ptr::null_mut()),
            parked: AtomicUsize::new(0),
            parking: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut team = Self { shared: shared.clone(), busy: Mutex::new(()), helpers: Vec::new() };
        for _ in 0..helpers {
            let shared = shared.clone();
            let helper = std::thread::Builder::new().name("subdeq".into()).spawn(move || shared.help())?;
            team.helpers.push(helper);
        }
        Ok(team)
    }

    /// Calls `work` on this thread and on each helper that comes in time; returns when all calls have. The work must be
    /// complete when a single call has returned before any other began: calls share a queue.
    fn run(&self, work: &Work<'_>) {
        if self.helpers.is_empty() {
            return work(End::Front);
        }
        let _busy = match self.busy.try_lock() {
            Ok(busy) => busy,
            Err(TryLockError::Poisoned(busy)) => busy.into_inner(),
            Err(TryLockError::WouldBlock) => return work(End::Front),
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed. Helpers use the reference only between entering and leaving an open
        // piece, and `Closing` waits until all have left, before the reference dies, even if `work` panics.
        let work: &'static Work<'static> = unsafe { std::mem::transmute::<&Work<'_>, _>(work) };
        shared.work.store(std::ptr::from_ref(&work).cast_mut(), Ordering::Relaxed);
        *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let piece = (shared.state.load(Ordering::Relaxed) & !(PIECE - 1)).wrapping_add(PIECE);
        shared.state.store(piece | OPEN, Ordering::SeqCst);
        if shared.parked.load(Ordering::SeqCst) > 0 {
            drop(shared.parking.lock());
            shared.wake.notify_all();
        }
        let closing = Closing(shared);
        work(End::Front);
        drop(closing);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Hands the items of `queue` to this thread and the helpers: this thread takes the first that is left, helpers take
    /// the last, until none is left. So the same samples mostly meet the same core's cache in every piece of a chain.
    ///
    /// Nothing is allocated. Who gets which item is left to chance, so results must not depend on it.
    pub fn for_each<I: Send>(
        &self,
        queue: impl DoubleEndedIterator<Item = I> + Send,
        work: impl Fn(I) + Sync,
    ) {
        if self.helpers.is_empty() || queue.size_hint().1.is_some_and(|most| most <= 1) {
            return queue.for_each(work);
        }
        let queue = Mutex::new(queue);
        self.run(&|end| {
            while let Some(item) = take(&queue, end) {
                work(item);
            }
        });
    }

    /// The same where everyone who works needs something for himself (scratch memory): one of `workers`.
    pub fn share<W: Send, I: Send>(
        &self,
        workers: &mut [W],
        queue: impl DoubleEndedIterator<Item = I> + Send,
        work: impl Fn(&mut W, I) + Sync,
    ) {
        let alone = self.helpers.is_empty() || queue.size_hint().1.is_some_and(|most| most <= 1);
        if let (true, Some(worker)) = (alone, workers.first_mut()) {
            return queue.for_each(|item| work(worker, item));
        }
        let (queue, workers) = (Mutex::new(queue), Mutex::new(workers.iter_mut()));
        self.run(&|end| {
            let Some(worker) = take(&workers, end) else { return };
            while let Some(item) = take(&queue, end) {
                work(worker, item);
            }
        });
    }
}

/// Where a thread takes its items from.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

/// The next item of a shared queue; none after a panic in it.
fn take<I>(queue: &Mutex<impl DoubleEndedIterator<Item = I>>, end: End) -> Option<I> {
    let mut queue = queue.lock().ok()?;
    match end {
        End::Front => queue.next(),
        End::Back => queue.next_back(),
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.state.fetch_or(SHUTDOWN, Ordering::SeqCst);
        drop(self.shared.parking.lock());
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of its work; there is nothing to learn here.
            let _ = helper.join();
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("helpers", &self.helpers.len()).finish()
    }
}

/// Closes the open piece when it is dropped, and waits for the helpers inside.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.state.fetch_and(!OPEN, Ordering::AcqRel) & (SHUTDOWN - 1);
        let mut spins = 0;
        while inside >= HELPER {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now(); // the helper may be waiting for this core
            }
            std::hint::spin_loop();
            inside = self.0.state.load(Ordering::Acquire) & (SHUTDOWN - 1);
        }
    }
}

impl Shared {
    /// The life of a helper.
    fn help(&self) {
        let mut seen = 0;
        while let Some(piece) = self.await_piece(seen) {
            seen = piece & !(PIECE - 1);
            let entered = piece + HELPER;
            if self.state.compare_exchange(piece, entered, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                seen = seen.wrapping_sub(PIECE); // somebody else entered or the piece was closed: look again
                continue;
            }
            // SAFETY: the piece was open when this helper entered it, so `work` points to the caller's reference, which
            // stays until the helper has left.
            let work = unsafe { *self.work.load(Ordering::Relaxed) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(End::Back))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.state.fetch_sub(HELPER, Ordering::Release);
        }
    }

    /// The state in which a piece other than `seen` is open; none when the team is dismissed.
    fn await_piece(&self, seen: u64) -> Option<u64> {
        let news = || {
            let state = self.state.load(Ordering::SeqCst);
            let open = state & OPEN != 0 && state & !(PIECE - 1) != seen;
            (open || state & SHUTDOWN != 0).then_some(state)
        };
        let awake = Instant::now();
        let found = loop {
            let found = (0..SPINS).find_map(|_| {
                std::hint::spin_loop();
                news()
            });
            if found.is_some() || awake.elapsed() > SPIN_TIME {
                break found;
            }
        };
        let state = found.unwrap_or_else(|| {
            let mut parking = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
            self.parked.fetch_add(1, Ordering::SeqCst);
            let state = loop {
                match news() {
                    Some(state) => break state,
                    None => parking = self.wake.wait(parking).unwrap_or_else(PoisonError::into_inner),
                }
            };
            self.parked.fetch_sub(1, Ordering::SeqCst);
            state
        });
        (state & SHUTDOWN == 0).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for helpers in [0, 1, 3] {
            let team = Team::new(helpers).unwrap();
            let mut counts = vec![0u32; 1000];
            for round in 1..200 {
                if round % 50 == 0 {
                    std::thread::sleep(5 * SPIN_TIME); // helpers asleep
                }
                team.for_each(counts.iter_mut(), |count| *count += 1);
                assert!(counts.iter().all(|&count| count == round), "round {round}, {helpers} helpers");
            }
        }
    }

    #[test]
    fn workers_are_not_shared_and_work_may_nest() {
        let team = Team::new(2).unwrap();
        let mut workers = [0usize; 3];
        let total = AtomicUsize::new(0);
        for _ in 0..100 {
            team.share(&mut workers, 0..64, |worker, _| {
                *worker += 1;
                team.for_each(0..4, |_| {
                    total.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        assert_eq!(workers.iter().sum::<usize>(), 6400);
        assert_eq!(total.into_inner(), 25600);
    }

    #[test]
    fn several_callers_and_panics() {
        let team = Team::new(1).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let sum = AtomicUsize::new(0);
                        team.for_each(0..10usize, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 45);
                    }
                });
            }
        });
        let ended = catch_unwind(AssertUnwindSafe(|| team.for_each(0..100, |i| assert!(i != 50, "fifty"))));
        assert!(ended.is_err());
        let sum = AtomicUsize::new(0);
        team.for_each(0..10usize, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
