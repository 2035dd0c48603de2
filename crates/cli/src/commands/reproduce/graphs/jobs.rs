//! Runs side by side, some of which wait for what others find.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::super::ledger::{Ledger, Run};
use crate::failure::Failure;

/// Which run comes next.
pub enum Next<K> {
    /// This one.
    Run(K),
    /// None that could be begun before one of those under way has ended.
    Wait,
    /// None: all are made or under way.
    Done,
}

/// The first of the runs that is not in the ledger, not begun, and knows what it needs to know. `known` says of a plan whether it
/// was made (`Ok(None)`), can be begun (`Ok(Some(key))`), or waits for others (`Err`).
pub fn first_open<P, K: PartialEq>(
    plans: impl IntoIterator<Item = P>,
    begun: &[K],
    known: impl Fn(P) -> Result<Option<K>, Waits>,
) -> Next<K> {
    let mut waits = false;
    for plan in plans {
        match known(plan) {
            Ok(Some(key)) if !begun.contains(&key) => return Next::Run(key),
            Ok(_) => {}
            Err(Waits) => waits = true,
        }
    }
    if waits { Next::Wait } else { Next::Done }
}

/// That a run has to wait for others.
pub struct Waits;

/// What the threads share.
struct State<R, K> {
    ledger: Ledger<R>,
    /// Runs that were begun here, ended or not.
    begun: Vec<K>,
    under_way: usize,
    failures: Vec<String>,
}

/// Makes the runs that `next` names, `jobs` at a time, until there are none; `next` is given the ledger and what
/// was begun. A run that fails is told and not tried again; the others go on.
pub fn side_by_side<R: Run + Send, K: Clone + PartialEq + Send>(
    ledger: Ledger<R>,
    jobs: usize,
    next: impl Fn(&Ledger<R>, &[K]) -> Next<K> + Sync,
    make: impl Fn(&K) -> Result<R, Failure> + Sync,
) -> Result<Ledger<R>, Failure> {
    let state = Mutex::new(State { ledger, begun: Vec::new(), under_way: 0, failures: Vec::new() });
    let ended = Condvar::new();
    let work = || {
        let mut shared = lock(&state);
        loop {
            let key = match next(&shared.ledger, &shared.begun) {
                Next::Run(key) => key,
                // What others wait for has failed.
                Next::Wait if shared.under_way == 0 => return,
                Next::Wait => {
                    shared = ended.wait(shared).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Next::Done => return,
            };
            shared.begun.push(key.clone());
            shared.under_way += 1;
            drop(shared);
            let made = make(&key);
            shared = lock(&state);
            shared.under_way -= 1;
            if let Err(why) = made.and_then(|run| shared.ledger.add(run)) {
                eprintln!("{why}");
                shared.failures.push(why.to_string());
            }
            ended.notify_all();
        }
    };
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let State { ledger, failures, .. } = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failures.first() {
        Some(first) => Err(Failure::other(format!("{} runs failed; the first: {first}", failures.len()))),
        None => Ok(ledger),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
