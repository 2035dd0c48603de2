//! Progress of a training, for a terminal, for a log, or for nobody.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use subdeq::train::{EpochMetrics, Progress};

use crate::options::Telling;

/// Tells how a training goes.
pub struct TrainingProgress {
    telling: Telling,
    epochs: usize,
    bar: Option<ProgressBar>,
    began: Instant,
    /// Share of all batches that were done when this process began.
    offset: Option<f64>,
}

impl TrainingProgress {
    /// For a training of so many epochs.
    pub fn new(telling: Telling, epochs: usize) -> Self {
        let bar = (telling == Telling::Bar).then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:24} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { telling, epochs, bar, began: Instant::now(), offset: None }
    }

    /// To be called after every batch and epoch.
    pub fn tell(&mut self, progress: &Progress<'_>) {
        let (done, of) = progress.batches;
        // After an epoch `epoch` counts it already.
        let within = if progress.completed.is_some() { 0.0 } else { done as f64 / of.max(1) as f64 };
        let share = (progress.epoch as f64 + within) / self.epochs.max(1) as f64;
        let left = self.left(share);
        if let Some(metrics) = progress.completed {
            let line = epoch_line(metrics, self.epochs, left);
            match (&self.bar, self.telling) {
                (Some(bar), _) => bar.println(line),
                (None, Telling::Lines) => eprintln!("{line}"),
                (None, _) => {}
            }
        } else if let Some(bar) = &self.bar {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
            let running = progress.running;
            bar.set_message(format!(
                "epoch {}/{} loss {:.4} error {:.2} % iterations {:.1}/{:.1}{}",
                progress.epoch + 1,
                self.epochs,
                running.mean_loss(),
                running.error_percent(),
                running.forward_iterations(),
                running.backward_iterations(),
                left.map_or(String::new(), |left| format!(" {} left", in_words(left))),
            ));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// The time that is left, once a part is done.
    fn left(&mut self, share: f64) -> Option<Duration> {
        let offset = *self.offset.get_or_insert(share);
        let elapsed = self.began.elapsed().as_secs_f64();
        (share > offset).then(|| Duration::from_secs_f64(elapsed * (1.0 - share).max(0.0) / (share - offset)))
    }
}

fn epoch_line(metrics: &EpochMetrics, epochs: usize, left: Option<Duration>) -> String {
    let verdict = metrics.verdict.as_ref().map_or(String::new(), |verdict| format!("  {verdict}"));
    let unsolved = match metrics.converged {
        1.0 => String::new(),
        share => format!("  {:.2} % not converged", 100.0 * (1.0 - share)),
    };
    let validation = match metrics.validation_error {
        Some(error) => format!("  validation {error:.2} %"),
        None => String::new(),
    };
    let left = left.map_or(String::new(), |left| format!("  {} left", in_words(left)));
    format!(
        "epoch {:>3}/{epochs}  loss {:.4}  train {:.2} %{validation}  iterations {:.1}/{:.1}{unsolved}{verdict}  \
         {:.1} s{left}",
        metrics.epoch,
        metrics.train_loss,
        metrics.train_error,
        metrics.forward_iterations,
        metrics.backward_iterations,
        metrics.seconds,
    )
}

/// `12 s`, `3 min 05 s`, `2 h 07 min`.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        let words = |s| in_words(Duration::from_secs(s));
        assert_eq!([words(12), words(185), words(7620)], ["12 s", "3 min 05 s", "2 h 07 min"]);
    }
}
