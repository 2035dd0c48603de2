//! What a trained model does on data it has not seen: the contents of a run's `evaluation.json`.

use serde::{Deserialize, Serialize};

use super::Robustness;
use crate::model::NetworkCertificate;
use crate::{Certificate, Verdict};

/// Errors, convergence and certificates of a model on a test set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    /// The data set.
    pub data: String,
    /// The model's name.
    pub model: String,
    /// Samples evaluated.
    pub samples: usize,
    /// Misclassified samples, in percent.
    pub error: f64,
    /// Correctly classified samples, in percent.
    pub accuracy: f64,
    /// Mean cross-entropy.
    pub loss: f64,
    /// Share of the samples whose solve converged.
    pub converged: f64,
    /// Share of the samples looked at whose fixed point is proved to be the only one; none if nobody asked.
    pub certified: Option<f64>,
    /// How many samples were looked at for that.
    pub certified_samples: usize,
    /// The verdict for every input; none for models without a fixed point.
    pub all_inputs: Option<VerdictSummary>,
    /// Median of the factors of the samples that have one (the one for all inputs where that is proved).
    pub median_factor: Option<f64>,
    /// `confusion[true][predicted]`.
    pub confusion: Vec<Vec<u64>>,
    /// Names of the classes, in the order of the confusion matrix.
    pub class_names: Vec<String>,
    /// Histogram of the forward iterations: `(iterations, samples)`, ascending.
    pub iterations: Vec<(u32, u64)>,
    /// For a few samples the relative residual after each iteration of the run's solver.
    pub residuals: Vec<Vec<f64>>,
    /// A few test inputs with what the model makes of them.
    pub examples: Vec<Example>,
    /// Accuracy under changes of the images, where it was asked for or the network is built for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub robustness: Option<Robustness>,
}

/// A verdict in three words and a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictSummary {
    /// `proven`, `refuted` or `unproven`.
    pub verdict: String,
    /// The theorem that proves it.
    pub theorem: Option<String>,
    /// Contraction factor of plain iteration, where the theorem gives one.
    pub factor: Option<f64>,
    /// The metric that the factor is about.
    pub metric: Option<String>,
    /// The certificate in words.
    pub words: String,
}

impl From<&Certificate> for VerdictSummary {
    fn from(certificate: &Certificate) -> Self {
        let (theorem, factor, metric) = match &certificate.verdict {
            Verdict::Proven { theorem, factor, metric, .. } => {
                let name = serde_json::to_value(theorem).ok();
                let name = name.and_then(|name| name.as_str().map(str::to_owned));
                (name, *factor, Some(metric.name().to_owned()))
            }
            Verdict::Refuted { .. } | Verdict::Unproven { .. } => (None, None, None),
        };
        Self {
            verdict: certificate.verdict.name().to_owned(),
            theorem,
            factor,
            metric,
            words: certificate.to_string(),
        }
    }
}

impl From<&NetworkCertificate> for VerdictSummary {
    fn from(network: &NetworkCertificate) -> Self {
        let decided = Self::from(network.deciding());
        if network.single().is_some() {
            return decided;
        }
        // Factors are of layers; a theorem is one of the whole where it proves all of them.
        let mut layers = network.layers().iter().map(Self::from);
        let theorem = decided.theorem.filter(|name| layers.all(|layer| layer.theorem.as_ref() == Some(name)));
        Self { verdict: decided.verdict, theorem, factor: None, metric: None, words: network.to_string() }
    }
}

/// One test input and the answer to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// Its place in the test set.
    pub index: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    /// Bytes 0 to 255, channel after channel, row after row.
    pub pixels: Vec<u8>,
    /// The true class.
    pub label: u32,
    /// The class the model gives.
    pub prediction: u32,
    /// The probability it gives it.
    pub probability: f64,
    /// Whether its fixed point is proved to be the only one; none if that was not looked at.
    pub certified: Option<bool>,
    /// Every input closer than this (in the 2-norm of pixels from 0 to 1) gets the same class, proved; none where there
    /// is no such proof.
    pub radius: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_an_older_program_did_not_write_take_their_defaults() {
        let evaluation: Evaluation = serde_json::from_str(r#"{"error": 1.5, "samples": 200}"#).unwrap();
        assert_eq!((evaluation.error, evaluation.samples, evaluation.certified), (1.5, 200, None));
        let text = serde_json::to_string(&evaluation).unwrap();
        assert_eq!(serde_json::from_str::<Evaluation>(&text).unwrap(), evaluation);
    }
}
