//! Everything that decides what a training on a graph computes, but the graph.

use serde::{Deserialize, Serialize};
use subdeq_engine::{Graphs, Opinion};
use subdeq_theory::certificate::{Theorem, Verdict};

use super::{GraphCertificate, GraphMode, GraphModel, GraphProblem, Joined, OutputActivation};
use crate::train::fits_memory;
use crate::{Error, Result};

/// Most epochs: their metrics are kept in memory until a checkpoint, and nobody waits for more.
const MAX_EPOCHS: usize = 1_000_000_000;
/// Networks that a training holds: weights, gradient, two moments, the best.
const NETWORKS: u64 = 5;

/// Which epoch's model counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// The one with the most validation nodes right, the last of several.
    #[default]
    BestValidation,
    /// The last one, whatever comes out before it: no node is held back for validation.
    LastEpoch,
}

/// Learning from nodes without labels: what the evaluated weights said about them after the epoch before, sharpened, is what a
/// step's weights, with other dropout, should say. Opinions are the model's own; no label enters that is not a training node's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Teaching {
    /// What the mean cross-entropy to the opinions weighs beside that to the labels.
    pub weight: f64,
    /// Over so many epochs the weight grows from nothing: first opinions are worth little.
    pub warm_up: usize,
    /// How sharp opinions are; below 1 they are surer than the model.
    pub temperature: f64,
    /// How far classes are made equally frequent in the opinions, from 0 to 1: without it large classes swallow small ones.
    pub levelling: f64,
}

impl Teaching {
    /// With that weight, and the rest as it proved good where a few nodes of each class are labelled.
    #[must_use]
    pub const fn new(weight: f64) -> Self {
        Self { weight, warm_up: 20, temperature: 0.5, levelling: 0.5 }
    }

    /// The weight in an epoch, from 1.
    pub(super) fn weight_in(&self, epoch: u64) -> f64 {
        self.weight * (epoch as f64 / self.warm_up.max(1) as f64).min(1.0)
    }

    pub(super) fn opinion(&self) -> Opinion {
        Opinion { temperature: self.temperature, levelling: self.levelling }
    }

    fn check(&self) -> Result<()> {
        let Self { weight, temperature, levelling, .. } = *self;
        let sensible = weight >= 0.0
            && weight.is_finite()
            && temperature > 0.0
            && temperature.is_finite()
            && (0.0..=1.0).contains(&levelling);
        if !sensible {
            return Err(Error::invalid(format!(
                "teaching with the weight {weight}, the temperature {temperature} and levelling by {levelling}: the weight must \
                 be a number from 0, the temperature one above 0, levelling lies between 0 and 1"
            )));
        }
        Ok(())
    }
}

/// How a model is trained. [`GraphConfig::new`] gives the values of the published code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphConfig {
    /// The architecture.
    pub model: GraphModel,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// Share of the features' entries that a step leaves out.
    pub feature_dropout: f64,
    /// Share of the hidden units that a step leaves out.
    pub hidden_dropout: f64,
    /// Share of the graph's entries that a step leaves out.
    pub edge_dropout: f64,
    /// `penalty * sum W2^2` is added to the loss.
    pub penalty: f64,
    /// Step length of Adam.
    pub rate: f64,
    /// Adam's L2 term for all weights.
    pub weight_decay: f64,
    /// At most so many epochs.
    pub epochs: usize,
    /// Training ends after more than this many epochs without a better (or equal) validation accuracy.
    pub patience: usize,
    /// Which epoch's model counts.
    #[serde(default)]
    pub selection: Selection,
    /// What is evaluated is a running mean of the weights, of which each epoch keeps this share (0: the weights themselves). Few
    /// labelled nodes make epochs differ by more than their number does; their mean does not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub averaging: f64,
    /// How nodes without labels are learned from, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teaching: Option<Teaching>,
    /// Decides the first weights and all dropout.
    pub seed: u64,
    /// Threads (0: one per core); no influence on the result.
    pub threads: usize,
}

impl GraphConfig {
    /// The settings of the published code. A model whose certificate rests on the norm of the graph's matrix is
    /// trained without edge dropout, which would scale the matrix beyond it; so is one over hyperedges, whose incidences cannot be
    /// dropped.
    #[must_use]
    pub fn new(model: GraphModel) -> Self {
        let certified_by_norm = model.mode_is_equilibrium()
            && model.map.normalisation().is_none()
            && (model.map.is_linear() || model.output == OutputActivation::Signed);
        let over_hyperedges = model.joined == Joined::Hyperedges;
        Self {
            model,
            hidden: 64,
            feature_dropout: 0.5,
            hidden_dropout: 0.5,
            edge_dropout: if certified_by_norm || over_hyperedges { 0.0 } else { 0.5 },
            penalty: 0.0025,
            rate: 0.01,
            weight_decay: 0.0,
            epochs: 2000,
            patience: 500,
            selection: Selection::BestValidation,
            averaging: 0.0,
            teaching: None,
            seed: 0,
            threads: 1,
        }
    }

    /// Refuses a network that does not fit into the memory, and a training without an end.
    ///
    /// # Errors
    /// A sentence with the sizes.
    pub fn check_sizes<D: Graphs<Elem = f32>>(&self, problem: &GraphProblem<D>) -> Result<()> {
        if self.epochs > MAX_EPOCHS {
            return Err(Error::invalid(format!(
                "a training of {} epochs has no end: at most {MAX_EPOCHS} can be asked for",
                self.epochs
            )));
        }
        let (features, nodes) = (problem.features().cols as u64, problem.rows_here().len() as u64);
        let hidden = self.hidden as u64;
        let width = features.checked_add(problem.classes() as u64);
        let weights = width.and_then(|width| width.checked_mul(hidden)?.checked_mul(4 * NETWORKS));
        let states = nodes.checked_mul(4).and_then(|bytes| bytes.checked_mul(hidden));
        let bytes = weights.zip(states).and_then(|(weights, states)| weights.checked_add(states));
        fits_memory(
            bytes,
            &format!("a network of {features} features and {hidden} hidden units for {nodes} nodes"),
        )
    }

    pub(super) fn check(&self, certificate: &GraphCertificate) -> Result<()> {
        self.model.check()?;
        for (name, rate) in [
            ("feature dropout", self.feature_dropout),
            ("hidden dropout", self.hidden_dropout),
            ("edge dropout", self.edge_dropout),
            ("averaging", self.averaging),
        ] {
            if !(0.0..1.0).contains(&rate) {
                return Err(Error::invalid(format!("the {name} must lie in [0, 1), got {rate}")));
            }
        }
        for (name, value) in
            [("learning rate", self.rate), ("penalty", self.penalty), ("weight decay", self.weight_decay)]
        {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::invalid(format!("the {name} must be a finite number >= 0, got {value}")));
            }
        }
        if self.hidden == 0 || self.epochs == 0 {
            return Err(Error::invalid("training needs at least one hidden unit and one epoch"));
        }
        self.teaching.map_or(Ok(()), |teaching| teaching.check())?;
        let by_norm = matches!(
            certificate.verdict,
            Verdict::Proven { theorem: Theorem::GraphPropagation | Theorem::PowerMeans, .. }
        );
        if self.model.mode_is_equilibrium() && by_norm && self.edge_dropout > 0.0 {
            return Err(Error::invalid(format!(
                "edge dropout {} scales the remaining entries by {}, so that the matrix may have a norm above one and \
                 the equation of `{}` no solution, or several: set the edge dropout to 0, or unroll the propagation",
                self.edge_dropout,
                1.0 / (1.0 - self.edge_dropout),
                self.model.name
            )));
        }
        Ok(())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde wants it
fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

impl GraphModel {
    fn mode_is_equilibrium(&self) -> bool {
        matches!(self.mode, GraphMode::Equilibrium { .. })
    }
}
