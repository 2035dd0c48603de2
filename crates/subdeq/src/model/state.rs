//! Everything that training changes, by name.

use subdeq_engine::Network;

use super::Classifier;
use super::affine::Affine;
use super::core_layer::CoreLayer;
use super::trained::{Moments, Trained};
use crate::{Error, Parameter, Result};

/// Name, length and place of an array.
type Named<A> = (String, usize, A);
/// A parameter by its name in files, with what Adam remembers of it.
type Learned<'a, A> = (String, &'a Parameter<A>, &'a Moments<A>);
/// The same, to change.
type LearnedMut<'a, A> = (String, &'a mut Parameter<A>, &'a mut Moments<A>);

impl<D: Network> Classifier<D> {
    /// Every number that training changes, by name: parameters, running statistics, optimiser moments.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn state(&self) -> Result<Vec<(String, Vec<D::Elem>)>> {
        let read = |(name, len, array): Named<&D::Array>| {
            let mut host = vec![Default::default(); len];
            self.device.read(array, 0, &mut host)?;
            Ok((name, host))
        };
        self.arrays().into_iter().map(read).collect()
    }

    /// Puts back what [`Classifier::state`] gave.
    ///
    /// # Errors
    /// An array that is missing or has another length, by name.
    pub fn set_state(&mut self, state: &[(String, Vec<D::Elem>)]) -> Result<()> {
        let device = self.device.clone();
        for (name, len, array) in self.arrays_mut() {
            let (_, host) = state
                .iter()
                .find(|(given, _)| *given == name)
                .ok_or_else(|| Error::invalid(format!("the array `{name}` of the model is missing")))?;
            if host.len() != len {
                return Err(Error::invalid(format!(
                    "the array `{name}` holds {} numbers, {len} are needed",
                    host.len()
                )));
            }
            device.write(array, 0, host)?;
        }
        Ok(())
    }

    /// A parameter's arrays: its moments, then itself; then the running statistics.
    fn arrays(&self) -> Vec<Named<&D::Array>> {
        let (hidden, mut all) = (self.spec.hidden, Vec::new());
        for (name, parameter, moments) in self.learned() {
            let len = parameter.len;
            all.push((format!("{name}.mean"), len, &moments.mean));
            all.push((format!("{name}.square"), len, &moments.square));
            all.push((name, len, &parameter.value));
        }
        all.push(("norm.running_mean".into(), hidden, &self.norm.running_mean));
        all.push(("norm.running_variance".into(), hidden, &self.norm.running_variance));
        all
    }

    fn arrays_mut(&mut self) -> Vec<Named<&mut D::Array>> {
        let (hidden, mut all) = (self.spec.hidden, Vec::new());
        let Self { core, injections, head, scale, offset, norm, .. } = self;
        for (name, parameter, moments) in learned_mut(core, injections, head, [scale, offset]) {
            let len = parameter.len;
            all.push((format!("{name}.mean"), len, &mut moments.mean));
            all.push((format!("{name}.square"), len, &mut moments.square));
            all.push((name, len, &mut parameter.value));
        }
        all.push(("norm.running_mean".into(), hidden, &mut norm.running_mean));
        all.push(("norm.running_variance".into(), hidden, &mut norm.running_variance));
        all
    }

    /// Every parameter that training changes.
    pub(super) fn learned(&self) -> Vec<Learned<'_, D::Array>> {
        let own = self.core.own().into_iter();
        let own = own.map(|(parameter, moments)| (core_name(parameter), parameter, moments));
        let affines = self.injections.iter().chain([&self.head]).chain(self.core.affine());
        let others = affines.flat_map(|affine| affine.trained()).chain([&self.scale, &self.offset]);
        let others = others.map(|t| (t.parameter.name.clone(), &t.parameter, &t.moments));
        own.chain(others).collect()
    }

    /// The same, to change.
    pub(super) fn learned_mut(&mut self) -> Vec<LearnedMut<'_, D::Array>> {
        let Self { core, injections, head, scale, offset, .. } = self;
        learned_mut(core, injections, head, [scale, offset])
    }
}

fn learned_mut<'a, D: Network>(
    core: &'a mut CoreLayer<D>,
    injections: &'a mut [Affine<D::Array>],
    head: &'a mut Affine<D::Array>,
    norm: [&'a mut Trained<D::Array>; 2],
) -> Vec<LearnedMut<'a, D::Array>> {
    let mut all = Vec::new();
    let mut affines: Vec<_> = injections.iter_mut().chain([head]).collect();
    match core {
        CoreLayer::Explicit { affine, .. } => affines.push(affine),
        other => {
            let own = other.own_mut().into_iter();
            all.extend(own.map(|(parameter, moments)| (core_name(parameter), parameter, moments)));
        }
    }
    let others = affines.into_iter().flat_map(|affine| affine.trained_mut()).chain(norm);
    all.extend(others.map(|t| (t.parameter.name.clone(), &mut t.parameter, &mut t.moments)));
    all
}

/// The core's own parameters carry the names that they have within their layer.
fn core_name<A>(parameter: &Parameter<A>) -> String {
    format!("core.{}", parameter.name)
}
