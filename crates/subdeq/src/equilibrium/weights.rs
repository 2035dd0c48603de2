//! The parameters of a layer and the weights that are made of them.

use rand::Rng;
use subdeq_engine::{Backend, EngineError, Real, ShapedMap, free_parameters};

use super::Parameter;
use crate::map::ParametrisedMap;
use crate::memory::fits;
use crate::{Error, Init, Parametrisation, Result};

/// How often the parameters were changed. Weights, a loaded plan and a certificate each remember the version that they are of,
/// so that none is ever taken for that of other parameters.
pub(super) type Version = u64;

/// Parameters, weights and the gradients of both, on the device.
pub(super) struct LayerWeights<D: Backend> {
    parameters: Vec<Parameter<D::Array>>,
    version: Version,
    weights: D::Weights,
    /// The version that the weights are of, once they were made.
    made: Option<Version>,
    /// The gradients for the weights.
    pub gradients: Vec<D::Array>,
    /// The gradient for the tied shift, where there is one.
    tied_gradient: Option<D::Array>,
}

impl<D: Backend> LayerWeights<D> {
    pub fn new(
        device: &D,
        architecture: &ParametrisedMap,
        map: &ShapedMap,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        let (parametrisation, units) = (architecture.parametrisation(), map.operator().units());
        let free = free_parameters(parametrisation, map);
        let lens: Vec<usize> = (0..map.weight_count()).map(|k| map.weight_len(k)).collect();
        // Values, gradients and what is drawn; weights and their gradients.
        let numbers = free.iter().map(|&(_, len)| 3 * len as u64).sum::<u64>()
            + lens.iter().map(|&len| 2 * len as u64).sum::<u64>();
        fits(device, numbers)?;
        let weights = device.weights(map, parametrisation)?;
        let mut parameters = Vec::with_capacity(free.len());
        for (name, len) in free {
            let value = match parametrisation {
                Parametrisation::MonotoneTied { .. } if name == "b" => {
                    vec![D::Elem::from_f64(Parametrisation::FIRST_SKEW)]
                }
                _ => init.draw(len, len / units, rng),
            };
            let (value, gradient) = (device.upload(&value)?, device.zeros(len)?);
            parameters.push(Parameter { name: name.into(), len, value, gradient });
        }
        let gradients = lens.iter().map(|&len| device.zeros(len)).collect::<Result<_, _>>()?;
        let tied_gradient = device.tied_shift(&weights).is_some().then(|| device.zeros(units)).transpose()?;
        Ok(Self { parameters, version: 0, weights, made: None, gradients, tied_gradient })
    }

    pub fn parameters(&self) -> &[Parameter<D::Array>] {
        &self.parameters
    }

    /// The parameters, to change: from here on the weights are those of an older version.
    pub fn parameters_mut(&mut self) -> &mut [Parameter<D::Array>] {
        self.version += 1;
        &mut self.parameters
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the weights are those of the parameters.
    pub fn is_current(&self) -> bool {
        self.made == Some(self.version)
    }

    /// Makes the weights of the parameters, if those changed.
    pub fn refresh(&mut self, device: &D, architecture: &ParametrisedMap) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        let free: Vec<&D::Array> = self.parameters.iter().map(|parameter| &parameter.value).collect();
        device.make_weights(&mut self.weights, &free).map_err(|error| match error {
            EngineError::NotFinite { what, index, value } => Error::invalid(format!(
                "entry {index} of the parameter `{what}` of the layer `{}` is {value}: training has diverged (lower the \
                 learning rate) or the file it was read from is damaged",
                architecture.name()
            )),
            other => other.into(),
        })?;
        self.made = Some(self.version);
        Ok(())
    }

    /// The weight arrays, on the device.
    pub fn arrays<'a>(&'a self, device: &D) -> &'a [D::Array] {
        device.weight_arrays(&self.weights)
    }

    /// The tied shift, on the device.
    pub fn tied_shift<'a>(&'a self, device: &D) -> Option<&'a D::Array> {
        device.tied_shift(&self.weights)
    }

    /// The weights, on the host.
    pub fn read(&self, device: &D, map: &ShapedMap) -> Result<Vec<Vec<D::Elem>>> {
        let read = |(k, array): (usize, &D::Array)| {
            let mut host = vec![Default::default(); map.weight_len(k)];
            device.read(array, 0, &mut host)?;
            Ok(host)
        };
        self.arrays(device).iter().enumerate().map(read).collect()
    }

    /// The parameters, on the host.
    pub fn read_parameters(&self, device: &D) -> Result<Vec<Vec<D::Elem>>> {
        let read = |parameter: &Parameter<D::Array>| {
            let mut host = vec![Default::default(); parameter.len];
            device.read(&parameter.value, 0, &mut host)?;
            Ok(host)
        };
        self.parameters.iter().map(read).collect()
    }

    /// Sets the gradients for the weights to zero.
    pub fn clear_gradients(&mut self, device: &D, map: &ShapedMap) -> Result<()> {
        for (k, gradient) in self.gradients.iter_mut().enumerate() {
            device.fill(map.weight_len(k), 0.0, gradient)?;
        }
        Ok(())
    }

    /// From gradients for the weights, and for the injections `gy` of a batch, to gradients for the parameters.
    pub fn pull(&mut self, device: &D, map: &ShapedMap, batch: usize, gy: &D::Array) -> Result<()> {
        if let Some(sums) = &mut self.tied_gradient {
            let units = map.operator().units();
            device.sum_rows(batch * map.operator().state_len() / units, units, gy, sums)?;
        }
        let (free, mut gradients): (Vec<&D::Array>, Vec<&mut D::Array>) =
            self.parameters.iter_mut().map(|p| (&p.value, &mut p.gradient)).unzip();
        let tied = self.tied_gradient.as_ref();
        Ok(device.pull_parameters(&mut self.weights, &free, &self.gradients, tied, &mut gradients)?)
    }
}
