//! The training loop.

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::{Backend, Images, MIRRORED, Picks, Summary};

use super::{
    Checkpoint, ModelNote, RunFolder, RunOptions, TensorFile, TrainConfig, check_arrays, model_arrays,
    save_model, state_arrays,
};
use crate::model::{Batch, Classifier};
use crate::{Error, Result};

/// Images per batch in evaluations. What it is does not change any result.
pub(super) const EVALUATION_BATCH: usize = 256;
/// Prefix of the selected parameters in a checkpoint.
const BEST: &str = "best.";
/// Name of the states that warm starts keep in a checkpoint.
const STATES: &str = "warm.states";
/// More than so many states are not kept: a checkpoint of several gigabytes serves nobody.
const MAX_STATES: usize = 1 << 29;

/// Sums over the batches of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Samples seen.
    pub samples: usize,
    /// Of them classified correctly.
    pub correct: usize,
    /// Of them with a solve that converged.
    pub converged: usize,
    /// Sum of the losses.
    pub loss: f64,
    /// Sum of the forward iterations.
    pub forward: f64,
    /// Sum of the adjoint iterations.
    pub backward: f64,
}

impl Running {
    fn add(&mut self, summary: &Summary) {
        self.samples += summary.samples as usize;
        self.correct += summary.correct as usize;
        self.converged += summary.converged_samples() as usize;
        self.loss += summary.loss;
        self.forward += summary.forward_iterations as f64;
        self.backward += summary.backward_iterations as f64;
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.samples.max(1) as f64
    }

    /// Mean cross-entropy.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        self.mean(self.loss)
    }

    /// Misclassified samples, in percent.
    #[must_use]
    pub fn error_percent(&self) -> f64 {
        100.0 * (1.0 - self.mean(self.correct as f64))
    }

    /// Share of the samples whose solve converged.
    #[must_use]
    pub fn converged_share(&self) -> f64 {
        self.mean(self.converged as f64)
    }

    /// Forward iterations per sample.
    #[must_use]
    pub fn forward_iterations(&self) -> f64 {
        self.mean(self.forward)
    }

    /// Adjoint iterations per sample.
    #[must_use]
    pub fn backward_iterations(&self) -> f64 {
        self.mean(self.backward)
    }
}

/// What an epoch came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochMetrics {
    /// Which, from 1.
    pub epoch: usize,
    /// Mean loss of the training batches.
    pub train_loss: f64,
    /// Error of the training batches, in percent.
    pub train_error: f64,
    /// Mean loss on the validation images, if there are any.
    pub validation_loss: Option<f64>,
    /// Error on the validation images, in percent, if there are any.
    pub validation_error: Option<f64>,
    /// Forward iterations per training sample.
    pub forward_iterations: f64,
    /// Adjoint iterations per training sample.
    pub backward_iterations: f64,
    /// Share of training solves that converged.
    pub converged: f64,
    /// The verdict for all inputs about the epoch's last weights, where it is quickly had: `proven` or `unproven`.
    pub verdict: Option<Cow<'static, str>>,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Wall-clock seconds of the training batches (of this process only, if the run was continued within the epoch).
    pub seconds: f64,
}

/// Where a training stands, for whoever watches it.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Epochs completed.
    pub epoch: usize,
    /// Batches of the present epoch that are done, and how many there are.
    pub batches: (usize, usize),
    /// Sums over those batches.
    pub running: &'a Running,
    /// The epoch that was just completed, if this is the end of one.
    pub completed: Option<&'a EpochMetrics>,
}

/// Called after every batch and every epoch; may ask for a stop, after which the run can be continued.
pub type Watch<'a> = &'a mut dyn FnMut(Progress<'_>) -> ControlFlow<()>;

/// The state of every training image, on the device.
struct WarmStates<D: Backend> {
    array: D::Array,
    len: usize,
}

/// The images of a training, on the device.
struct OnDevice<D: Backend> {
    train: D::Images,
    /// With their number, if there are any.
    validation: Option<(D::Images, usize)>,
}

/// A training run in progress.
pub struct Trainer<D: Backend<Elem = f32>> {
    config: TrainConfig,
    folder: RunFolder,
    model: Classifier<D>,
    at: Checkpoint,
    best: Vec<(String, Vec<f32>)>,
    /// Where the solves of each training image start, one state after the other; with warm starts only.
    states: Option<WarmStates<D>>,
    checkpoint_every: Duration,
}

impl<D: Backend<Elem = f32>> Trainer<D> {
    /// A trainer at the folder's checkpoint, or at the beginning if there is none.
    ///
    /// # Errors
    /// A model that cannot be built or a checkpoint that does not fit it.
    pub fn new(device: Arc<D>, folder: RunFolder, config: TrainConfig) -> Result<Self> {
        config.check()?;
        let (mut at, mut best, mut states) = (Checkpoint::default(), Vec::new(), None);
        let mut state = Vec::new();
        if let Some(TensorFile { note, tensors }) = folder.read_checkpoint()? {
            let fault = |why| folder.bad_checkpoint(&why);
            config.check_position(&note).map_err(fault)?;
            for (name, data) in tensors {
                match name.strip_prefix(BEST) {
                    Some(name) => best.push((name.to_owned(), data)),
                    None if name == STATES => {
                        let (array, len) = (device.upload(&data)?, data.len());
                        states = Some(WarmStates { array, len });
                    }
                    None => state.push((name, data)),
                }
            }
            check_arrays(&state_arrays(&config.model)?, &state).map_err(fault)?;
            if note.best.is_some() {
                check_arrays(&model_arrays(&config.model)?, &best).map_err(fault)?;
            }
            at = note;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        let mut model = Classifier::new(device, config.model.clone(), &mut rng)?;
        if !state.is_empty() {
            model.set_state(&state)?;
            let steps = std::iter::once(at.splitting_step).chain(at.deeper_steps.iter().copied());
            model.equilibria().zip(steps).for_each(|(layer, step)| layer.set_step(step));
        }
        folder.keep_metrics(at.metrics_lines)?;
        Ok(Self {
            config,
            folder,
            model,
            at,
            best,
            states,
            checkpoint_every: RunOptions::default().checkpoint_every,
        })
    }

    /// With another time between two checkpoints within an epoch (30 seconds if nothing is said).
    #[must_use]
    pub fn checkpoint_every(self, checkpoint_every: Duration) -> Self {
        Self { checkpoint_every, ..self }
    }

    /// The state of every training image, at the start of the solver until an epoch has been through them.
    fn make_states(&mut self, images: usize) -> Result<()> {
        let Some(layer) = self.model.equilibrium().filter(|_| self.config.warm_start) else {
            if self.config.warm_start {
                return Err(Error::Invalid(format!(
                    "`{}` solves nothing that could be started warm: leave --warm-start out",
                    self.config.model.core.name()
                )));
            }
            return Ok(());
        };
        let len = images * layer.map().operator().state_len();
        if len > MAX_STATES {
            return Err(Error::Invalid(format!(
                "warm starts keep the state of every training image, here {:.1} GB: leave --warm-start out",
                len as f64 * 4e-9
            )));
        }
        let (device, start) = (layer.device().clone(), layer.start());
        match &self.states {
            Some(states) if states.len != len => Err(Error::Invalid(format!(
                "the checkpoint keeps {} numbers of states, {images} training images have {len}: other data than the run \
                 began with?",
                states.len
            ))),
            Some(_) => Ok(()),
            None => {
                let mut array = device.zeros(len)?;
                device.fill(len, start, &mut array)?;
                self.states = Some(WarmStates { array, len });
                Ok(())
            }
        }
    }

    /// Whether all epochs are done.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.at.epoch >= self.config.epochs
    }

    /// The lowest validation error and its epoch, once an epoch is done; without validation images the training error of the last
    /// one.
    #[must_use]
    pub fn best(&self) -> Option<(f64, usize)> {
        self.at.best
    }

    /// Trains until all epochs are done or the watcher asks for a stop (`Break`).
    ///
    /// # Errors
    /// A loss or solve that is not finite, with the place and what to try; the last checkpoint stays.
    pub fn run(&mut self, train: &Images, validation: &Images, watch: Watch<'_>) -> Result<ControlFlow<()>> {
        if train.len() < 2 {
            return Err(Error::Invalid(format!("{} training images are too few", train.len())));
        }
        self.config.batch = self.config.batch_of(train.len())?;
        self.make_states(train.len())?;
        let (device, classes) = (self.model.device().clone(), self.config.model.classes);
        let images = OnDevice {
            train: device.images(train, classes)?,
            validation: match validation.len() {
                0 => None,
                count => Some((device.images(validation, classes)?, count)),
            },
        };
        while !self.finished() {
            if self.epoch(train.len(), &images, watch)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn epoch(&mut self, count: usize, images: &OnDevice<D>, watch: Watch<'_>) -> Result<ControlFlow<()>> {
        let device = self.model.device().clone();
        let list = device.integers(&self.list(count))?;
        let batches = self.batches(count);
        let noise = self.config.recipe.noise(self.config.seed, self.at.epoch);
        let (clock, mut saved) = (Instant::now(), Instant::now());
        if self.at.batches == 0 {
            // The weights have moved: choose the step of the splitting solvers anew, once per epoch.
            self.model.equilibria().for_each(|layer| layer.set_step(None));
        }
        let mut unread = 0;
        for (index, range) in batches.iter().enumerate().skip(self.at.batches) {
            let adam = self.config.adam(self.at.step, batches.len());
            let states = self.states.as_mut().map(|states| &mut states.array);
            let picks = Picks { list: &list, range: range.clone() };
            let stepped = self.model.step(Batch { images: &images.train, picks, states, noise }, &adam);
            stepped.map_err(|why| self.located(index, why))?;
            self.at.step += 1;
            self.at.batches = index + 1;
            unread += 1;
            if unread < device.steps_per_summary() && index + 1 < batches.len() {
                continue;
            }
            unread = 0;
            let summary = self.model.finish().map_err(|why| self.located(index, why))?;
            self.at.running.add(&summary);
            let progress = Progress {
                epoch: self.at.epoch,
                batches: (self.at.batches, batches.len()),
                running: &self.at.running,
                completed: None,
            };
            let stop = watch(progress).is_break();
            if stop || saved.elapsed() >= self.checkpoint_every {
                self.save()?;
                saved = Instant::now();
            }
            if stop {
                return Ok(ControlFlow::Break(()));
            }
        }
        let total = (self.config.epochs * batches.len()) as u64;
        let rate = self.config.rate_at(total.min(self.at.step).saturating_sub(1), batches.len());
        self.complete(images, (clock.elapsed().as_secs_f64(), rate), batches.len(), watch)
    }

    /// The images of the present epoch in their order, mirrored ones marked.
    fn list(&self, count: usize) -> Vec<u32> {
        let (flips, seed, epoch) = (self.config.data.flips, self.config.seed, self.at.epoch);
        let entry = |image: usize| {
            let mirrored = flips && mirrored(seed, epoch, image);
            image as u32 | if mirrored { MIRRORED } else { 0 }
        };
        shuffled(count, seed, epoch).into_iter().map(entry).collect()
    }

    /// The batches of an epoch. A last batch of one image is left out: batch norm has no variance there.
    fn batches(&self, count: usize) -> Vec<Range<usize>> {
        let size = self.config.batch.max(1);
        let starts = (0..count.div_ceil(size)).map(|k| k * size);
        starts
            .map(|start| start..count.min(start.saturating_add(size)))
            .filter(|range| range.len() > 1)
            .collect()
    }

    fn complete(
        &mut self,
        images: &OnDevice<D>,
        (seconds, learning_rate): (f64, f64),
        batches: usize,
        watch: Watch<'_>,
    ) -> Result<ControlFlow<()>> {
        let found = match &images.validation {
            Some((validation, count)) => Some(evaluate_set(&mut self.model, validation, *count)?),
            None => None,
        };
        let running = self.at.running;
        let metrics = EpochMetrics {
            epoch: self.at.epoch + 1,
            train_loss: running.mean_loss(),
            train_error: running.error_percent(),
            validation_loss: found.map(|found| found.mean_loss()),
            validation_error: found.map(|found| found.error_percent()),
            forward_iterations: running.forward_iterations(),
            backward_iterations: running.backward_iterations(),
            converged: running.converged_share(),
            verdict: self.quick_verdict()?,
            learning_rate,
            seconds,
        };
        // Without images that were held out, nothing speaks for any epoch but the last.
        let error = metrics.validation_error.unwrap_or(metrics.train_error);
        if found.is_none() || self.at.best.is_none_or(|(least, _)| error < least) {
            self.at.best = Some((error, metrics.epoch));
            self.best = selected(self.model.state()?);
            self.write_model()?;
        }
        self.folder.append_metrics(&metrics)?;
        self.at.epoch += 1;
        self.at.batches = 0;
        self.at.running = Running::default();
        self.at.metrics_lines += 1;
        self.save()?;
        let progress = Progress {
            epoch: self.at.epoch,
            batches: (batches, batches),
            running: &running,
            completed: Some(&metrics),
        };
        Ok(watch(progress))
    }

    /// The verdict for all inputs, where it costs less than an epoch.
    fn quick_verdict(&mut self) -> Result<Option<Cow<'static, str>>> {
        if !self.model.equilibria().all(|layer| layer.proves_quickly()) {
            return Ok(None);
        }
        Ok(self.model.prove()?.map(|proof| proof.verdict().into()))
    }

    fn save(&mut self) -> Result<()> {
        let mut steps = self.model.equilibria().map(|layer| layer.step());
        self.at.splitting_step = steps.next().flatten();
        self.at.deeper_steps = steps.collect();
        let mut tensors = self.model.state()?;
        tensors.extend(self.best.iter().map(|(name, data)| (format!("{BEST}{name}"), data.clone())));
        if let Some(states) = &self.states {
            let mut host = vec![0.0; states.len];
            self.model.device().read(&states.array, 0, &mut host)?;
            tensors.push((STATES.to_owned(), host));
        }
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        self.folder.write_checkpoint(&TensorFile { note: self.at.clone(), tensors })
    }

    /// Writes the model as it is, which was just selected, so that it can be used while the training goes on; what is proved about
    /// it is computed by whoever reads it.
    fn write_model(&mut self) -> Result<()> {
        let Some((error, epoch)) = self.at.best else { return Ok(()) };
        let note = ModelNote { config: self.config.clone(), selected: (epoch, error), certificate: None };
        save_model(&self.folder.model_path(), &mut self.model, &note)
    }

    /// The error with the place where it happened and what to try.
    fn located(&self, batch: usize, why: Error) -> Error {
        let saved = match self.at.metrics_lines {
            0 => "no epoch was completed".to_owned(),
            epochs => format!("the checkpoint of epoch {epochs} is in {}", self.folder.path().display()),
        };
        Error::Invalid(format!(
            "training stopped in epoch {}, batch {}: {why}; {saved}. Try a smaller --lr, more iterations for the solver, or an \
             architecture with a proof (split-sign, monotone)",
            self.at.epoch + 1,
            batch + 1,
        ))
    }

    /// The parameters of the lowest validation error, or the last ones.
    ///
    /// # Errors
    /// No epoch was completed.
    pub fn into_selected(self) -> Result<Selected> {
        match self.at.best {
            Some((error, epoch)) if !self.best.is_empty() => {
                Ok(Selected { epoch, error, tensors: self.best })
            }
            _ => Err(Error::Invalid("no epoch was completed, so no parameters were selected".into())),
        }
    }
}

/// Parameters and running statistics by name, and what they were selected by.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Its validation error in percent, or training error if nothing was held out.
    pub error: f64,
    /// The arrays.
    pub tensors: Vec<(String, Vec<f32>)>,
}

/// What of a model's state decides its answers: everything but the optimiser's moments.
pub(super) fn selected(state: Vec<(String, Vec<f32>)>) -> Vec<(String, Vec<f32>)> {
    state.into_iter().filter(|(name, _)| !(name.ends_with(".mean") || name.ends_with(".square"))).collect()
}

/// Puts selected parameters (the arrays of a `model.safetensors`) into a model; its optimiser starts afresh.
///
/// # Errors
/// An array that is missing or has another length, by name.
pub fn restore<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    tensors: &[(String, Vec<f32>)],
) -> Result<()> {
    let zeros = |(name, data): (String, Vec<f32>)| {
        let moment = name.ends_with(".mean") || name.ends_with(".square");
        moment.then(|| (name, vec![0.0; data.len()]))
    };
    let mut state: Vec<(String, Vec<f32>)> = model.state()?.into_iter().filter_map(zeros).collect();
    state.extend_from_slice(tensors);
    model.set_state(&state)
}

/// Loss, errors and convergence of a model on a set of images.
///
/// # Errors
/// Images that do not fit the model.
pub fn evaluate<D: Backend<Elem = f32>>(model: &mut Classifier<D>, images: &Images) -> Result<Running> {
    let set = model.device().images(images, model.spec().classes)?;
    evaluate_set(model, &set, images.len())
}

/// The same for images that are on the device.
fn evaluate_set<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    images: &D::Images,
    count: usize,
) -> Result<Running> {
    let list = model.device().integers(&in_order(count))?;
    for start in (0..count).step_by(EVALUATION_BATCH) {
        let range = start..count.min(start + EVALUATION_BATCH);
        model.evaluate_batch(images, Picks { list: &list, range })?;
    }
    let mut found = Running::default();
    found.add(&model.finish_evaluation()?);
    Ok(found)
}

/// Every image, in the order of the data set.
pub(super) fn in_order(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}

/// The order of the images in an epoch: a function of seed and epoch alone, so that a continued run has the same.
fn shuffled(len: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(1 + epoch as u64);
    let mut order: Vec<usize> = (0..len).collect();
    for i in (1..len).rev() {
        order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
    }
    order
}

/// Whether an image is mirrored in an epoch: a function of seed, epoch and image (a hash after Steele, Lea and Flood).
fn mirrored(seed: u64, epoch: usize, image: usize) -> bool {
    let mut x = seed
        ^ (epoch as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (image as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_its_own_order_of_all_images() {
        let (first, second) = (shuffled(1000, 7, 0), shuffled(1000, 7, 1));
        assert_ne!(first, second);
        assert_eq!(first, shuffled(1000, 7, 0));
        let mut sorted = second;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }

    #[test]
    fn about_half_of_the_images_are_mirrored_and_not_the_same_ones_each_epoch() {
        let count = (0..10_000).filter(|&i| mirrored(3, 5, i)).count();
        assert!((4700..5300).contains(&count), "{count}");
        let same = (0..10_000).filter(|&i| mirrored(3, 5, i) == mirrored(3, 6, i)).count();
        assert!((4700..5300).contains(&same), "{same}");
    }
}
