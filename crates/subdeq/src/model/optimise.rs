//! Parameters and gradients by name, on the host: for any optimiser.

use subdeq_engine::Network;

use super::Classifier;
use crate::{Error, Parameter, Result};

/// Numbers by the name of their parameter.
type Named<T> = (String, Vec<T>);

impl<D: Network> Classifier<D> {
    /// Every parameter that training changes, by the names of `model.safetensors`.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn named_parameters(&self) -> Result<Vec<Named<D::Elem>>> {
        self.read_all(|parameter| &parameter.value)
    }

    /// The gradient of the mean loss for each of them, from the last [`Classifier::gradients`].
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn named_gradients(&self) -> Result<Vec<Named<D::Elem>>> {
        self.read_all(|parameter| &parameter.gradient)
    }

    /// Changes every parameter by an optimiser of the caller's own, called with the name, the parameter to change and its
    /// gradient from the last [`Classifier::gradients`].
    ///
    /// ```
    /// # use rand::SeedableRng;
    /// # use subdeq::model::{Classifier, ClassifierSpec, Core};
    /// # use subdeq::{Cpu, Layout};
    /// # let core = Core::named("split-sign", Layout::Dense)?;
    /// # let spec = ClassifierSpec {
    /// #     height: 1, width: 2, channels: 1, hidden: 4, pool: None, classes: 2, core, init: Default::default(),
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
        let device = self.device.clone();
        let (mut value, mut gradient) = (Vec::new(), Vec::new());
        for (name, parameter, _) in self.learned_mut() {
            value.resize(parameter.len, D::Elem::default());
            gradient.resize(parameter.len, D::Elem::default());
            device.read(&parameter.value, 0, &mut value)?;
            device.read(&parameter.gradient, 0, &mut gradient)?;
            optimiser(&name, &mut value, &gradient);
            device.write(&mut parameter.value, 0, &value)?;
        }
        self.own_updates += 1;
        self.core.updated(self.own_updates)
    }

    /// Replaces parameters by name; those that are not named stay.
    ///
    /// # Errors
    /// A name that is not one of [`Classifier::named_parameters`], or another length.
    pub fn set_parameters(&mut self, values: &[Named<D::Elem>]) -> Result<()> {
        let device = self.device.clone();
        let mut parameters = self.learned_mut();
        for (name, value) in values {
            let found = parameters.iter_mut().find(|(given, ..)| given == name);
            let (_, parameter, _) =
                found.ok_or_else(|| Error::invalid(format!("the model has no parameter `{name}`")))?;
            if value.len() != parameter.len {
                return Err(Error::invalid(format!(
                    "the parameter `{name}` has {} numbers, {} were given",
                    parameter.len,
                    value.len()
                )));
            }
            device.write(&mut parameter.value, 0, value)?;
        }
        Ok(())
    }

    fn read_all(&self, part: impl Fn(&Parameter<D::Array>) -> &D::Array) -> Result<Vec<Named<D::Elem>>> {
        let mut all = Vec::new();
        for (name, parameter, _) in self.learned() {
            let mut host = vec![D::Elem::default(); parameter.len];
            self.device.read(part(parameter), 0, &mut host)?;
            all.push((name, host));
        }
        Ok(all)
    }
}
