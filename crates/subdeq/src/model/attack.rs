//! Gradient attacks: images near a given one that are given another class, searched for.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_engine::network::largest;
use subdeq_engine::{Backend, Real};

use super::Classifier;
use crate::{Error, Result};

/// How hard images are attacked: projected gradient descent of the margin in a ball of the 2-norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attack {
    /// Steps of each try.
    pub steps: usize,
    /// Tries: against the nearest class from the image itself, against the next ones, then against the nearest from random places.
    pub restarts: usize,
    /// Of the random places.
    pub seed: u64,
}

impl Default for Attack {
    fn default() -> Self {
        Self { steps: 40, restarts: 5, seed: 0 }
    }
}

/// Tries against the classes that are nearest.
const TARGETED: usize = 3;
/// How far a step goes, times the radius over the number of steps.
const STRIDE: f64 = 2.5;
/// Of a radius, what is used: the attacked image must lie within it after rounding.
const INSIDE: f64 = 1.0 - 1e-5;

/// Logits of images, and gradients for the images.
type Answered<T> = (Vec<T>, Vec<T>);

/// Where an attack looks for other classes.
#[derive(Clone, Copy, Debug)]
pub struct Ball<'a> {
    /// For each image, how far (2-norm) it may be moved.
    pub radii: &'a [f64],
    /// What distances in each channel are multiplied by before they are measured: the deviation that pixels were divided by.
    pub scale: &'a [f64],
}

impl<D: Backend> Classifier<D> {
    /// The logits of images, and the gradients for the images of `sum_k weights[k] logits[k]`, with given weights for each image.
    ///
    /// # Errors
    /// Images that do not fit; a network with batch norm.
    pub fn input_gradients(
        &mut self,
        x: &[D::Elem],
        weights: impl FnOnce(&[D::Elem]) -> Vec<D::Elem>,
    ) -> Result<Answered<D::Elem>> {
        if self.spec.lipschitz.is_none() {
            return Err(Error::invalid(
                "gradients for images are there for networks with a bounded gain only (train --lipschitz), which have no batch norm",
            ));
        }
        let logits = self.logits(x)?;
        let gradient = self.pull_to_images(&weights(&logits))?;
        Ok((logits, gradient))
    }

    /// For each image an image in its ball that is not given the class that it should have, if one was found.
    ///
    /// # Errors
    /// As [`Classifier::input_gradients`].
    pub fn attack(
        &mut self,
        x: &[D::Elem],
        classes: &[usize],
        ball: Ball<'_>,
        attack: &Attack,
    ) -> Result<Vec<Option<Vec<D::Elem>>>> {
        let len = self.input_len();
        let mut found: Vec<Option<Vec<D::Elem>>> = vec![None; classes.len()];
        let mut rng = ChaCha8Rng::seed_from_u64(attack.seed);
        for restart in 0..attack.restarts {
            let open: Vec<usize> = (0..classes.len()).filter(|&i| found[i].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let image = |&i: &usize| Walk {
                centre: x[i * len..][..len].iter().map(|x| x.to_f64()).collect(),
                offset: vec![0.0; len],
                class: classes[i],
                radius: ball.radii[i] * INSIDE,
                rank: if restart < TARGETED { restart } else { 0 },
                target: None,
            };
            let mut walks: Vec<Walk> = open.iter().map(image).collect();
            if restart >= TARGETED {
                walks.iter_mut().for_each(|walk| walk.leave(&mut rng, ball.scale));
            }
            for step in 0..=attack.steps {
                let at: Vec<D::Elem> = walks.iter().flat_map(Walk::place).collect();
                let classes = self.spec.classes;
                let (logits, gradient) = self.input_gradients(&at, |logits| {
                    let rows = logits.chunks_exact(classes).zip(&mut walks);
                    rows.flat_map(|(logits, walk)| walk.direction(logits)).collect()
                })?;
                for (k, (walk, &i)) in walks.iter_mut().zip(&open).enumerate() {
                    if found[i].is_none() && largest(&logits[k * classes..][..classes]) != walk.class {
                        found[i] = Some(at[k * len..][..len].to_vec());
                    }
                    if step < attack.steps {
                        let length = STRIDE * walk.radius / attack.steps as f64;
                        walk.step(&gradient[k * len..][..len], length, ball.scale);
                    }
                }
            }
        }
        Ok(found)
    }
}

/// One image on its way.
struct Walk {
    centre: Vec<f64>,
    offset: Vec<f64>,
    class: usize,
    radius: f64,
    /// Against which of the other classes, by their logits at the image itself.
    rank: usize,
    /// That class, once it is known; none: whichever is nearest.
    target: Option<usize>,
}

impl Walk {
    fn place<T: Real>(&self) -> impl Iterator<Item = T> {
        self.centre.iter().zip(&self.offset).map(|(x, d)| T::from_f64(x + d))
    }

    /// The weights of the margin over the class that the walk goes to.
    fn direction<T: Real>(&mut self, logits: &[T]) -> Vec<T> {
        let mut others: Vec<usize> = (0..logits.len()).filter(|&k| k != self.class).collect();
        others.sort_by(|&a, &b| logits[b].to_f64().total_cmp(&logits[a].to_f64()));
        let target = match self.target {
            Some(target) => target,
            None => others[self.rank.min(others.len() - 1)],
        };
        if self.rank > 0 {
            self.target = Some(target);
        }
        let weight = |k: usize| match k {
            k if k == self.class => T::ONE,
            k if k == target => T::from_f64(-1.0),
            _ => T::ZERO,
        };
        (0..logits.len()).map(weight).collect()
    }

    /// A step down the gradient, and back into the ball.
    fn step<T: Real>(&mut self, gradient: &[T], length: f64, scale: &[f64]) {
        // In measured distances `s d` the gradient is `g / s`.
        let s = |at: usize| scale[at / (gradient.len() / scale.len())];
        let norm =
            gradient.iter().enumerate().map(|(at, g)| (g.to_f64() / s(at)).powi(2)).sum::<f64>().sqrt();
        if norm > 0.0 {
            for (at, (d, g)) in self.offset.iter_mut().zip(gradient).enumerate() {
                *d -= length / norm * g.to_f64() / (s(at) * s(at));
            }
        }
        self.back_into_ball(scale);
    }

    /// A random place in the ball.
    fn leave(&mut self, rng: &mut impl Rng, scale: &[f64]) {
        let share = scale.len() as f64 / self.centre.len() as f64;
        self.offset
            .iter_mut()
            .for_each(|d| *d = rng.random_range(-1.0..1.0) * self.radius * share.sqrt() / scale[0]);
        self.back_into_ball(scale);
    }

    fn back_into_ball(&mut self, scale: &[f64]) {
        let each = self.offset.len() / scale.len();
        let square: f64 = self.offset.iter().enumerate().map(|(at, d)| (d * scale[at / each]).powi(2)).sum();
        let norm = square.sqrt();
        if norm > self.radius {
            self.offset.iter_mut().for_each(|d| *d *= self.radius / norm);
        }
    }
}
