//! `--jobs`: the runs of several seeds at the same time, each on a device of its own. On a GPU these are streams whose kernels overlap.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use subdeq::Ranks;
use subdeq::train::TrainConfig;

use super::{Args, Company, Finished, open, train};
use crate::dataset::Dataset;
use crate::failure::Failure;
use crate::stop::Stop;

/// Trains all of them, at most `jobs` at a time. The first failure, in the order of the seeds, is the answer; what others have made
/// by then is in their folders.
pub fn train_all(
    args: &Args,
    ranks: &Ranks,
    data: &Dataset,
    runs: &[(PathBuf, TrainConfig)],
) -> Result<Vec<Finished>, Failure> {
    if ranks.size() > 1 {
        return Err(Failure::usage(
            "ranks share one training at a time: leave --jobs out, or start without mpirun",
        ));
    }
    let stop = Stop::listen()?;
    let next = AtomicUsize::new(0);
    let ended: Mutex<Vec<Option<Result<Finished, Failure>>>> =
        Mutex::new(runs.iter().map(|_| None).collect());
    let work = || {
        while let Some((k, (folder, config))) = take(&next, runs).filter(|_| !stop.asked()) {
            let made = one(args, data, folder, config);
            if let Err(why @ (Failure::Usage(_) | Failure::Other(_))) = &made {
                // Others may go on for hours.
                eprintln!("{}: {why}", folder.display());
            }
            ended.lock().unwrap_or_else(PoisonError::into_inner)[k] = Some(made);
        }
    };
    thread::scope(|scope| {
        for _ in 0..args.jobs.min(runs.len()) {
            scope.spawn(work);
        }
    });
    stop.finish();
    let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten();
    if !stop.asked() {
        return ended.collect();
    }
    // One that failed by itself would fail again.
    let failed = ended.filter_map(Result::err).find(|why| !matches!(why, Failure::Stopped { .. }));
    let stopped = || stop.failure("stopped; the same command with --resume goes on with all of them".into());
    Err(failed.unwrap_or_else(stopped))
}

/// The next one that nobody has taken.
fn take<'a, T>(next: &AtomicUsize, all: &'a [T]) -> Option<(usize, &'a T)> {
    let k = next.fetch_add(1, Ordering::Relaxed);
    all.get(k).map(|one| (k, one))
}

fn one(args: &Args, data: &Dataset, folder: &Path, config: &TrainConfig) -> Result<Finished, Failure> {
    let device = args.compute.one_of(args.jobs).device()?;
    let (run, config) = open(args, folder, config.clone())?;
    train(args, &Ranks::alone(), device, data, run, config, Company::Others)
}
