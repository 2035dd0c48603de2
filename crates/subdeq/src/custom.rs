//! A user's own map, run by the same solvers.

use std::sync::Arc;

use subdeq_engine::{Cpu, CustomMap as EngineMap, CustomMaps, Measure, Real, SampleReport, Start};
use subdeq_theory::certificate::{Evidence, Metric, States, Theorem, Verdict};

use crate::solution::require_converged;
use crate::{Error, Result, Rule, Solution, Solver, Stopping};

/// A fixed-point map of a user's own.
///
/// It is called from several threads, for different samples.
pub trait CustomMap<T>: Sync {
    /// Numbers in a state.
    fn state_len(&self) -> usize;
    /// Numbers in an injection.
    fn injection_len(&self) -> usize;
    /// `out = F(z; y)`.
    fn apply(&self, z: &[T], y: &[T], out: &mut [T]);
    /// `gz = (dF/dz)' g` at `(z, y)`.
    fn vjp_state(&self, z: &[T], y: &[T], g: &[T], gz: &mut [T]);
    /// `gy = (dF/dy)' g` at `(z, y)`.
    fn vjp_injection(&self, z: &[T], y: &[T], g: &[T], gy: &mut [T]);
    /// Numbers that the map has learned or is to learn; 0 for a map without parameters.
    fn parameter_len(&self) -> usize {
        0
    }
    /// `gp += (dF/dp)' g` at `(z, y)`: added, since the samples of a batch share the parameters.
    fn vjp_parameters(&self, z: &[T], y: &[T], g: &[T], gp: &mut [T]) {
        let _ = (z, y, g, gp);
    }
    /// A bound, for every `z > 0` and every `y >= 0`, of the strong degree: the least `c` with `|dF/dz| z <= c F` (see
    /// [`subdeq_theory::calculus`]). Below one, it proves that the fixed point is unique. `None` promises nothing.
    fn strong_degree(&self) -> Option<f64> {
        None
    }
}

/// What [`CustomLayer::gradients`] gives.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomGradients<T> {
    /// For the injections, sample after sample.
    pub injections: Vec<T>,
    /// For the map's parameters, summed over the samples.
    pub parameters: Vec<T>,
}

/// A user's own map with a solver and a stopping rule. `examples/custom_map.rs` trains the parameters of one.
///
/// ```
/// use subdeq::{CustomLayer, CustomMap, Picard, Stopping};
///
/// /// z_i = sqrt(z_i) / 2 + y_i + 1: the strong degree is at most that of the square root.
/// struct Root;
/// impl CustomMap<f64> for Root {
///     fn state_len(&self) -> usize { 2 }
///     fn injection_len(&self) -> usize { 2 }
///     fn apply(&self, z: &[f64], y: &[f64], out: &mut [f64]) {
///         (0..2).for_each(|i| out[i] = z[i].sqrt() / 2.0 + y[i] + 1.0)
///     }
///     fn vjp_state(&self, z: &[f64], _: &[f64], g: &[f64], gz: &mut [f64]) {
///         (0..2).for_each(|i| gz[i] = g[i] / (4.0 * z[i].sqrt()))
///     }
///     fn vjp_injection(&self, _: &[f64], _: &[f64], g: &[f64], gy: &mut [f64]) { gy.copy_from_slice(g) }
///     fn strong_degree(&self) -> Option<f64> { Some(0.5) }
/// }
///
/// let layer = CustomLayer::new(Root, Picard, Stopping::relative(1e-12))?;
/// let solution = layer.solve(&[0.0, 0.5])?.require_converged()?;
/// let z = solution.z[0];
/// assert!((z - z.sqrt() / 2.0 - 1.0).abs() < 1e-10);
/// assert!(layer.verdict().is_proven());
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct CustomLayer<D, M> {
    map: M,
    device: Arc<D>,
    solver: Solver,
    stopping: Stopping,
}

/// A map with the injections of a batch, as the engine wants it.
struct WithInjections<'a, T, M> {
    map: &'a M,
    y: &'a [T],
}

impl<T: Real, M: CustomMap<T>> WithInjections<'_, T, M> {
    fn injection(&self, sample: usize) -> &[T] {
        let len = self.map.injection_len();
        &self.y[sample * len..(sample + 1) * len]
    }
}

impl<T: Real, M: CustomMap<T>> EngineMap<T> for WithInjections<'_, T, M> {
    fn state_len(&self) -> usize {
        self.map.state_len()
    }

    fn apply(&self, sample: usize, z: &[T], out: &mut [T]) {
        self.map.apply(z, self.injection(sample), out);
    }

    fn vjp(&self, sample: usize, z: &[T], g: &[T], out: &mut [T]) {
        self.map.vjp_state(z, self.injection(sample), g, out);
    }
}

impl<T: Real, M: CustomMap<T>> CustomLayer<Cpu<T>, M>
where
    Cpu<T>: CustomMaps<Elem = T>,
{
    /// A layer on all cores of this machine.
    ///
    /// # Errors
    /// A splitting (they need to know the map), or a certified distance without a proof.
    pub fn new(map: M, solver: impl Into<Solver>, stopping: Stopping) -> Result<Self> {
        Self::on(Arc::new(Cpu::new(0)?), map, solver, stopping)
    }
}

impl<D: CustomMaps, M: CustomMap<D::Elem>> CustomLayer<D, M> {
    /// A layer on a device that can call back to the host.
    ///
    /// # Errors
    /// As [`CustomLayer::new`].
    pub fn on(device: Arc<D>, map: M, solver: impl Into<Solver>, stopping: Stopping) -> Result<Self> {
        let layer = Self { map, device, solver: solver.into(), stopping };
        if matches!(layer.solver, Solver::PeacemanRachford(_) | Solver::ForwardBackward(_)) {
            return Err(Error::invalid(
                "a splitting needs to know W: use Picard, Anderson or Broyden for a map of your own",
            ));
        }
        layer.resolved_stopping(stopping)?;
        Ok(layer)
    }

    /// What is proven, for every `y >= 0`: uniqueness among positive states if the map brings a strong degree below one (Theorem 1), else nothing.
    pub fn verdict(&self) -> Verdict {
        match self.map.strong_degree() {
            Some(degree) if degree < 1.0 => Verdict::Proven {
                theorem: Theorem::StrongDegree,
                factor: Some(degree),
                metric: Metric::Thompson,
                states: States::Positive,
                starts: Some(States::Positive),
                evidence: Evidence::StrongDegree { degree },
            },
            Some(degree) => Verdict::Unproven {
                why: format!("the strong degree that the map brings is {degree}, not below 1"),
                tried: Vec::new(),
            },
            None => Verdict::Unproven {
                why: "a map of the user's own, without a proof".into(),
                tried: Vec::new(),
            },
        }
    }

    fn resolved_stopping(&self, stopping: Stopping) -> Result<subdeq_engine::Stopping> {
        match (stopping.rule, self.verdict()) {
            (Rule::Relative(tolerance), _) => Ok(stopping.resolved(Measure::Relative, tolerance)),
            (Rule::Absolute(tolerance), _) => Ok(stopping.resolved(Measure::Absolute, tolerance)),
            (Rule::Certified(distance), Verdict::Proven { factor: Some(factor), .. }) => {
                Ok(stopping.resolved(Measure::Thompson, distance * (1.0 - factor)))
            }
            _ => Err(Error::NoCertificate {
                map: "a map of your own".into(),
                why: "it brings no strong degree below 1, so no residual bounds the distance to the solution"
                    .into(),
            }),
        }
    }

    fn batch_of(&self, y: &[D::Elem]) -> Result<usize> {
        let len = self.map.injection_len();
        if len == 0 || y.is_empty() || !y.len().is_multiple_of(len) {
            return Err(Error::invalid(format!(
                "{} numbers are not a whole number of injections of {len}",
                y.len()
            )));
        }
        Ok(y.len() / len)
    }

    /// Solves the batch of injections in `y`, started at 1.
    ///
    /// # Errors
    /// A length that does not fit.
    pub fn solve(&self, y: &[D::Elem]) -> Result<Solution<D::Elem>> {
        let batch = self.batch_of(y)?;
        let mut z = vec![Default::default(); batch * self.map.state_len()];
        let mut reports = vec![SampleReport::default(); batch];
        let (solver, stopping) = (self.solver.resolved(1.0), self.resolved_stopping(self.stopping)?);
        let map = WithInjections { map: &self.map, y };
        self.device.solve_custom(
            &map,
            batch,
            &solver,
            &stopping,
            Start::Constant(1.0),
            &mut z,
            &mut reports,
        )?;
        Ok(Solution { z, samples: reports.into_iter().map(Into::into).collect() })
    }

    /// The gradients for the injections and for the map's parameters, given one for the states `z`, by the implicit function
    /// theorem: `g = (dF/dz)' g + v` is solved for each sample, then pulled back.
    ///
    /// # Errors
    /// Lengths that do not fit; an adjoint solve that does not converge.
    pub fn gradients(&self, y: &[D::Elem], z: &[D::Elem], v: &[D::Elem]) -> Result<CustomGradients<D::Elem>> {
        let g = self.adjoint(y, z, v)?;
        let (len, injection_len) = (self.map.state_len(), self.map.injection_len());
        let mut injections = vec![Default::default(); y.len()];
        let mut parameters = vec![Default::default(); self.map.parameter_len()];
        let samples = z.chunks_exact(len).zip(y.chunks_exact(injection_len)).zip(g.chunks_exact(len));
        // In the order of the samples, so that the sums are the same bits every time.
        for (((z, y), g), gy) in samples.zip(injections.chunks_exact_mut(injection_len)) {
            self.map.vjp_injection(z, y, g, gy);
            self.map.vjp_parameters(z, y, g, &mut parameters);
        }
        Ok(CustomGradients { injections, parameters })
    }

    /// `g` with `g = (dF/dz)' g + v`, for each sample.
    fn adjoint(&self, y: &[D::Elem], z: &[D::Elem], v: &[D::Elem]) -> Result<Vec<D::Elem>> {
        let batch = self.batch_of(y)?;
        let mut g = vec![Default::default(); batch * self.map.state_len()];
        if z.len() != g.len() || v.len() != g.len() {
            return Err(Error::invalid(format!(
                "{} numbers of states and {} of their gradients: {batch} samples have {}",
                z.len(),
                v.len(),
                g.len()
            )));
        }
        let mut reports = vec![SampleReport::default(); batch];
        let stopping = match self.stopping.rule {
            Rule::Certified(distance) => self.stopping.resolved(Measure::Relative, distance),
            _ => self.resolved_stopping(self.stopping)?,
        };
        let map = WithInjections { map: &self.map, y };
        let solver = self.solver.resolved(1.0);
        self.device.adjoint_custom(&map, batch, z, v, &solver, &stopping, &mut g, &mut reports)?;
        require_converged("adjoint solves", reports.iter().map(|r| (r.outcome, r.iterations, r.residual)))?;
        Ok(g)
    }

    /// The map.
    pub fn map(&self) -> &M {
        &self.map
    }

    /// The map, to change its parameters.
    pub fn map_mut(&mut self) -> &mut M {
        &mut self.map
    }
}
