//! A classifier around an equilibrium, trained from arrays or read from a file.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn};
use pyo3::prelude::*;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use subdeq::model::{Answer, ClassifierSpec, CoreSpec};
use subdeq::train::{
    Cosine, DataConfig, ModelNote, Recipe, RunFolder, TrainConfig, array_shapes, certified_radii,
    effective_weights, load_model, model_arrays, save_model,
};
use subdeq::{Adam, Cpu, Init, Layout, Stopping};

use crate::arrays::read;
use crate::certificate::{Certificate, of_model};
use crate::error::{raise, refuse};
use crate::threads::device;

/// Samples that are classified together.
const BATCH: usize = 256;

/// A trained model. Python's `subdeq.Classifier` and `subdeq.load` wrap it.
#[pyclass(module = "subdeq._subdeq", frozen)]
pub struct Classifier {
    inner: Mutex<Model>,
    /// The process that its threads belong to.
    process: u32,
}

struct Model {
    model: subdeq::model::Classifier<Cpu<f32>>,
    note: ModelNote,
}

/// The samples of a training or of a question, each channels x height x width.
struct Samples {
    x: Vec<f32>,
    len: usize,
}

impl Samples {
    fn rows(&self, range: &[usize]) -> Vec<f32> {
        range.iter().flat_map(|&i| &self.x[i * self.len..(i + 1) * self.len]).copied().collect()
    }

    fn count(&self) -> usize {
        self.x.len() / self.len
    }
}

/// Numbers as the model reads them: standardised.
fn standardised(config: &TrainConfig, x: &[f32]) -> PyResult<Samples> {
    let ClassifierSpec { channels, height, width, .. } = config.model;
    let (pixels, len) = (height * width, channels * height * width);
    if !x.len().is_multiple_of(len) {
        return Err(refuse(format!(
            "{} numbers are not a whole number of samples of {channels} x {height} x {width}",
            x.len()
        )));
    }
    let DataConfig { mean, deviation, white, .. } = &config.data;
    let standard = |(at, &x): (usize, &f32)| {
        let channel = at / pixels % channels;
        ((f64::from(x) / f64::from(*white) - mean[channel]) / deviation[channel]) as f32
    };
    Ok(Samples { x: x.iter().enumerate().map(standard).collect(), len })
}

/// Mean and standard deviation of each channel.
fn moments(x: &[f32], channels: usize, pixels: usize, white: f64) -> (Vec<f64>, Vec<f64>) {
    let (mut sums, mut squares) = (vec![0.0; channels], vec![0.0; channels]);
    for (plane, numbers) in x.chunks_exact(pixels).enumerate() {
        for &x in numbers {
            let x = f64::from(x) / white;
            sums[plane % channels] += x;
            squares[plane % channels] += x * x;
        }
    }
    let count = (x.len() / channels).max(1) as f64;
    let mean: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
    let deviation = squares.iter().zip(&mean).map(|(square, mean)| (square / count - mean * mean).sqrt());
    // A channel that says nothing is left as it is.
    let deviation = deviation.map(|d| if d > 1e-9 { d } else { 1.0 }).collect();
    (mean, deviation)
}

/// What Python's `fit` asks for.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    model: String,
    hidden: usize,
    pool: Option<usize>,
    epochs: usize,
    batch: usize,
    learning_rate: f64,
    weight_decay: f64,
    tolerance: f64,
    max_iterations: usize,
    validation: f64,
    seed: u64,
    white: u8,
    class_names: Vec<String>,
}

impl Options {
    fn config(&self, [channels, height, width]: [usize; 3], x: &[f32]) -> PyResult<TrainConfig> {
        let layout = if self.pool.is_some() { Layout::Conv } else { Layout::Dense };
        let mut core = CoreSpec::named(&self.model, layout).map_err(raise)?;
        if let CoreSpec::Equilibrium { stopping, .. } = &mut core {
            *stopping = Stopping::relative(self.tolerance).max_iterations(self.max_iterations);
        }
        let (mean, deviation) = moments(x, channels, height * width, f64::from(self.white));
        let (class_names, classes) = (self.class_names.clone(), self.class_names.len());
        let model = ClassifierSpec {
            height,
            width,
            channels,
            hidden: self.hidden,
            pool: self.pool,
            injection_norm: false,
            classes,
            core,
            init: Init::default(),
            deeper: Vec::new(),
            lipschitz: None,
        };
        let data = DataConfig {
            name: "arrays".into(),
            split: "none".into(),
            validation: 0,
            split_seed: self.seed,
            fingerprint: String::new(),
            white: self.white,
            mean,
            deviation,
            class_names,
            flips: false,
        };
        let config = TrainConfig {
            epochs: self.epochs,
            batch: self.batch,
            weight_decay: self.weight_decay,
            seed: self.seed,
            warm_start: false,
            slices: 0,
            rate: Cosine { start: self.learning_rate, end: 1e-3 * self.learning_rate },
            recipe: Recipe::default(),
            data,
            model,
        };
        config.check().map_err(raise)?;
        Ok(config)
    }
}

/// An epoch as `progress` gets it: its number, mean loss, error in percent, validation error in percent (None without
/// validation samples).
type Epoch = (usize, f64, f64, Option<f64>);

/// Applications of the map and whether the solve converged, for each sample.
type Solves<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<bool>>);

/// Trains; calls `watch` after each epoch.
fn train(
    config: &TrainConfig,
    validation_share: f64,
    samples: &Samples,
    labels: &[u32],
    mut watch: impl FnMut(Epoch) -> PyResult<()>,
) -> PyResult<Model> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let mut model =
        subdeq::model::Classifier::new(device::<f32>()?, config.model.clone(), &mut rng).map_err(raise)?;
    let mut order: Vec<usize> = (0..samples.count()).collect();
    order.shuffle(&mut rng);
    let held_out = order.split_off(samples.count() - (validation_share * samples.count() as f64) as usize);
    let batch = config.batch.min(order.len());
    let steps = (config.epochs * order.len().div_ceil(batch)) as u64;
    let (mut step, mut best) = (0, None);
    for epoch in 1..=config.epochs {
        order.shuffle(&mut rng);
        let (mut loss, mut correct, mut seen) = (0.0, 0, 0);
        // Batch norm has no variance over one sample.
        for picks in order.chunks(batch).filter(|picks| picks.len() > 1) {
            let x = samples.rows(picks);
            let y: Vec<u32> = picks.iter().map(|&i| labels[i]).collect();
            let adam = Adam::new(config.rate.at(step, steps), config.weight_decay, step + 1);
            let report = model.train_step(&x, &y, &adam).map_err(raise)?;
            step += 1;
            loss += report.loss * report.samples as f64;
            correct += report.correct;
            seen += report.samples;
        }
        let percent = |correct: usize, of: usize| 100.0 * (1.0 - correct as f64 / of.max(1) as f64);
        let validation = match held_out.len() {
            0 => None,
            count => Some(percent(hits(&mut model, samples, labels, &held_out)?, count)),
        };
        let error = validation.unwrap_or(percent(correct, seen));
        if best.as_ref().is_none_or(|(least, ..): &(f64, _, _)| error < *least || validation.is_none()) {
            best = Some((error, epoch, model.state().map_err(raise)?));
        }
        watch((epoch, loss / seen.max(1) as f64, percent(correct, seen), validation))?;
    }
    let (error, epoch, state) = best.ok_or_else(|| refuse("a training of no epochs"))?;
    model.set_state(&state).map_err(raise)?;
    // Chosen for these parameters, as by whoever reads them from a file.
    model.equilibria().for_each(|layer| layer.set_step(None));
    let certificate = model.certify().map_err(raise)?;
    let note = ModelNote { config: config.clone(), selected: (epoch, error), certificate };
    Ok(Model { model, note })
}

fn hits(
    model: &mut subdeq::model::Classifier<Cpu<f32>>,
    samples: &Samples,
    labels: &[u32],
    of: &[usize],
) -> PyResult<usize> {
    let mut hits = 0;
    for picks in of.chunks(BATCH) {
        let y: Vec<u32> = picks.iter().map(|&i| labels[i]).collect();
        hits += model.evaluate(&samples.rows(picks), &y).map_err(raise)?.correct;
    }
    Ok(hits)
}

impl Classifier {
    fn new(model: Model) -> Self {
        Self { inner: Mutex::new(model), process: std::process::id() }
    }

    fn open(&self) -> PyResult<MutexGuard<'_, Model>> {
        if self.process != std::process::id() {
            return Err(refuse(
                "this classifier was made before the process was forked, and its threads stayed behind: load it in the \
                 new process, or start processes with the method `spawn`",
            ));
        }
        Ok(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks the model about samples, some at a time.
    fn ask<R>(
        &self,
        x: &[f32],
        mut question: impl FnMut(&mut Model, &[f32]) -> PyResult<Vec<R>>,
    ) -> PyResult<Vec<R>> {
        let mut guard = self.open()?;
        let model = &mut *guard;
        let samples = standardised(&model.note.config, x)?;
        let mut answers = Vec::with_capacity(samples.count());
        for batch in samples.x.chunks(BATCH * samples.len) {
            answers.extend(question(model, batch)?);
        }
        Ok(answers)
    }

    fn answers(&self, x: &[f32]) -> PyResult<Vec<Answer>> {
        self.ask(x, |model, x| model.model.answers(x).map_err(raise))
    }
}

#[pymethods]
impl Classifier {
    /// Trains on samples (n x channels x height x width, contiguous) with labels from 0.
    #[staticmethod]
    #[pyo3(signature = (x, labels, shape, options, progress))]
    fn fit(
        py: Python<'_>,
        x: PyReadonlyArrayDyn<'_, f32>,
        labels: Vec<u32>,
        shape: [usize; 3],
        options: Options,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let x = read("the samples", &x)?;
        let len: usize = shape.iter().product();
        if labels.len() < 2 || labels.len() * len != x.len() {
            return Err(refuse(format!(
                "{} labels for {} numbers in samples of {shape:?}",
                labels.len(),
                x.len()
            )));
        }
        if let Some(at) = x.iter().position(|x| !x.is_finite()) {
            return Err(refuse(format!(
                "number {} of sample {} is {}: inputs must be finite",
                at % len,
                at / len,
                x[at]
            )));
        }
        if !(0.0..0.9).contains(&options.validation) {
            return Err(refuse(format!(
                "validation_fraction must be from 0 to 0.9, not {}",
                options.validation
            )));
        }
        py.detach(|| {
            let config = options.config(shape, x)?;
            let samples = standardised(&config, x)?;
            let watch = |epoch: Epoch| {
                Python::attach(|py| {
                    py.check_signals()?;
                    if let Some(progress) = &progress {
                        progress.call1(py, epoch)?;
                    }
                    Ok(())
                })
            };
            train(&config, options.validation, &samples, &labels, watch).map(Self::new)
        })
    }

    /// Reads a run's folder or a `model.safetensors`.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let file = if path.is_dir() {
                let (folder, _) = RunFolder::open(&path).map_err(raise)?;
                folder.model_path()
            } else {
                path.clone()
            };
            if !file.exists() {
                return Err(refuse(format!(
                    "{} holds no model: a run has one when its training is over",
                    path.display()
                )));
            }
            let (model, note) = load_model(&device::<f32>()?, &file).map_err(raise)?;
            Ok(Self::new(Model { model, note }))
        })
    }

    /// Writes a `model.safetensors`, which `load` and the program `subdeq` read.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| {
            let mut guard = self.open()?;
            let Model { model, note } = &mut *guard;
            save_model(&path, model, note).map_err(raise)
        })
    }

    /// Logits, one row per sample.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        x: PyReadonlyArrayDyn<'_, f32>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let x = read("the samples", &x)?;
        let answers = py.detach(|| self.answers(x))?;
        let rows: Vec<Vec<f64>> = answers.into_iter().map(|answer| answer.logits).collect();
        if rows.is_empty() {
            let classes = self.open()?.model.spec().classes;
            return Ok(PyArray2::zeros(py, [0, classes], false));
        }
        PyArray2::from_vec2(py, &rows).map_err(refuse)
    }

    /// For each sample the applications of the map and whether its solve converged.
    fn solves<'py>(&self, py: Python<'py>, x: PyReadonlyArrayDyn<'_, f32>) -> PyResult<Solves<'py>> {
        let x = read("the samples", &x)?;
        let answers = py.detach(|| self.answers(x))?;
        let iterations = answers.iter().map(|answer| answer.iterations).collect();
        let converged = answers.iter().map(|answer| answer.converged).collect();
        Ok((PyArray1::from_vec(py, iterations), PyArray1::from_vec(py, converged)))
    }

    /// For each sample a radius within which every sample gets the same class, proved; not a number where none is.
    fn radius<'py>(
        &self,
        py: Python<'py>,
        x: PyReadonlyArrayDyn<'_, f32>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let x = read("the samples", &x)?;
        let radii = py.detach(|| {
            self.ask(x, |Model { model, note }, x| certified_radii(model, note, x).map_err(raise))
        })?;
        Ok(PyArray1::from_vec(py, radii.into_iter().map(|radius| radius.unwrap_or(f64::NAN)).collect()))
    }

    /// What is proved about it for all inputs that it is meant for; None for models without a fixed point.
    fn certificate(&self, py: Python<'_>) -> PyResult<Option<Certificate>> {
        py.detach(|| {
            let mut guard = self.open()?;
            let Model { model, note } = &mut *guard;
            of_model(model, note.certificate.as_ref())
        })
    }

    /// How it was trained, as JSON.
    fn config(&self) -> PyResult<String> {
        serde_json::to_string(&self.open()?.note.config).map_err(refuse)
    }

    /// The parameters of a `model.safetensors` by name, with their shapes.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyArrayDyn<f32>>)>> {
        let stored = stored(&*self.open()?)?;
        stored.into_iter().map(|(name, shape, data)| Ok((name, shaped(py, data, &shape)?))).collect()
    }

    /// The weights that its equation has, as they are named there; none for models without a fixed point, or with several equations.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyArrayDyn<f32>>)>> {
        let made = match self.open()?.model.equilibrium() {
            Some(layer) => effective_weights(layer).map_err(raise)?,
            None => Vec::new(),
        };
        made.into_iter().map(|(name, shape, data)| Ok((name, shaped(py, data, &shape)?))).collect()
    }

    /// The same model with other arrays, in the order and of the lengths of `arrays`.
    fn with_arrays(
        &self,
        py: Python<'_>,
        arrays: Vec<(String, PyReadonlyArrayDyn<'_, f32>)>,
    ) -> PyResult<Self> {
        let tensors: Vec<(String, Vec<f32>)> = arrays
            .iter()
            .map(|(name, array)| Ok((name.clone(), read(name, array)?.to_vec())))
            .collect::<PyResult<_>>()?;
        let config = self.open()?.note.config.clone();
        py.detach(|| {
            subdeq::train::check_arrays(&model_arrays(&config.model).map_err(raise)?, &tensors)
                .map_err(raise)?;
            let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
            let mut model = subdeq::model::Classifier::new(device::<f32>()?, config.model.clone(), &mut rng)
                .map_err(raise)?;
            subdeq::train::restore(&mut model, &tensors).map_err(raise)?;
            let certificate = model.certify().map_err(raise)?;
            let selected = (config.epochs, 100.0);
            Ok(Self::new(Model { model, note: ModelNote { config, selected, certificate } }))
        })
    }
}

/// The parameters that a file holds, with their shapes: everything but the optimiser's moments.
fn stored(model: &Model) -> PyResult<Vec<(String, Vec<usize>, Vec<f32>)>> {
    let spec = &model.note.config.model;
    let mut shapes = array_shapes(&model_arrays(spec).map_err(raise)?, spec.pool.is_some());
    let mut kept = Vec::with_capacity(shapes.len());
    for (name, data) in model.model.state().map_err(raise)? {
        if let Some(at) = shapes.iter().position(|(given, _)| *given == name) {
            kept.push((name, shapes.swap_remove(at).1, data));
        }
    }
    Ok(kept)
}

fn shaped<'py>(py: Python<'py>, data: Vec<f32>, shape: &[usize]) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
    PyArray1::from_vec(py, data).reshape(shape).map_err(refuse)
}
