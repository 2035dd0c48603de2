//! Ctrl-C, and other requests to end that leave time for it.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// Whether the user asked for an end. The first request is only noted, for whoever looks in time; a second one ends the
/// program at once, and so does the first after [`Stop::finish`].
#[derive(Clone, Debug)]
pub struct Stop {
    /// The number of the signal that came; 0 before.
    signal: Arc<AtomicUsize>,
    /// Whether the next signal ends the program.
    next_ends: Arc<AtomicBool>,
}

impl Stop {
    /// Listens from now on, until [`Stop::finish`].
    pub fn listen() -> Result<Self, Failure> {
        // Once in the life of the process: what is registered stays.
        static LISTENER: OnceLock<Stop> = OnceLock::new();
        let Some(stop) = LISTENER.get() else {
            let stop = Self { signal: Arc::default(), next_ends: Arc::default() };
            stop.register().map_err(|why| Failure::other(format!("signals cannot be caught: {why}")))?;
            return Ok(LISTENER.get_or_init(|| stop).clone());
        };
        stop.next_ends.store(stop.asked(), Ordering::Relaxed);
        Ok(stop.clone())
    }

    fn register(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            // In this order: a signal ends the program if one came before it.
            flag::register_conditional_default(signal, Arc::clone(&self.next_ends))?;
            flag::register(signal, Arc::clone(&self.next_ends))?;
            flag::register_usize(signal, Arc::clone(&self.signal), signal as usize)?;
        }
        Ok(())
    }

    /// Whether an end was asked for.
    pub fn asked(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// For whoever watches a training: to go on, or to end if that was asked for.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Nobody looks any longer.
    pub fn finish(&self) {
        self.next_ends.store(true, Ordering::Relaxed);
    }

    /// The end that was asked for, with what to do next.
    pub fn failure(&self, sentence: String) -> Failure {
        // Of several ranks, another one may have been asked.
        let signal = if self.asked() { self.signal.load(Ordering::Relaxed) } else { SIGTERM as usize };
        Failure::Stopped { signal: signal as u8, sentence }
    }
}
