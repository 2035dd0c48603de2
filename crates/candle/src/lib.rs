//! Equilibrium layers of [`subdeq`] for candle: custom operations with implicit gradients.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use subdeq::map::SplitSign;
//! use subdeq::{Activation, Equilibrium, Scope};
//! use subdeq_candle::EquilibriumLayer;
//!
//! let builder = Equilibrium::dense(8).map(SplitSign::new(Activation::Softsign, 1.2));
//! let layer = EquilibriumLayer::new(builder, 0)?;
//! let y = Tensor::rand(0f32, 1.0, (4, 8), &Device::Cpu)?;
//! let z = layer.forward(&y)?;
//! let gradients = z.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&layer.parameters()[0]).unwrap().dims(), [8, 8]);
//! assert!(layer.certify(Scope::NonnegativeInputs)?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Vectors are batch x n, images batch x channels x height x width, both `f32` on the CPU. Tensors on other devices are refused by
//! a sentence: the engine's own GPU device has arrays of its own.
#![forbid(unsafe_code)]

mod operation;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Error, Result, Tensor, Var};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use subdeq::{Certificate, Cpu, Equilibrium, EquilibriumBuilder, Operator, SampleReport, Scope};

use operation::{Shared, Solve};

/// An equilibrium layer whose parameters are candle's.
pub struct EquilibriumLayer {
    shared: Arc<Shared>,
    operator: Operator,
    injections: usize,
    parameters: Vec<Var>,
}

impl EquilibriumLayer {
    /// Builds the layer and draws its parameters.
    ///
    /// # Errors
    /// Values that contradict each other.
    pub fn new(builder: EquilibriumBuilder, seed: u64) -> Result<Self> {
        let layer = builder.build(&mut ChaCha8Rng::seed_from_u64(seed)).map_err(Error::wrap)?;
        let (operator, injections) =
            (layer.map().operator(), layer.map().equation().form().injection_count());
        let parameters = layer
            .parameters()
            .iter()
            .map(|parameter| {
                let value = &parameter.value[..parameter.len];
                Var::from_slice(value, shape_of(&operator, parameter.len), &Device::Cpu)
            })
            .collect::<Result<_>>()?;
        Ok(Self { shared: Arc::new(Shared::new(layer)), operator, injections, parameters })
    }

    /// The free parameters, for an optimiser; which they are, [`subdeq::Equilibrium::parameters`] says.
    #[must_use]
    pub fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    /// The equilibria of a batch of injections.
    ///
    /// # Errors
    /// Another shape, number type or device; numbers that are not finite; on the way back, an adjoint solve that stopped being
    /// finite. A solve that does not converge is not an error: [`EquilibriumLayer::reports`] says so.
    pub fn forward(&self, y: &Tensor) -> Result<Tensor> {
        if !y.device().is_cpu() || y.dtype() != DType::F32 {
            candle_core::bail!(
                "an injection of {:?} on {:?}: this layer takes f32 on the CPU (`to_dtype`, `to_device`)",
                y.dtype(),
                y.device().location()
            );
        }
        let units = self.operator.units();
        match self.operator {
            Operator::Dense { .. } => {
                let (_, length) = y.dims2()?;
                if length != units * self.injections {
                    candle_core::bail!(
                        "an injection of {length} numbers per sample: {} are needed",
                        units * self.injections
                    );
                }
                self.solve(&y.contiguous()?)
            }
            Operator::Conv { height, width, .. } => {
                let (batch, channels, h, w) = y.dims4()?;
                if (channels, h, w) != (units * self.injections, height, width) {
                    candle_core::bail!(
                        "an injection of {channels} x {h} x {w}: {} x {height} x {width} is needed",
                        units * self.injections
                    );
                }
                // The engine has channels last, several injections one after the other.
                let parts = y.reshape((batch, self.injections, units, height, width))?;
                let z = self.solve(&parts.permute((0, 1, 3, 4, 2))?.contiguous()?)?;
                z.reshape((batch, height, width, units))?.permute((0, 3, 1, 2))
            }
        }
    }

    fn solve(&self, y: &Tensor) -> Result<Tensor> {
        let solve = Solve { shared: self.shared.clone(), parameters: self.parameters.len() };
        match &self.parameters[..] {
            [one] => y.apply_op2(one, solve),
            [one, other] => y.apply_op3(one, other, solve),
            several => candle_core::bail!("a layer of {} parameters", several.len()),
        }
    }

    /// How the solves of the last batch ended.
    #[must_use]
    pub fn reports(&self) -> Vec<SampleReport> {
        self.shared.reports()
    }

    /// What is proved about the fixed points with the present parameters.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn certify(&self, scope: Scope) -> Result<Certificate> {
        let values =
            self.parameters.iter().map(|p| p.flatten_all()?.to_vec1()).collect::<Result<Vec<Vec<f32>>>>()?;
        let slices: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        self.shared.with(|layer| {
            layer.set_parameters(&slices)?;
            layer.certify(scope)
        })
    }
}

/// The shape of a parameter: units x units, or with the taps of a kernel.
fn shape_of(operator: &Operator, len: usize) -> Vec<usize> {
    let units = operator.units();
    let side = ((len / (units * units)) as f64).sqrt().round() as usize;
    if side > 1 { vec![units, units, side, side] } else { vec![units, units] }
}

impl Shared {
    fn new(layer: Equilibrium<Cpu<f32>>) -> Self {
        Self { layer: Mutex::new(layer), reports: Mutex::new(Vec::new()) }
    }

    /// Calls the engine; one thread at a time.
    fn with<R>(&self, work: impl FnOnce(&mut Equilibrium<Cpu<f32>>) -> subdeq::Result<R>) -> Result<R> {
        work(&mut self.layer.lock().unwrap_or_else(PoisonError::into_inner)).map_err(Error::wrap)
    }

    fn reports(&self) -> Vec<SampleReport> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_reports(&self, reports: Vec<SampleReport>) {
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }
}
