//! The full evaluation of a trained model.

use std::collections::BTreeMap;

use subdeq_engine::{Backend, Picks, View};

use super::robustness::robustness;
use super::trainer::{EVALUATION_BATCH, in_order};
use super::{Evaluation, Example, Images, ModelNote, Order};
use crate::model::{Answer, Classifier};
use crate::{Certificate, Equilibrium, Error, Result, Verdict};

/// Below this a residual curve is not followed.
const CURVE_FLOOR: f64 = 1e-6;
/// Nor beyond so many iterations.
const CURVE_LIMIT: usize = 60;
/// Residual curves shown.
const CURVES: usize = 4;

/// How much of an evaluation is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationOptions {
    /// Samples to certify one by one, where nothing is proved for all inputs.
    pub certify: usize,
    /// Samples to show.
    pub examples: usize,
    /// Threads that certify; 0 for all cores.
    pub threads: usize,
    /// Radii (2-norm of pixels from 0 to 1) at which the certified accuracy is computed; usual ones for a network that is built for
    /// them, if none are given.
    pub radii: Vec<f64>,
    /// Samples to attack at these radii, and within their own.
    pub attack: usize,
}

impl Default for EvaluationOptions {
    fn default() -> Self {
        Self { certify: 100, examples: 24, threads: 0, radii: Vec::new(), attack: 0 }
    }
}

/// Errors, convergence and certificates on a set of images.
///
/// # Errors
/// Images that do not fit the model.
pub fn evaluate_in_full<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    note: &ModelNote,
    images: &Images,
    plan: &EvaluationOptions,
) -> Result<Evaluation> {
    check_fit(model, images)?;
    let answers = answers(model, images)?;
    let verdicts = sample_verdicts(model, note, images, plan)?;
    let samples = answers.len();
    let share = |count: usize| count as f64 / samples.max(1) as f64;
    let mut confusion = vec![vec![0; model.spec().classes]; model.spec().classes];
    let (mut wrong, mut loss, mut iterations) = (0, 0.0, BTreeMap::new());
    for (index, answer) in answers.iter().enumerate() {
        let label = images.label(index) as usize;
        confusion[label][answer.class()] += 1;
        wrong += usize::from(answer.class() != label);
        loss += answer.cross_entropy(label);
        *iterations.entry(answer.iterations).or_insert(0) += 1;
    }
    let converged = answers.iter().filter(|answer| answer.converged).count();
    Ok(Evaluation {
        data: note.config.data.name.clone(),
        model: note.config.model.core.name().to_owned(),
        samples,
        error: 100.0 * share(wrong),
        accuracy: 100.0 - 100.0 * share(wrong),
        loss: loss / samples.max(1) as f64,
        converged: share(converged),
        certified: verdicts.share(),
        certified_samples: verdicts.samples.len(),
        all_inputs: note.certificate.as_ref().map(Into::into),
        median_factor: verdicts.median_factor(),
        confusion,
        class_names: note.config.data.class_names.clone(),
        iterations: if note.certificate.is_some() { iterations.into_iter().collect() } else { Vec::new() },
        residuals: curves(model, images)?,
        examples: examples(model, note, images, (&answers, &verdicts), plan.examples)?,
        robustness: robustness(model, note, images, &answers, plan)?,
    })
}

/// For each image (standardised, as the model reads it) a radius in the 2-norm of pixels from 0 to 1 within which every
/// image is given the same class, proved; `None` where there is no such proof.
///
/// # Errors
/// Images that do not fit.
pub fn certified_radii<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    note: &ModelNote,
    x: &[f32],
) -> Result<Vec<Option<f64>>> {
    let Some(certificate) = &note.certificate else {
        return Ok(vec![None; x.len() / model.input_len()]);
    };
    let radii = model.network_radii(x, certificate)?;
    // Standardised numbers move by 1/deviation per pixel value, and are themselves rounded to f32.
    let deviation = note.config.data.deviation.iter().fold(f64::INFINITY, |m, &d| m.min(d));
    let in_pixels = |(radius, x): (Option<f64>, &[f32])| {
        let size = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        let rounded = 1.001 * f64::from(f32::EPSILON) * size;
        let radius = (radius? - rounded) * deviation * (1.0 - 1e-12);
        (radius > 0.0).then_some(radius)
    };
    Ok(radii.into_iter().zip(x.chunks_exact(model.input_len())).map(in_pixels).collect())
}

fn check_fit<D: Backend<Elem = f32>>(model: &Classifier<D>, images: &Images) -> Result<()> {
    let spec = model.spec();
    let (found, expected) = (images.shape(), [spec.channels, spec.height, spec.width]);
    let label = (0..images.len()).map(|i| images.label(i)).max().unwrap_or(0) as usize;
    if found != expected || label >= spec.classes || images.is_empty() {
        return Err(Error::Invalid(format!(
            "the model takes images of {expected:?} (channels, height, width) in {} classes, but there are {} of {found:?} \
             with labels up to {label}",
            spec.classes,
            images.len()
        )));
    }
    Ok(())
}

fn answers<D: Backend<Elem = f32>>(model: &mut Classifier<D>, images: &Images) -> Result<Vec<Answer>> {
    let device = model.device().clone();
    let set = device.images(images, model.spec().classes)?;
    let list = device.integers(&in_order(images.len()))?;
    let mut found = Vec::with_capacity(images.len());
    for start in (0..images.len()).step_by(EVALUATION_BATCH) {
        let range = start..images.len().min(start + EVALUATION_BATCH);
        found.extend(model.answers_of(&set, Picks { list: &list, range })?);
    }
    Ok(found)
}

pub(super) fn standardised(images: &Images, indices: &[usize]) -> Vec<f32> {
    let len = images.image_len();
    let mut x = vec![0.0; indices.len() * len];
    for (&index, x) in indices.iter().zip(x.chunks_exact_mut(len)) {
        images.standardise(index, View::default(), Order::ChannelsFirst, x);
    }
    x
}

/// What is proved about the first samples.
struct SampleVerdicts {
    /// For each sample looked at: whether its fixed point is proved to be the only one, and the factor.
    samples: Vec<(bool, Option<f64>)>,
}

impl SampleVerdicts {
    fn share(&self) -> Option<f64> {
        let proven = self.samples.iter().filter(|(proven, _)| *proven).count();
        (!self.samples.is_empty()).then(|| proven as f64 / self.samples.len() as f64)
    }

    fn median_factor(&self) -> Option<f64> {
        let mut factors: Vec<f64> = self.samples.iter().filter_map(|(_, factor)| *factor).collect();
        factors.sort_by(f64::total_cmp);
        factors.get(factors.len() / 2).copied()
    }
}

fn sample_verdicts<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    note: &ModelNote,
    images: &Images,
    plan: &EvaluationOptions,
) -> Result<SampleVerdicts> {
    let count = plan.certify.min(images.len());
    let summary = |certificate: &Certificate| match certificate.verdict {
        Verdict::Proven { factor, .. } => (true, factor),
        Verdict::Refuted { .. } | Verdict::Unproven { .. } => (false, None),
    };
    let samples = match &note.certificate {
        None => Vec::new(),
        // What holds for every input holds for each.
        Some(all) if all.is_proven() => vec![all.single().map_or((true, None), summary); count],
        // What a deeper layer gets is known up to the error of the ones before it: no single input to prove anything for.
        Some(_) if model.equilibrium().is_none() => Vec::new(),
        Some(_) => {
            let proofs = each_sample(model, images, count, |layer, y| layer.prove_samples(y, plan.threads))?;
            proofs.iter().map(summary).collect()
        }
    };
    Ok(SampleVerdicts { samples })
}

/// The verdicts for the first `count` images, one by one.
///
/// # Errors
/// A model without a fixed point or of several blocks; images that do not fit.
pub fn certify_samples<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    images: &Images,
    count: usize,
    threads: usize,
) -> Result<Vec<Certificate>> {
    each_sample(model, images, count, |layer, y| layer.certify_samples(y, threads))
}

fn each_sample<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    images: &Images,
    count: usize,
    verdicts: impl Fn(&mut Equilibrium<D>, &[f32]) -> Result<Vec<Certificate>>,
) -> Result<Vec<Certificate>> {
    let indices: Vec<usize> = (0..count.min(images.len())).collect();
    let mut certificates = Vec::with_capacity(indices.len());
    for batch in indices.chunks(EVALUATION_BATCH) {
        let y = model.injected(&standardised(images, batch))?;
        let layer = model.equilibrium().ok_or_else(|| {
            Error::Invalid("only a model of one equilibrium is certified image by image".into())
        })?;
        certificates.extend(verdicts(layer, &y)?);
    }
    Ok(certificates)
}

fn curves<D: Backend<Elem = f32>>(model: &mut Classifier<D>, images: &Images) -> Result<Vec<Vec<f64>>> {
    let indices: Vec<usize> = (0..CURVES.min(images.len())).collect();
    let y = model.injected(&standardised(images, &indices))?;
    match model.equilibrium_of(0) {
        Some(layer) => layer.residual_curves(&y, CURVE_FLOOR, CURVE_LIMIT),
        None => Ok(Vec::new()),
    }
}

/// Wrong answers first, they are what people want to see; then the first right ones.
fn examples<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    note: &ModelNote,
    images: &Images,
    (answers, verdicts): (&[Answer], &SampleVerdicts),
    count: usize,
) -> Result<Vec<Example>> {
    let wrong = |&index: &usize| answers[index].class() != images.label(index) as usize;
    let (wrong, right): (Vec<usize>, Vec<usize>) = (0..answers.len()).partition(wrong);
    let mut chosen: Vec<usize> = wrong.into_iter().take(count / 2).collect();
    chosen.extend(right.into_iter().take(count - chosen.len()));
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let radii = certified_radii(model, note, &standardised(images, &chosen))?;
    let [channels, height, width] = images.shape();
    let white = f64::from(note.config.data.white);
    let byte = |&pixel: &u8| (f64::from(pixel) * 255.0 / white).round() as u8;
    let everywhere = note.certificate.as_ref().is_some_and(|all| all.is_proven());
    let example = |(index, radius): (usize, Option<f64>)| {
        let answer = &answers[index];
        let one_by_one = verdicts.samples.get(index).map(|(proven, _)| *proven);
        Example {
            index,
            height,
            width,
            channels,
            pixels: images.bytes(index).iter().map(byte).collect(),
            label: images.label(index),
            prediction: answer.class() as u32,
            probability: answer.probability(answer.class()),
            certified: if everywhere { Some(true) } else { one_by_one },
            radius,
        }
    };
    Ok(chosen.into_iter().zip(radii).map(example).collect())
}
