//! Where a GPU's time goes, for those who ask: `SUBDEQ_CUDA_TIMES=1` shows the time of every kernel when the GPU is no longer used, and
//! how long it had nothing to do between two of them. A mean says little where samples end one after the other: a launch that finds
//! all of them ended takes 3 us, so the median and the longest tenth stand beside it. The events themselves take some 3 us a launch.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// The times of the kernels so far, by name.
#[derive(Default)]
pub(super) struct Times(Mutex<Ledger>);

#[derive(Default)]
struct Ledger {
    /// Kernels whose times are not read yet, with the events before and after them.
    pending: Vec<(&'static str, [sys::CUevent; 2])>,
    /// Events to be used again.
    spare: Vec<[sys::CUevent; 2]>,
    /// Milliseconds of each kernel's launches, and of the pauses between two launches.
    launches: HashMap<&'static str, Vec<f32>>,
    pauses: Vec<f32>,
}

// SAFETY: events are handles that the driver allows every thread to use.
unsafe impl Send for Ledger {}

impl Times {
    /// The times, if the environment asks for them.
    pub fn wanted() -> Option<Self> {
        std::env::var("SUBDEQ_CUDA_TIMES").is_ok_and(|value| value != "0").then(Self::default)
    }

    /// Launches a kernel between two events.
    pub fn around(
        &self,
        name: &'static str,
        stream: sys::CUstream,
        launch: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let events = match ledger.spare.pop() {
            Some(events) => events,
            None => [event()?, event()?],
        };
        // SAFETY: the events were made here, in the context of the stream, which the caller has made current.
        unsafe { result::event::record(events[0], stream) }?;
        launch()?;
        // SAFETY: as above.
        unsafe { result::event::record(events[1], stream) }?;
        ledger.pending.push((name, events));
        Ok(())
    }

    /// Reads the times of all kernels, which have ended.
    pub fn read(&self) {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Ledger { pending, spare, launches, pauses } = &mut *ledger;
        // SAFETY: all events were recorded on one stream.
        let elapsed = |from, to| unsafe { result::event::elapsed(from, to) };
        for pair in pending.windows(2) {
            pauses.extend(elapsed(pair[0].1[1], pair[1].1[0]));
        }
        for (name, events) in pending.drain(..) {
            launches.entry(name).or_default().extend(elapsed(events[0], events[1]));
            spare.push(events);
        }
    }

    /// Shows them, the longest first.
    pub fn show(&self) {
        self.read();
        let ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<_> = ledger.launches.iter().map(|(name, times)| Row::of(name, times)).collect();
        rows.sort_by(|a, b| b.total.total_cmp(&a.total));
        rows.push(Row::of("(between two launches)", &ledger.pauses));
        eprintln!(
            "{:>10} {:>10} {:>10} {:>10} {:>10}  kernel",
            "launches", "us each", "median", "90 %", "ms"
        );
        for Row { name, count, total, mean, median, late } in rows {
            eprintln!("{count:>10} {mean:>10.2} {median:>10.2} {late:>10.2} {total:>10.2}  {name}");
        }
    }
}

/// A line of what is shown: milliseconds in all, and microseconds of a launch.
struct Row {
    name: &'static str,
    count: usize,
    total: f64,
    mean: f64,
    median: f64,
    late: f64,
}

impl Row {
    fn of(name: &'static str, milliseconds: &[f32]) -> Self {
        let mut sorted = milliseconds.to_vec();
        sorted.sort_by(f32::total_cmp);
        let count = sorted.len();
        let total: f64 = sorted.iter().copied().map(f64::from).sum();
        let at = |share: usize| sorted.get(count * share / 10).map_or(0.0, |&time| 1e3 * f64::from(time));
        Self { name, count, total, mean: 1e3 * total / count.max(1) as f64, median: at(5), late: at(9) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_launches_with_and_without_work_apart() {
        let times: Vec<f32> = [[0.003; 6].as_slice(), &[0.1; 4]].concat();
        let Row { count, total, mean, median, late, .. } = Row::of("kernel", &times);
        assert_eq!(count, 10);
        for (found, expected) in [(total, 0.418), (mean, 41.8), (median, 3.0), (late, 100.0)] {
            assert!((found / expected - 1.0).abs() < 1e-5, "{found} instead of {expected}");
        }
        assert_eq!(Row::of("never launched", &[]).mean, 0.0);
    }
}
