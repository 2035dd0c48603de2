//! Where a GPU's time goes, for those who ask: `SUBDEQ_CUDA_TIMES=1` shows the time of every kernel when the GPU is no longer used.

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
    /// Launches and milliseconds of each kernel.
    totals: HashMap<&'static str, (u64, f64)>,
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
        let Ledger { pending, spare, totals } = &mut *ledger;
        for (name, events) in pending.drain(..) {
            // SAFETY: both events were recorded on one stream.
            if let Ok(milliseconds) = unsafe { result::event::elapsed(events[0], events[1]) } {
                let total = totals.entry(name).or_default();
                *total = (total.0 + 1, total.1 + f64::from(milliseconds));
            }
            spare.push(events);
        }
    }

    /// Shows them, the longest first.
    pub fn show(&self) {
        self.read();
        let ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<_> = ledger.totals.iter().collect();
        rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        eprintln!("{:>10} {:>10} {:>10}  kernel", "launches", "us each", "ms");
        for (name, (count, total)) in rows {
            eprintln!("{count:>10} {:>10.2} {total:>10.2}  {name}", 1e3 * total / *count as f64);
        }
    }
}
