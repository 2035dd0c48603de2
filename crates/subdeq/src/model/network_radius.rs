//! How far an image may move before a trained network can change its mind, proved.
//!
//! One layer after the other: a layer's solution follows its injection by its gain at most, an injection the states before it by the norm
//! of what lies between them (a window's mean of k x k by 1/k), so that
//!
//! `e_i <= own bound_i + gain_i (rounding of the injection + ||U_i|| (rounding of the means + e_(i-1) / k))`
//!
//! bounds how far computed states are from the exact ones, and the product of gains and norms how far these follow the image.

use subdeq_engine::Backend;
use subdeq_engine::network::NormPoolShape;
use subdeq_theory::interval::Interval;

use super::radius::{Found, Input, Reach, numbers, reach, two_norm};
use super::{Classifier, NetworkCertificate};
use crate::Result;

/// A block with what bounds its way from the block before it.
struct Link {
    input: Input,
    /// `||dz|| <= gain ||dy||`.
    gain: f64,
    /// Side of the pooling window before it; 1 for none.
    window: usize,
}

impl Link {
    /// `||dz|| <= gain ||d(states before)||`.
    fn whole_gain(&self) -> Interval {
        Interval::point(self.gain) * Interval::point(self.input.norm) / Interval::point(self.window as f64)
    }
}

/// What a block made of a batch, sample after sample.
struct Passed {
    y: Vec<f64>,
    z: Vec<f64>,
    /// Distances of `z` to the solution for `y`.
    errors: Vec<Option<f64>>,
}

impl<D: Backend> Classifier<D> {
    /// For each image a radius (2-norm, in the numbers that the model reads) within which every image is given the same class by the
    /// exact network; `None` where a layer's certificate does not bound how far its solutions move.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn network_radii(
        &mut self,
        x: &[D::Elem],
        certificate: &NetworkCertificate,
    ) -> Result<Vec<Option<f64>>> {
        if self.is_reflected() {
            return self.reflected_radii(x, certificate);
        }
        if let Some(single) = certificate.single() {
            return self.certified_radii(x, single);
        }
        let answers = self.answers(x)?;
        let Some(links) = self.links(certificate)? else { return Ok(vec![None; answers.len()]) };
        let passed = self.passed(answers.len())?;
        let (head, gain, x) = (self.head()?, product(&links), numbers(x));
        let last = &passed[passed.len() - 1].z;
        let one = |sample: usize| {
            let error = self.distance(&links, &passed, &x, sample)?;
            let z = sample_of(last, answers.len(), sample);
            let found = Found { z, class: answers[sample].class(), error, moved: Vec::new() };
            Some(head.two_norm_radius(&found, gain, 1.0))
        };
        Ok((0..answers.len()).map(one).collect())
    }

    /// How far the last states follow an image at most: `||dz|| <= gain ||dx||` in the 2-norm, with the running statistics of batch norm.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn network_gain(&mut self, certificate: &NetworkCertificate) -> Result<Option<f64>> {
        Ok(self.links(certificate)?.map(|links| product(&links)))
    }

    /// Of all blocks, if each is an equilibrium whose solutions follow in the 2-norm.
    fn links(&mut self, certificate: &NetworkCertificate) -> Result<Option<Vec<Link>>> {
        // Behind a reflected layer the features are not its states.
        if certificate.layers().len() != self.blocks.len() || self.is_reflected() {
            return Ok(None);
        }
        let (mut links, mut window) = (Vec::new(), 1);
        for (block, certificate) in certificate.layers().iter().enumerate() {
            let input = self.input(block)?;
            let Some(layer) = self.equilibrium_of(block) else { return Ok(None) };
            let Some(Reach::TwoNorm { gain }) = reach(layer, certificate)? else { return Ok(None) };
            links.push(Link { input, gain, window });
            window = self.blocks[block].shape.pool.unwrap_or(1);
        }
        Ok(Some(links))
    }

    /// What the blocks made of the last batch.
    fn passed(&mut self, batch: usize) -> Result<Vec<Passed>> {
        let injections = self.read_injections(batch)?;
        let mut passed = Vec::new();
        for (layer, y) in self.equilibria().zip(injections) {
            let z = layer.read_states()?;
            let errors = layer.error_bounds(&y, &z)?;
            let errors = errors.into_iter().map(|bound| bound.map(|bound| bound.value)).collect();
            passed.push(Passed { y: numbers(&y), z: numbers(&z), errors });
        }
        Ok(passed)
    }

    /// How far the last states of a sample are from the exact network's.
    fn distance(&self, links: &[Link], passed: &[Passed], x: &[f64], sample: usize) -> Option<f64> {
        let point = Interval::point;
        let mut distance = point(0.0);
        let image = &x[sample * self.input_len()..][..self.input_len()];
        let pixels = self.spec.height * self.spec.width;
        for (block, (link, layer)) in links.iter().zip(passed).enumerate() {
            let own = layer.errors[sample]?;
            let y = sample_of(&layer.y, layer.errors.len(), sample);
            let moved = if block == 0 {
                self.injection_error(0, &link.input, |pixel, channel| image[channel * pixels + pixel], y)
            } else {
                let before = &passed[block - 1];
                let z = sample_of(&before.z, before.errors.len(), sample);
                let means = Means::of(z, self.blocks[block - 1].shape.pooling(1));
                // The means in f64 stand for the exact ones; how far they are is added.
                distance =
                    point(link.input.norm) * (distance / point(link.window as f64) + point(means.error));
                self.injection_error(block, &link.input, |pixel, channel| means.at(pixel, channel), y)
            };
            distance = point(own) + point(link.gain) * (point(two_norm(&moved)) + distance);
        }
        Some(distance.hi)
    }
}

/// The pooled states of a sample.
struct Means {
    means: Vec<f64>,
    channels: usize,
    /// Distance to the exact ones.
    error: f64,
}

impl Means {
    fn of(z: &[f64], shape: NormPoolShape) -> Self {
        let NormPoolShape { height, width, channels, window, .. } = shape;
        let (rows, columns) = (height / window, width / window);
        let mut means = vec![0.0; rows * columns * channels];
        let mut sizes = vec![0.0; means.len()];
        for (row, column) in (0..rows * window).flat_map(|row| (0..columns * window).map(move |c| (row, c))) {
            let cell = (row / window * columns + column / window) * channels;
            for channel in 0..channels {
                let z = z[(row * width + column) * channels + channel];
                means[cell + channel] += z;
                sizes[cell + channel] += z.abs();
            }
        }
        let area = (window * window) as f64;
        means.iter_mut().for_each(|mean| *mean /= area);
        // Each of the sums and the quotient rounds once; twice that is beyond what the sizes themselves are rounded by.
        let rounded: Vec<f64> =
            sizes.iter().map(|size| 2.0 * (area + 1.0) * f64::EPSILON * size / area).collect();
        Self { means, channels, error: two_norm(&rounded) }
    }

    fn at(&self, pixel: usize, channel: usize) -> f64 {
        self.means[pixel * self.channels + channel]
    }
}

fn sample_of(all: &[f64], samples: usize, sample: usize) -> &[f64] {
    let len = all.len() / samples;
    &all[sample * len..][..len]
}

/// Rounded up.
fn product(links: &[Link]) -> f64 {
    links.iter().fold(Interval::point(1.0), |product, link| product * link.whole_gain()).hi
}
