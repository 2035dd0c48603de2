//! Ranks as the engine's company: what processes that share a graph say to each other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use subdeq_engine::cpu::graph::Company;
use subdeq_ranks::{Error, Number, Ranks, Result};

/// Ranks, and the first message between them that failed.
pub(super) struct RankCompany {
    ranks: Ranks,
    failure: Mutex<Option<Error>>,
    /// Bytes sent to single ranks, and messages.
    traffic: [AtomicU64; 2],
}

impl RankCompany {
    pub fn new(ranks: &Ranks) -> RankCompany {
        RankCompany { ranks: ranks.clone(), failure: Mutex::new(None), traffic: Default::default() }
    }

    /// Bytes sent to single ranks, and messages, since this was last asked.
    pub fn take_traffic(&self) -> [u64; 2] {
        self.traffic.each_ref().map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// What came of a message; nothing if it failed, which is remembered.
    fn remember<R>(&self, result: Result<R>) -> Option<R> {
        result
            .map_err(|error| {
                let mut failure = self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                failure.get_or_insert(error);
            })
            .ok()
    }
}

/// A number that says that it is none.
trait Nothing {
    const NOTHING: Self;
}
impl Nothing for f32 {
    const NOTHING: f32 = f32::NAN;
}
impl Nothing for f64 {
    const NOTHING: f64 = f64::NAN;
}

impl<T: Number + Nothing> Company<T> for RankCompany {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn lists(&self, give: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        self.remember(self.ranks.lists(&give)).unwrap_or_default()
    }

    fn exchange(
        &self,
        give: &[(usize, &[T])],
        take: &mut [(usize, &mut [T])],
        meanwhile: &mut (dyn FnMut() + Send),
    ) {
        let bytes: usize = give.iter().map(|(_, numbers)| size_of_val(*numbers)).sum();
        self.traffic[0].fetch_add(bytes as u64, Ordering::Relaxed);
        self.traffic[1].fetch_add(give.len() as u64, Ordering::Relaxed);
        if self.remember(self.ranks.travel(give, take, meanwhile)).is_none() {
            take.iter_mut().for_each(|(_, numbers)| numbers.fill(T::NOTHING));
        }
    }

    fn gather(&self, mine: &[f64], counts: &[usize]) -> Vec<f64> {
        let gathered = self.remember(self.ranks.gather_parts(mine, counts));
        gathered.unwrap_or_else(|| vec![f64::NAN; counts.iter().sum()])
    }

    fn broadcast(&self, from: usize, numbers: &mut [T]) {
        if self.remember(self.ranks.broadcast(numbers, from)).is_none() {
            numbers.fill(T::NOTHING);
        }
    }

    fn relay(&self, baton: &mut [f64], work: &mut dyn FnMut(&mut [f64])) {
        if self.remember(self.ranks.relay(baton, work)).is_none() {
            baton.fill(f64::NAN);
        }
    }

    fn failure(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        failure.as_ref().map(ToString::to_string)
    }
}
