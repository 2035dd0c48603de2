//! A9: networks of equilibria. Layers one after the other have one joint state if each of them has one; with feedback between them,
//! margins must outweigh couplings.

use serde::{Deserialize, Serialize};

use crate::bound::Upper;
use crate::certificate::{Attempt, Certificate};

/// Steps of the search for the weights.
const ROUNDS: usize = 5000;
/// Weights relative to the largest never fall below this.
const LEAST_WEIGHT: f64 = 1e-9;

/// Layers one after the other, anything between them: block triangular, so that the joint state is unique if each layer's is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// What is proved about each layer, first to last.
    pub layers: Vec<Certificate>,
}

impl Sequence {
    /// Whether the joint state is proved to be unique, for every input that the first layer's certificate speaks about and that
    /// gives the others inputs that theirs speak about.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        !self.layers.is_empty() && self.layers.iter().all(|layer| layer.verdict.is_proven())
    }

    /// Bounds of the errors in the 2-norm of each layer's state: `e_i <= own_i + gain_i b_i e_(i-1)`, `own_i` the bound for the
    /// solution of layer `i` with the input that it was given, `b_i` the norm of what lies before layer `i` (`b_0` is not used).
    /// `None` from the first layer on whose gain is not known.
    ///
    /// # Panics
    /// Where there are not as many numbers as layers.
    #[must_use]
    pub fn error_bounds(&self, own: &[f64], between: &[f64]) -> Vec<Option<f64>> {
        assert!(own.len() == self.layers.len() && between.len() == own.len(), "one number per layer");
        let mut errors: Vec<Option<f64>> = Vec::with_capacity(own.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let passed_on = match (i, errors.last(), layer.gain()) {
                (0, ..) => Some(Upper::ZERO),
                (_, Some(Some(before)), Some(gain)) => {
                    Some(Upper::new(gain) * Upper::new(between[i]) * Upper::new(*before))
                }
                _ => None,
            };
            errors.push(passed_on.map(|passed_on| (Upper::new(own[i]) + passed_on).get()));
        }
        errors
    }

    /// An upper bound of the Lipschitz constant in the 2-norm from what enters before the first layer to the last state: the product
    /// of the gains and of the norms of what lies before each layer. `None` where a gain is not known.
    ///
    /// # Panics
    /// Where there are not as many norms as layers.
    #[must_use]
    pub fn lipschitz(&self, between: &[f64]) -> Option<f64> {
        assert_eq!(between.len(), self.layers.len(), "one norm per layer");
        let gains = self.layers.iter().zip(between);
        gains
            .map(|(layer, &norm)| Some(Upper::new(layer.gain()?) * Upper::new(norm)))
            .try_fold(Upper::new(1.0), |product, gain| Some(product * gain?))
            .map(Upper::get)
    }
}

/// Monotone layers that feed one another: `z_i = s(W_ii z_i + sum_j W_ij z_j + y_i)` with margins `m_i` and `||W_ij||_2 <= c_ij`.
///
/// ```
/// use subdeq_theory::network::Feedback;
/// let pair = |c: f64| Feedback { margins: vec![0.5, 2.0], couplings: vec![0.0, c, c, 0.0] };
/// let proof = pair(0.99).certify().expect("0.99^2 < 0.5 * 2");
/// assert!(proof.factor < 1.0 && pair(0.99).recheck(&proof));
/// assert!(pair(1.01).certify().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// `m_i > 0`, rounded down.
    pub margins: Vec<f64>,
    /// `c_ij >= 0`, row major, rounded up; the diagonal is zero.
    pub couplings: Vec<f64>,
}

/// A positive vector `v` with `diag(m)^-1 C v <= factor v`: the joint state is unique for every input, and block Gauss-Seidel over the
/// layers contracts by `factor` in the sup norm weighted by `v` of the layers' 2-norms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedbackProof {
    /// Below one, rounded up.
    pub factor: f64,
    /// One weight per layer.
    pub weights: Vec<f64>,
}

impl Feedback {
    /// The proof, if margins outweigh couplings.
    ///
    /// # Errors
    /// Numbers that are no margins and couplings, or a spectral radius of `diag(m)^-1 C` that is not below one.
    pub fn certify(&self) -> Result<FeedbackProof, Attempt> {
        let failed = |outcome: &str, value: f64| Attempt::new("feedback between layers (A9)", outcome, value);
        let n = self.margins.len();
        if !self.makes_sense() {
            return Err(failed(
                "margins must be positive, couplings a square matrix from 0 with a zero diagonal",
                f64::NAN,
            ));
        }
        // Half of the old vector stays, so that layers that feed one another in turn do no harm.
        let mut weights = vec![1.0; n];
        let mut bound = f64::INFINITY;
        for _ in 0..ROUNDS {
            let row = |i: usize| (0..n).map(|j| self.couplings[i * n + j] * weights[j]).sum::<f64>();
            let image: Vec<f64> = (0..n).map(|i| row(i) / self.margins[i]).collect();
            bound = Upper::largest(image.iter().zip(&weights).map(|(x, v)| x / v)).get();
            if bound < 1.0 || !bound.is_finite() {
                break;
            }
            let next: Vec<f64> = image.iter().zip(&weights).map(|(x, v)| 0.5 * (x + v)).collect();
            let top = Upper::largest(next.iter().copied()).get();
            weights = next.iter().map(|v| (v / top).max(LEAST_WEIGHT)).collect();
        }
        let factor = bound * (1.0 + 1e-9);
        let proof = FeedbackProof { factor, weights };
        if factor < 1.0 && self.recheck(&proof) {
            Ok(proof)
        } else {
            Err(failed("the spectral radius is not below one", bound))
        }
    }

    /// Whether the proof holds, row by row.
    #[must_use]
    pub fn recheck(&self, proof: &FeedbackProof) -> bool {
        let (n, v) = (self.margins.len(), &proof.weights);
        let positive = v.iter().all(|v| *v > 0.0 && v.is_finite());
        self.makes_sense()
            && v.len() == n
            && positive
            && (0.0..1.0).contains(&proof.factor)
            && (0..n).all(|i| {
                let row = self.couplings[i * n..][..n].iter().zip(v);
                let sum: Upper = row.map(|(&c, &v)| Upper::new(c) * Upper::new(v)).sum();
                sum.over(self.margins[i]).over(v[i]).get() <= proof.factor
            })
    }

    fn makes_sense(&self) -> bool {
        let n = self.margins.len();
        n > 0
            && self.couplings.len() == n * n
            && self.margins.iter().all(|m| *m > 0.0 && m.is_finite())
            && self.couplings.iter().all(|c| *c >= 0.0 && c.is_finite())
            && (0..n).all(|i| self.couplings[i * n + i] == 0.0)
    }
}
