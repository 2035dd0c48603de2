//! Progress of a training, for a terminal, for a log, or for nobody.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use subdeq::train::{EpochMetrics, Progress};

use crate::options::Telling;

/// Tells how a training goes.
pub struct TrainingProgress {
    telling: Telling,
    epochs: usize,
    /// The seed, where several trainings tell at the same time.
    seed: Option<u64>,
    bar: Option<ProgressBar>,
    began: Instant,
    /// Share of all batches that were done when this process began.
    offset: Option<f64>,
}

impl TrainingProgress {
    /// For a training of so many epochs, named by its seed if there are others beside it.
    pub fn new(telling: Telling, epochs: usize, seed: Option<u64>) -> Self {
        let bar = (telling == Telling::Bar).then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:4} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { telling, epochs, seed, bar, began: Instant::now(), offset: None }
    }

    /// To be called after every batch and epoch.
    pub fn tell(&mut self, progress: &Progress<'_>) {
        let (done, of) = progress.batches;
        // After an epoch `epoch` counts it already.
        let within = if progress.completed.is_some() { 0.0 } else { done as f64 / of.max(1) as f64 };
        let share = (progress.epoch as f64 + within) / self.epochs.max(1) as f64;
        let left = self.left(share);
        if let Some(metrics) = progress.completed {
            match (&self.bar, self.telling) {
                (Some(bar), _) => bar.println(short_line(metrics, self.epochs, left)),
                (None, Telling::Lines) => {
                    let seed = self.seed.map_or(String::new(), |seed| format!("seed {seed}  "));
                    eprintln!("{seed}{}", epoch_line(metrics, self.epochs, left));
                }
                (None, _) => {}
            }
        } else if let Some(bar) = &self.bar {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
            let running = progress.running;
            let at = (progress.epoch + 1, self.epochs);
            bar.set_message(bar_line(at, running.mean_loss(), running.error_percent(), left));
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

/// What stands beside the bar; with it not wider than 60 columns.
fn bar_line((epoch, epochs): (usize, usize), loss: f64, error: f64, left: Option<Duration>) -> String {
    let left = left.map_or(String::new(), |left| format!(", {} left", roughly(left)));
    format!("epoch {epoch}/{epochs}, loss {loss:.3}, error {error:.1} %{left}")
}

/// An epoch for a terminal, which may be 60 columns wide. The rest is in `metrics.jsonl`.
fn short_line(metrics: &EpochMetrics, epochs: usize, left: Option<Duration>) -> String {
    // What is not well comes first.
    let end = match (metrics.converged, &metrics.verdict, left) {
        (share, ..) if share < 1.0 => format!(", {:.1} % unsolved", (100.0 * (1.0 - share)).max(0.1)),
        (_, Some(verdict), _) if verdict == "refuted" => ", refuted".to_owned(),
        (.., Some(left)) => format!(", {} left", roughly(left)),
        _ => String::new(),
    };
    let EpochMetrics { epoch, train_loss, train_error, .. } = metrics;
    // Of the training images, where none are held out.
    let error = metrics.validation_error.unwrap_or(*train_error);
    format!("epoch {epoch}/{epochs}: loss {train_loss:.3}, error {error:.2} %{end}")
}

/// An epoch for a log.
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

/// `12 s`, `3 min`, `2.1 h`.
fn roughly(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_of_60_columns_is_wide_enough() {
        let left = Some(Duration::from_secs(99 * 3600));
        // The bar has 4 columns and a blank.
        assert!(5 + bar_line((999, 999), 12.345, 100.0, left).len() <= 60);
        for (converged, verdict) in [(1.0, "proven"), (0.5, "proven"), (1.0, "refuted")] {
            let metrics = EpochMetrics {
                epoch: 999,
                train_loss: 12.345,
                train_error: 100.0,
                validation_loss: Some(123.456),
                validation_error: Some(100.0),
                forward_iterations: 100.0,
                backward_iterations: 100.0,
                converged,
                verdict: Some(verdict.into()),
                learning_rate: 0.001,
                seconds: 1.0,
            };
            let line = short_line(&metrics, 999, left);
            assert!(line.len() <= 60, "{line}");
            assert_eq!(line.contains("unsolved"), converged < 1.0, "{line}");
        }
    }

    #[test]
    fn times_are_readable() {
        let words = |s| in_words(Duration::from_secs(s));
        assert_eq!([words(12), words(185), words(7620)], ["12 s", "3 min 05 s", "2 h 07 min"]);
        let rough = |s| roughly(Duration::from_secs(s));
        assert_eq!([rough(12), rough(185), rough(7620)], ["12 s", "3 min", "2.1 h"]);
    }
}
