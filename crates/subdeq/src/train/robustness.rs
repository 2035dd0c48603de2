//! What is proved, and what attacks find, about images that are changed a little.

use serde::{Deserialize, Serialize};
use subdeq_engine::{Backend, Images};

use super::ModelNote;
use super::evaluator::{EvaluationOptions, certified_radii, standardised};
use crate::Result;
use crate::model::{Answer, Attack, Ball, Classifier, NetworkGain};

/// Radii that are looked at where nobody says which: those of the literature on CIFAR-10 (36/255) and MNIST.
const USUAL_RADII: [f64; 4] = [36.0 / 255.0, 0.5, 1.0, 1.58];
/// Points of the curve.
const CURVE: usize = 60;
/// Images whose radii are computed at a time, and that are attacked at a time.
const TOGETHER: usize = 256;

/// Accuracy under changes of the images, in percent of the samples: right, and the same within a radius (2-norm of pixels from 0 to 1,
/// whatever numbers the changed pixels are).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Robustness {
    /// The proved gain from pixels to logits, for networks that are built for one.
    pub gain: Option<f64>,
    /// Gains of their parts, in the numbers that the model reads.
    pub parts: Option<NetworkGain>,
    /// At the radii that were asked for: radius, and right and proved to stay so within it.
    pub certified: Vec<(f64, f64)>,
    /// The same from no change to the largest radius that is proved for any image.
    pub curve: Vec<(f64, f64)>,
    /// What attacks found.
    pub attacked: Option<Attacked>,
}

/// Attacks on the first samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attacked {
    /// How many.
    pub samples: usize,
    /// Steps of a try, and tries per image and radius.
    pub effort: (usize, usize),
    /// Of them right without a change, in percent.
    pub clean: f64,
    /// At each radius: right and proved to stay so, and right with no change found that makes them wrong; in percent.
    pub at: Vec<(f64, f64, f64)>,
    /// Images with a proved radius that were attacked within their own radius.
    pub claims: usize,
    /// Of them those that changed their class, which must be none.
    pub broken: usize,
}

/// Radii of all images, and attacks on the first ones; nothing where no radius is proved.
pub(super) fn robustness<D: Backend<Elem = f32>>(
    model: &mut Classifier<D>,
    note: &ModelNote,
    images: &Images,
    answers: &[Answer],
    plan: &EvaluationOptions,
) -> Result<Option<Robustness>> {
    let bounded = note.config.model.lipschitz.is_some();
    if plan.radii.is_empty() && plan.attack == 0 && !bounded {
        return Ok(None);
    }
    let asked = if plan.radii.is_empty() { &USUAL_RADII[..] } else { &plan.radii };
    let mut radii = Vec::with_capacity(answers.len());
    for start in (0..answers.len()).step_by(TOGETHER) {
        let batch: Vec<usize> = (start..answers.len().min(start + TOGETHER)).collect();
        radii.extend(certified_radii(model, note, &standardised(images, &batch))?);
    }
    let right = |i: usize| answers[i].class() == images.label(i) as usize;
    // Wrong answers count as what cannot be kept.
    let kept: Vec<f64> =
        (0..answers.len()).map(|i| if right(i) { radii[i].unwrap_or(0.0) } else { -1.0 }).collect();
    let share = |kept: &[f64], radius: f64| {
        // At no change, right is enough.
        let holds = |&&k: &&f64| k >= radius;
        100.0 * kept.iter().filter(holds).count() as f64 / kept.len().max(1) as f64
    };
    let most = kept.iter().fold(0.0f64, |most, &k| most.max(k));
    let at = |k: usize| most * k as f64 / CURVE as f64;
    let parts = match &note.certificate {
        Some(certificate) => model.gain(certificate)?,
        None => None,
    };
    let least = note.config.data.deviation.iter().fold(f64::INFINITY, |least, &d| least.min(d));
    let attacked = match plan.attack {
        0 => None,
        count => {
            let count = count.min(answers.len());
            let attack = Attack::default();
            let mut found = Attacked {
                samples: count,
                effort: (attack.steps, attack.restarts),
                clean: share(&kept[..count], 0.0),
                ..Attacked::default()
            };
            let victims = Victims { images, count, scale: &note.config.data.deviation };
            for &radius in asked {
                let survived = victims
                    .survive(model, &attack, &|i| right(i).then_some((images.label(i) as usize, radius)))?;
                let percent = 100.0 * survived.survivors as f64 / count.max(1) as f64;
                found.at.push((radius, share(&kept[..count], radius), percent));
            }
            let own =
                victims.survive(model, &attack, &|i| radii[i].map(|radius| (answers[i].class(), radius)))?;
            (found.claims, found.broken) = (own.attacked, own.attacked - own.survivors);
            Some(found)
        }
    };
    Ok(Some(Robustness {
        gain: parts.as_ref().map(|parts| (parts.product / least).next_up()),
        parts,
        certified: asked.iter().map(|&radius| (radius, share(&kept, radius))).collect(),
        curve: (0..=CURVE).map(|k| (at(k), share(&kept, at(k)))).collect(),
        attacked,
    }))
}

/// The first images, to be attacked.
struct Victims<'a> {
    images: &'a Images,
    count: usize,
    /// What distances in each channel are multiplied by.
    scale: &'a [f64],
}

struct Survived {
    attacked: usize,
    survivors: usize,
}

impl Victims<'_> {
    /// Attacks each image for which a class that it should keep and a radius are given.
    fn survive<D: Backend<Elem = f32>>(
        &self,
        model: &mut Classifier<D>,
        attack: &Attack,
        claim: &dyn Fn(usize) -> Option<(usize, f64)>,
    ) -> Result<Survived> {
        let claims: Vec<(usize, usize, f64)> =
            (0..self.count).filter_map(|i| claim(i).map(|(class, radius)| (i, class, radius))).collect();
        let mut survivors = 0;
        for batch in claims.chunks(TOGETHER) {
            let indices: Vec<usize> = batch.iter().map(|&(i, ..)| i).collect();
            let classes: Vec<usize> = batch.iter().map(|&(_, class, _)| class).collect();
            let radii: Vec<f64> = batch.iter().map(|&(.., radius)| radius).collect();
            let ball = Ball { radii: &radii, scale: self.scale };
            let found = model.attack(&standardised(self.images, &indices), &classes, ball, attack)?;
            survivors += found.iter().filter(|found| found.is_none()).count();
        }
        Ok(Survived { attacked: claims.len(), survivors })
    }
}
