//! What is proved about a layer, and what follows from it.

use subdeq_engine::{Backend, Measure, Operator, PEACEMAN_RACHFORD_PART, Real, Solver as Resolved};
use subdeq_map::{Map, Operator as Weighted};
use subdeq_theory::certificate::{Certificate, Evidence, Metric, Scope, Verdict};
use subdeq_theory::certify::Certifier;

use super::Equilibrium;
use super::weights::Version;
use crate::error_bound::{ErrorBounds, extremes};
use crate::parallel::in_parallel;
use crate::solver::Rule;
use crate::{Error, ErrorBound, Parametrisation, Result, Stopping, theory};

/// Of the distance asked for, the share that the residual may use up: the rest is for rounding.
const CERTIFIED_SHARE: f64 = 0.9;

/// The certifier of a layer and its last verdict for all inputs, with the version of the weights that it is about.
#[derive(Default)]
pub(super) struct Certified {
    certifier: Certifier,
    certificate: Option<(Version, Certificate)>,
}

/// What a certificate is about.
struct Question {
    equation: Map,
    /// The weights as the equation reads them.
    operator: Weighted,
    /// The hidden ones of the gains.
    hidden: Option<Weighted>,
}

impl<D: Backend> Equilibrium<D> {
    /// The widest set of inputs that the layer is meant for: every real one for a monotone map, else every `y >= 0`.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope::widest(&self.map.equation())
    }

    /// What can be promised about the fixed points for the inputs of a scope; inputs in it are in the layer's order.
    ///
    /// # Errors
    /// Parameters that are not finite or an injection that does not fit.
    pub fn certify(&mut self, scope: Scope) -> Result<Certificate> {
        let Question { equation, operator, .. } = self.question()?;
        let on = self.map.operator();
        let scope = match scope {
            Scope::InputSet { ymax } => Scope::InputSet { ymax: theory::state(&on, &ymax) },
            Scope::Sample { y } => Scope::Sample { y: theory::state(&on, &y) },
            unordered => unordered,
        };
        let certified = self.certified.certifier.certify(&equation, &operator, &scope);
        certified.map_err(|error| Error::invalid(error.to_string()))
    }

    /// The equation that certificates speak about, in [`Equilibrium::operator`]: that of [`Equilibrium::map`], but for tied monotone
    /// weights, which are proved by the `A` and `b` that they are made of.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn equation(&mut self) -> Result<Map> {
        Ok(self.question()?.equation)
    }

    /// The weights as [`Equilibrium::equation`] reads them: what a certificate is about and [`Certificate::recheck`] takes.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn operator(&mut self) -> Result<Weighted> {
        Ok(self.question()?.operator)
    }

    /// Whether a certificate, from a file for example, is about this layer's equation and holds for its weights.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn confirms(&mut self, certificate: &Certificate) -> Result<bool> {
        let Question { equation, operator, .. } = self.question()?;
        Ok(certificate.map == equation && certificate.recheck(&operator).is_ok())
    }

    /// Whether [`Equilibrium::prove`] takes less time than a few batches: dense layers of moderate width, and
    /// convolutions whose form alone is the proof.
    pub fn proves_quickly(&self) -> bool {
        match self.map.operator() {
            Operator::Dense { n } => n <= 256,
            Operator::Conv { .. } => {
                let free = self.architecture.parametrisation() == Parametrisation::Free;
                !free && !self.architecture.is_monotone()
            }
        }
    }

    /// A proof for all inputs of [`Equilibrium::scope`] if there is a quick one; refutations are not searched for.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn prove(&mut self) -> Result<Certificate> {
        let Question { equation, operator, .. } = self.question()?;
        let certified = Certifier::proofs_only().certify(&equation, &operator, &self.scope());
        certified.map_err(|error| Error::invalid(error.to_string()))
    }

    /// The verdicts for the injections in `y`, one by one, by `threads` threads (0: as many as the machine has).
    ///
    /// # Errors
    /// Parameters that are not finite or a length that does not fit.
    pub fn certify_samples(&mut self, y: &[D::Elem], threads: usize) -> Result<Vec<Certificate>> {
        self.verdicts(y, threads, &Certifier::new())
    }

    /// The same without searching for refutations, which takes a hundred times as long where nothing is proved.
    ///
    /// # Errors
    /// Parameters that are not finite or a length that does not fit.
    pub fn prove_samples(&mut self, y: &[D::Elem], threads: usize) -> Result<Vec<Certificate>> {
        self.verdicts(y, threads, &Certifier::proofs_only())
    }

    fn verdicts(&mut self, y: &[D::Elem], threads: usize, certifier: &Certifier) -> Result<Vec<Certificate>> {
        self.batch_of(y)?;
        let Question { equation, operator, .. } = self.question()?;
        let on = self.map.operator();
        let samples: Vec<&[D::Elem]> = y.chunks_exact(self.map.injection_len()).collect();
        let one = |y: &[D::Elem]| {
            let y: Vec<f64> = y.iter().map(|y| y.to_f64()).collect();
            // A certifier of its own: what is found does not depend on what was looked at before.
            certifier.clone().certify(&equation, &operator, &Scope::Sample { y: theory::state(&on, &y) })
        };
        in_parallel(threads, &samples, one)
            .into_iter()
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::invalid(error.to_string()))
    }

    /// The present equation and weights. Tied monotone weights are proved by what they are made of (A8), the others as they are.
    fn question(&mut self) -> Result<Question> {
        let in_f64 = |w: Vec<D::Elem>| w.into_iter().map(Real::to_f64).collect::<Vec<f64>>();
        let (on, equation) = (self.map.operator(), self.map.equation());
        self.refresh()?;
        if let Parametrisation::MonotoneTied { margin } = self.architecture.parametrisation() {
            let free = self.weights.read_parameters(&self.device)?;
            let free: Vec<Vec<f64>> = free.into_iter().map(in_f64).collect();
            let equation = equation.tied(margin, free[1][0])?;
            return Ok(Question { equation, operator: theory::operator(&on, &free[0])?, hidden: None });
        }
        let weights: Vec<Vec<f64>> = self.weights()?.into_iter().map(in_f64).collect();
        let (operator, hidden) = theory::operators(&on, &weights)?;
        Ok(Question { equation, operator, hidden })
    }

    /// The verdict for all inputs of [`Equilibrium::scope`] about the present weights, computed once.
    pub(crate) fn certificate(&mut self) -> Result<&Certificate> {
        let version = self.weights.version();
        let known = match self.certified.certificate.take() {
            Some((of, certificate)) if of == version => certificate,
            _ => self.certify(self.scope())?,
        };
        Ok(&self.certified.certificate.insert((version, known)).1)
    }

    /// Proven bounds of the distance of each state in `z` to the solution for its injection in `y`: one application of
    /// the map in `f64`, rounded outward. `None` where there is no certificate for [`Equilibrium::scope`] to base one on, or the
    /// injection lies outside of it.
    ///
    /// # Errors
    /// Lengths that do not fit.
    pub fn error_bounds(&mut self, y: &[D::Elem], z: &[D::Elem]) -> Result<Vec<Option<ErrorBound>>> {
        let batch = self.batch_of(y)?;
        let (states, injections) = (self.map.operator().state_len(), self.map.injection_len());
        if z.len() != batch * states {
            return Err(Error::invalid(format!(
                "{} numbers are not {batch} states of {states} each",
                z.len()
            )));
        }
        let certificate = self.certificate()?.clone();
        let Question { operator, hidden, .. } = self.question()?;
        let bounds = ErrorBounds::new(&certificate, &operator, hidden.as_ref())?;
        let on = self.map.operator();
        let in_order =
            |x: &[D::Elem]| theory::state(&on, &x.iter().map(|x| x.to_f64()).collect::<Vec<f64>>());
        let samples: Vec<_> = z.chunks_exact(states).zip(y.chunks_exact(injections)).collect();
        // A convolution of many channels takes a tenth of a second for each.
        Ok(in_parallel(0, &samples, |(z, y)| bounds.of(&in_order(z), &in_order(y))))
    }

    /// The engine's stopping rule for a solver; for a certified distance, the residual that implies it.
    pub(super) fn resolved_stopping(
        &mut self,
        stopping: Stopping,
        solver: &Resolved,
    ) -> Result<subdeq_engine::Stopping> {
        let distance = match stopping.rule {
            Rule::Relative(tolerance) => return Ok(stopping.resolved(Measure::Relative, tolerance)),
            Rule::Absolute(tolerance) => return Ok(stopping.resolved(Measure::Absolute, tolerance)),
            Rule::Certified(distance) => distance * CERTIFIED_SHARE,
        };
        let certificate = self.certificate()?;
        let none = |why: String| Err(Error::NoCertificate { map: certificate.map.to_string(), why });
        let Verdict::Proven { factor, metric, evidence, .. } = &certificate.verdict else {
            return none(format!(
                "uniqueness {} is {} with these weights, so no residual bounds the distance to the solution; use \
                 Stopping::relative, or a map with a proof (split-sign, monotone, ..)",
                certificate.scope,
                certificate.verdict.name()
            ));
        };
        let spread = |scaling: &[f64]| {
            let (least, most) = extremes(scaling);
            least / most
        };
        if let Evidence::Splitting { weights, margin, lipschitz, .. } = evidence {
            // The bound is (1 + ||W||/m) ||F(z) - z||.
            let tolerance =
                distance / ((1.0 + (1.0 + lipschitz) / margin) * residual_gain(solver, *lipschitz));
            return Ok(stopping.resolved(Measure::Absolute, tolerance * spread(weights)));
        }
        let Some(factor) = factor else {
            return none("the proof gives uniqueness without a rate".into());
        };
        let residual = distance * (1.0 - factor);
        let (measure, tolerance) = match metric {
            Metric::Thompson => (Measure::Thompson, residual),
            Metric::Hilbert => (Measure::Hilbert, residual),
            Metric::WeightedSup { v } => (Measure::Sup, residual * spread(v)),
            Metric::WeightedTwoNorm { t } => (Measure::Absolute, residual * spread(t)),
            Metric::None => return none("the proof gives uniqueness without a rate".into()),
        };
        Ok(stopping.resolved(measure, tolerance))
    }
}

/// What `||F(z) - z||` is at most for the answer `z` of a solver whose last residual is `r`, in `r`, where `||I - W|| <= L`.
fn residual_gain(solver: &Resolved, lipschitz: f64) -> f64 {
    match *solver {
        // An iteration changes u by its part of 2 (z - h), and ||F(z) - z|| <= (L + 1/t) ||z - h||.
        Resolved::PeacemanRachford { step } => (lipschitz + 1.0 / step) / (2.0 * PEACEMAN_RACHFORD_PART),
        // z = prox_t((1 - t) e + t (W e + c)) of the e before it: the argument of z = s(..) is off by (I - W) (e - z) - (e - z) / t.
        Resolved::ForwardBackward { step } => lipschitz + 1.0 / step,
        // The answer may be the image of what r was measured at, and ||W|| <= 1 + L.
        Resolved::Picard | Resolved::Anderson { .. } | Resolved::Broyden { .. } => 1.0 + lipschitz,
    }
}
