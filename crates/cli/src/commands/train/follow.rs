//! A training that several ranks share: what the first tells the others, and what these do.

use std::process::ExitCode;

use subdeq::Ranks;
use subdeq::sliced::check_ranks;
use subdeq::train::{Images, Parts, TrainConfig, follow_run};

use super::Args;
use crate::dataset::{self, Dataset};
use crate::device::{AnyDevice, on_device};
use crate::failure::Failure;
use crate::stop::Stop;

/// Tells the other ranks which run comes next, or that none does.
pub fn announce(ranks: &Ranks, config: Option<&TrainConfig>) -> Result<(), Failure> {
    if ranks.size() == 1 {
        return Ok(());
    }
    let text = config.map(toml::to_string).transpose().map_err(Failure::other)?;
    ranks.tell(&text.unwrap_or_default()).map_err(Failure::other)?;
    Ok(())
}

/// The run that the first rank has announced.
fn announced(ranks: &Ranks) -> Result<Option<TrainConfig>, Failure> {
    let text = ranks.tell("").map_err(Failure::other)?;
    if text.is_empty() { Ok(None) } else { toml::from_str(&text).map(Some).map_err(Failure::other) }
}

/// The work of every rank but the first: its part of each run.
pub fn follow(args: &Args, ranks: &Ranks) -> Result<ExitCode, Failure> {
    let mut read: Option<Dataset> = None;
    while let Some(config) = announced(ranks)? {
        let data = match read.take().filter(|data| data.config == config.data) {
            Some(data) => data,
            None => dataset::reload(&config.data, args.data_dir.path())?,
        };
        let parts = &data.parts;
        let device = device_of(args, ranks, &config, parts)?;
        let stop = Stop::listen()?;
        let watch = &mut |_: subdeq::train::Progress<'_>| stop.flow();
        let ended = on_device!(device, |device| follow_run(ranks, &device, &config, parts, watch));
        stop.finish();
        if !ended.map_err(Failure::other)? {
            return Err(stop.failure("stopped".into()));
        }
        read = Some(data);
    }
    Ok(ExitCode::SUCCESS)
}

/// Where this rank computes, once it is known that all would compute the same.
pub fn device_of(
    args: &Args,
    ranks: &Ranks,
    config: &TrainConfig,
    parts: &Parts,
) -> Result<AnyDevice, Failure> {
    check_ranks(config.slices, ranks.size()).map_err(Failure::other)?;
    if ranks.size() == 1 {
        return args.compute.device();
    }
    let device = args.compute.shared().device()?;
    let hint = "start it on machines of one kind, or set SUBDEQ_ISA to what all of them have";
    ranks.agree("what they compute with", device.kind().as_bytes(), hint).map_err(Failure::other)?;
    for (what, images) in
        [("the training images", &parts.train), ("the validation images", &parts.validation)]
    {
        let hint = "give every machine the same files";
        ranks.agree(what, &bytes_of(images), hint).map_err(Failure::other)?;
    }
    Ok(device)
}

/// Images and labels as bytes, to be compared.
fn bytes_of(images: &Images) -> Vec<u8> {
    let labels = images.labels().iter().flat_map(|label| label.to_le_bytes());
    images.pixels().iter().copied().chain(labels).collect()
}

/// How many share a run, for people.
pub fn in_words(ranks: &Ranks, config: &TrainConfig) -> String {
    match (ranks.size(), config.slices) {
        (1, 0) => String::new(),
        (1, slices) => format!(", batches in {slices} slices"),
        (size, slices) => format!(", one of {size} ranks that share the {slices} slices of each batch"),
    }
}
