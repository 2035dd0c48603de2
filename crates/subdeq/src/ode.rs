//! Neural ODE layers: `dz/dt = s(W z)` on `[0, 1]`, `z(0) = y`, output `z(1)` (the paper's `node-relu` and `node-tanh`).

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::network::{ConvShape, LinearShape};
use subdeq_engine::{Network, Operator, Real};

use crate::{Error, Init, Parameter, Result};

/// The right-hand side's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OdeActivation {
    /// `max(u, 0)`.
    Relu,
    /// `tanh u`.
    Tanh,
}

/// Stages of Dormand and Prince's method (the seventh serves the error estimate and is the first of the next step).
const STAGES: usize = 7;
/// Rows of their tableau: stage `i` is taken at `z + h sum_j A[i][j] k_j`. The last row is also the step itself.
const A: [&[f64]; STAGES] = [
    &[],
    &[1.0 / 5.0],
    &[3.0 / 40.0, 9.0 / 40.0],
    &[44.0 / 45.0, -56.0 / 15.0, 32.0 / 9.0],
    &[19372.0 / 6561.0, -25360.0 / 2187.0, 64448.0 / 6561.0, -212.0 / 729.0],
    &[9017.0 / 3168.0, -355.0 / 33.0, 46732.0 / 5247.0, 49.0 / 176.0, -5103.0 / 18656.0],
    &[35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0],
];
/// Difference of the fifth-order and the fourth-order step.
const ERROR: [f64; STAGES] =
    [71.0 / 57600.0, 0.0, -71.0 / 16695.0, 71.0 / 1920.0, -17253.0 / 339_200.0, 22.0 / 525.0, -1.0 / 40.0];
/// An integration that needs more steps than this is given up.
const MAX_STEPS: usize = 1000;

/// A neural ODE layer.
///
/// One adaptive step serves the whole batch (its error is measured as `||e|| <= tolerance (sqrt(N) + ||z||)`, `N` numbers in
/// the batch), so that, unlike an equilibrium, a sample's last digits depend on its batch. Gradients are those of the steps
/// that were taken, by backpropagation through them with their lengths held fixed.
pub struct NeuralOde<T: Real, D: Network<T>> {
    device: Arc<D>,
    operator: Operator,
    activation: OdeActivation,
    tolerance: f64,
    weight: Parameter<D::Array>,
    /// Zeros: the operations take a bias.
    bias: D::Array,
    bias_gradient: D::Array,
    capacity: usize,
    path: Vec<Step<D::Array>>,
    taken: usize,
    z: D::Array,
    argument: D::Array,
    error: D::Array,
    gz: D::Array,
    gk: Vec<D::Array>,
    numbers: std::marker::PhantomData<T>,
}

/// A step on the way: where it began, its length, its stages.
struct Step<A> {
    h: f64,
    z: A,
    k: Vec<A>,
}

impl<T: Real, D: Network<T>> NeuralOde<T, D> {
    /// A layer on an operator's states.
    ///
    /// # Errors
    /// A tolerance that is not positive, or an empty state.
    pub fn new(
        device: Arc<D>,
        operator: Operator,
        activation: OdeActivation,
        tolerance: f64,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        if !(tolerance > 0.0 && tolerance.is_finite()) {
            return Err(Error::invalid(format!(
                "the tolerance of an integration is a positive number, not {tolerance}"
            )));
        }
        if operator.state_len() == 0 {
            return Err(Error::invalid("a neural ODE without units"));
        }
        let (len, units) = (operator.weight_len(), operator.units());
        let value = init.draw::<T>(len, len / units, rng);
        let array = |len| device.zeros(len);
        let weight =
            Parameter { name: "weight".into(), len, value: device.upload(&value), gradient: array(len) };
        let (bias, bias_gradient) = (array(units), array(units));
        let (z, argument, error, gz) = (array(0), array(0), array(0), array(0));
        Ok(Self {
            device,
            operator,
            activation,
            tolerance,
            weight,
            bias,
            bias_gradient,
            capacity: 0,
            path: Vec::new(),
            taken: 0,
            z,
            argument,
            error,
            gz,
            gk: Vec::new(),
            numbers: std::marker::PhantomData,
        })
    }

    /// The weights.
    pub fn parameter(&self) -> &Parameter<D::Array> {
        &self.weight
    }

    /// The weights, to change.
    pub fn parameter_mut(&mut self) -> &mut Parameter<D::Array> {
        &mut self.weight
    }

    /// The states at time 1 of the last batch.
    pub fn states(&self) -> &D::Array {
        &self.z
    }

    /// Steps of the last integration.
    pub fn steps(&self) -> usize {
        self.taken
    }

    /// Makes room for batches of this many samples.
    pub fn reserve(&mut self, batch: usize) {
        if self.capacity >= batch {
            return;
        }
        let len = batch * self.operator.state_len();
        let array = || self.device.zeros(len);
        (self.z, self.argument, self.error, self.gz) = (array(), array(), array(), array());
        self.gk = (0..STAGES - 1).map(|_| array()).collect();
        self.path = Vec::new();
        self.capacity = batch;
    }

    /// Integrates from `y` at time 0 to time 1.
    ///
    /// # Errors
    /// A state that stops being finite, or more than 1000 steps.
    pub fn forward(&mut self, batch: usize, y: &D::Array) -> Result<()> {
        self.reserve(batch);
        let len = batch * self.operator.state_len();
        let device = self.device.clone();
        device.copy(len, y, &mut self.z)?;
        let (mut t, mut h) = (0.0, 0.1);
        self.taken = 0;
        while t < 1.0 {
            if self.taken == MAX_STEPS {
                return Err(Error::invalid(format!(
                    "the neural ODE needs more than {MAX_STEPS} steps at tolerance {:e}: its weights have grown too large",
                    self.tolerance
                )));
            }
            h = f64::min(h, 1.0 - t);
            let error = self.stages(batch, h)?;
            if !error.is_finite() {
                return Err(Error::invalid(format!(
                    "the state of the neural ODE stopped being finite at time {t:.4}"
                )));
            }
            if error <= 1.0 {
                // The argument of the last stage is the step itself.
                std::mem::swap(&mut self.z, &mut self.argument);
                self.path[self.taken].h = h;
                self.taken += 1;
                t = if 1.0 - t <= h { 1.0 } else { t + h };
            }
            h *= (0.9 * error.max(1e-10).powf(-0.2)).clamp(0.2, 5.0);
        }
        Ok(())
    }

    /// The stages of a step of length `h` from `z`; returns its error in units of the tolerance.
    fn stages(&mut self, batch: usize, h: f64) -> Result<f64> {
        let len = batch * self.operator.state_len();
        let device = self.device.clone();
        if self.path.len() == self.taken {
            let full = self.capacity * self.operator.state_len();
            let array = || device.zeros(full);
            self.path.push(Step { h, z: array(), k: (0..STAGES).map(|_| array()).collect() });
        }
        let taken = self.taken;
        device.copy(len, &self.z, &mut self.path[taken].z)?;
        for (i, row) in A.iter().enumerate() {
            self.stage_argument(len, taken, h, row)?;
            let mut k = std::mem::replace(&mut self.path[taken].k[i], device.zeros(0));
            let computed = self.slope(batch, &mut k);
            self.path[taken].k[i] = k;
            computed?;
        }
        device.fill(len, 0.0, &mut self.error)?;
        for (k, weight) in self.path[taken].k.iter().zip(ERROR) {
            device.axpy(len, h * weight, k, &mut self.error)?;
        }
        let norm = |x: &D::Array| device.dot(len, x, x).map(f64::sqrt);
        Ok(norm(&self.error)? / (self.tolerance * ((len as f64).sqrt() + norm(&self.argument)?)))
    }

    /// `argument = z + h sum_j row_j k_j` of a step on the path.
    fn stage_argument(&mut self, len: usize, step: usize, h: f64, row: &[f64]) -> Result<()> {
        let step = &self.path[step];
        self.device.copy(len, &step.z, &mut self.argument)?;
        for (k, weight) in step.k.iter().zip(row).filter(|(_, weight)| **weight != 0.0) {
            self.device.axpy(len, h * weight, k, &mut self.argument)?;
        }
        Ok(())
    }

    /// `k = s(W argument)`.
    fn slope(&self, batch: usize, k: &mut D::Array) -> Result<()> {
        let (device, w) = (&self.device, &self.weight.value);
        match shape(&self.operator, batch) {
            Shape::Linear(shape) => device.linear(shape, &self.argument, w, &self.bias, k)?,
            Shape::Conv(shape) => device.convolution(shape, &self.argument, w, &self.bias, k)?,
        }
        let len = batch * self.operator.state_len();
        match self.activation {
            OdeActivation::Relu => device.relu(len, k)?,
            OdeActivation::Tanh => device.tanh(len, k)?,
        }
        Ok(())
    }

    /// Pulls a gradient `v` for the states at time 1 back: `gy` becomes the one for the states at time 0, and the weights
    /// get theirs.
    ///
    /// # Errors
    /// Arrays that do not fit.
    pub fn backward(&mut self, batch: usize, v: &D::Array, gy: &mut D::Array) -> Result<()> {
        let len = batch * self.operator.state_len();
        let device = self.device.clone();
        device.fill(self.weight.len, 0.0, &mut self.weight.gradient)?;
        device.copy(len, v, gy)?;
        for step in (0..self.taken).rev() {
            let h = self.path[step].h;
            for (gk, weight) in self.gk.iter_mut().zip(A[STAGES - 1]) {
                device.fill(len, 0.0, gk)?;
                device.axpy(len, h * weight, gy, gk)?;
            }
            for i in (0..STAGES - 1).rev() {
                self.stage_argument(len, step, h, A[i])?;
                let (k, gk) = (&self.path[step].k[i], &mut self.gk[i]);
                match self.activation {
                    OdeActivation::Relu => device.relu_backward(len, k, gk)?,
                    OdeActivation::Tanh => device.tanh_backward(len, k, gk)?,
                }
                let (x, w, gx) = (&self.argument, &self.weight.value, Some(&mut self.gz));
                let (gw, gb) = (&mut self.weight.gradient, &mut self.bias_gradient);
                match shape(&self.operator, batch) {
                    Shape::Linear(shape) => device.linear_backward(shape, x, w, gk, gx, gw, gb)?,
                    Shape::Conv(shape) => device.convolution_backward(shape, x, w, gk, gx, gw, gb)?,
                }
                device.axpy(len, 1.0, &self.gz, gy)?;
                for (gk, weight) in self.gk.iter_mut().zip(A[i]) {
                    device.axpy(len, h * weight, &self.gz, gk)?;
                }
            }
        }
        Ok(())
    }
}

enum Shape {
    Linear(LinearShape),
    Conv(ConvShape),
}

fn shape(operator: &Operator, batch: usize) -> Shape {
    match *operator {
        Operator::Dense { n } => Shape::Linear(LinearShape { batch, inputs: n, outputs: n }),
        Operator::Conv { channels, height, width, padding, .. } => {
            Shape::Conv(ConvShape { batch, height, width, inputs: channels, outputs: channels, padding })
        }
    }
}
