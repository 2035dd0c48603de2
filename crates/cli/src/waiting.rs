//! Work without steps to count: told once it has taken a while.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::options::Telling;

/// Nobody wonders before that.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two pictures of the clock.
const TICK: Duration = Duration::from_millis(100);

/// Tells what is done, from two seconds on until it is dropped: to a terminal with a clock, to a log in a line.
pub struct Waiting {
    teller: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Waiting {
    /// Work begins.
    pub fn begin(telling: Telling, what: &'static str) -> Self {
        if telling == Telling::Nothing {
            return Self { teller: None };
        }
        let (done, ended) = mpsc::channel::<()>();
        let teller = thread::spawn(move || {
            let goes_on = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            if !goes_on(PATIENCE) {
                return;
            }
            if telling == Telling::Lines {
                eprintln!("{what} ..");
                return;
            }
            let bar = ProgressBar::new_spinner().with_elapsed(PATIENCE).with_message(what);
            let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            while goes_on(TICK) {
                bar.tick();
            }
            bar.finish_and_clear();
        });
        Self { teller: Some((done, teller)) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((done, teller)) = self.teller.take() {
            drop(done);
            // What it tells is for people: if it failed, nothing else did.
            let _ = teller.join();
        }
    }
}
