//! Parameters and gradients by name, on the host: for any optimiser.

use subdeq_engine::Backend;

use super::state::GRADIENT;
use super::{Classifier, STEP_PERIOD};
use crate::{Error, Result};

/// Numbers by the name of their parameter.
type Named<T> = (String, Vec<T>);

impl<D: Backend> Classifier<D> {
    /// Every parameter that training changes, by the names of `model.safetensors`.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn named_parameters(&self) -> Result<Vec<Named<D::Elem>>> {
        self.read_all("")
    }

    /// The gradient of the mean loss for each of them, from the last [`Classifier::gradients`].
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn named_gradients(&self) -> Result<Vec<Named<D::Elem>>> {
        self.read_all(GRADIENT)
    }

    /// Changes every parameter by an optimiser of the caller's own, called with the name, the parameter to change and its
    /// gradient from the last [`Classifier::gradients`].
    ///
    /// ```
    /// # use rand::SeedableRng;
    /// # use subdeq::model::{Classifier, ClassifierSpec, CoreSpec};
    /// # use subdeq::{Cpu, Layout};
    /// # let core = CoreSpec::named("split-sign", Layout::Dense)?;
    /// # let spec = ClassifierSpec {
    /// #     height: 1, width: 2, channels: 1, hidden: 4, pool: None, injection_norm: false, classes: 2, core,
    /// #     init: Default::default(), deeper: Vec::new(), lipschitz: None,
    /// # };
    /// # let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
    /// # let mut model = Classifier::new(Cpu::<f32>::new(1)?.into(), spec, &mut rng)?;
    /// # let (x, labels) = ([0.0, 1.0, 1.0, 0.0], [0, 1]);
    /// let before = model.gradients(&x, &labels)?.loss;
    /// for _ in 0..100 {
    ///     model.gradients(&x, &labels)?;
    ///     model.update_with(|_name, parameter, gradient| {
    ///         parameter.iter_mut().zip(gradient).for_each(|(p, g)| *p -= 0.1 * g);
    ///     })?;
    /// }
    /// assert!(model.gradients(&x, &labels)?.loss < 0.5 * before);
    /// # Ok::<(), subdeq::Error>(())
    /// ```
    ///
    /// # Errors
    /// A device that cannot be read or written. What is not finite is found by the next pass.
    pub fn update_with(&mut self, mut optimiser: impl FnMut(&str, &mut [D::Elem], &[D::Elem])) -> Result<()> {
        let gradients = self.named_gradients()?;
        let mut values = self.named_parameters()?;
        for ((name, value), (_, gradient)) in values.iter_mut().zip(&gradients) {
            optimiser(name, value, gradient);
        }
        self.set_parameters(&values)?;
        self.hold()?;
        for layer in self.equilibria().filter(|layer| layer.changes().is_multiple_of(STEP_PERIOD)) {
            layer.choose_step()?;
        }
        Ok(())
    }

    /// Replaces parameters by name; those that are not named stay.
    ///
    /// # Errors
    /// A name that is not one of [`Classifier::named_parameters`], or another length.
    pub fn set_parameters(&mut self, values: &[Named<D::Elem>]) -> Result<()> {
        let names = self.parameter_names();
        if let Some((name, _)) = values.iter().find(|(name, _)| !names.contains(name)) {
            return Err(Error::invalid(format!("the model has no parameter `{name}`")));
        }
        let device = self.device.clone();
        for (name, len, array) in self.arrays_mut() {
            let Some((_, value)) = values.iter().find(|(given, _)| *given == name) else { continue };
            if value.len() != len {
                return Err(Error::invalid(format!(
                    "the parameter `{name}` has {len} numbers, {} were given",
                    value.len()
                )));
            }
            device.write(array, 0, value)?;
        }
        Ok(())
    }

    /// What has a gradient is a parameter.
    fn parameter_names(&self) -> Vec<String> {
        let names = self.arrays().into_iter().map(|(name, ..)| name);
        names.filter_map(|name| name.strip_suffix(GRADIENT).map(str::to_owned)).collect()
    }

    /// For each parameter the array of its name with that ending.
    fn read_all(&self, ending: &str) -> Result<Vec<Named<D::Elem>>> {
        let arrays = self.arrays();
        let mut all = Vec::new();
        for name in self.parameter_names() {
            let wanted = format!("{name}{ending}");
            let found = arrays.iter().find(|(given, ..)| *given == wanted);
            let (_, len, array) =
                found.ok_or_else(|| Error::invalid(format!("the model has no array `{wanted}`")))?;
            let mut host = vec![D::Elem::default(); *len];
            self.device.read(array, 0, &mut host)?;
            all.push((name, host));
        }
        Ok(all)
    }
}
