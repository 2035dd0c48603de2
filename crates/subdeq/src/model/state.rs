//! Everything that training changes, by name.

use subdeq_engine::Backend;

use super::Classifier;
use super::block::Block;
use super::core_layer::CoreLayer;
use super::trained::Moments;
use crate::{Error, Parameter, Result};

/// Name, length and place of an array.
pub(super) type Named<A> = (String, usize, A);

/// Ends the name of a parameter's gradient, which is no part of the state.
pub(super) const GRADIENT: &str = ".gradient";

/// A parameter's arrays: its moments, its gradient, then itself.
fn arrays<'a, A>(name: &str, parameter: &'a Parameter<A>, moments: &'a Moments<A>) -> [Named<&'a A>; 4] {
    let len = parameter.len;
    [
        (format!("{name}.mean"), len, &moments.mean),
        (format!("{name}.square"), len, &moments.square),
        (format!("{name}{GRADIENT}"), len, &parameter.gradient),
        (name.to_owned(), len, &parameter.value),
    ]
}

/// The same, to change.
fn arrays_mut<'a, A>(
    name: &str,
    parameter: &'a mut Parameter<A>,
    moments: &'a mut Moments<A>,
) -> [Named<&'a mut A>; 4] {
    let len = parameter.len;
    [
        (format!("{name}.mean"), len, &mut moments.mean),
        (format!("{name}.square"), len, &mut moments.square),
        (format!("{name}{GRADIENT}"), len, &mut parameter.gradient),
        (name.to_owned(), len, &mut parameter.value),
    ]
}

impl<D: Backend> Classifier<D> {
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
        self.arrays().into_iter().filter(|(name, ..)| !name.ends_with(GRADIENT)).map(read).collect()
    }

    /// Puts back what [`Classifier::state`] gave.
    ///
    /// # Errors
    /// An array that is missing or has another length, by name.
    pub fn set_state(&mut self, state: &[(String, Vec<D::Elem>)]) -> Result<()> {
        let device = self.device.clone();
        for (name, len, array) in self.arrays_mut() {
            if name.ends_with(GRADIENT) {
                continue;
            }
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

    pub(super) fn arrays(&self) -> Vec<Named<&D::Array>> {
        let blocks = || self.blocks.iter();
        let mut all = Vec::new();
        for block in blocks() {
            for (parameter, moments) in block.core.own() {
                all.extend(arrays(&format!("{}core.{}", block.prefix, parameter.name), parameter, moments));
            }
        }
        let affines = blocks().filter_map(|block| block.core.affine()).chain([&self.head]);
        let injections =
            blocks().flat_map(|block| &block.injections).flat_map(|injection| injection.trained());
        let others = affines
            .flat_map(|affine| affine.trained())
            .chain(self.norm.iter().flat_map(|norm| norm.trained()));
        for trained in injections.chain(others) {
            all.extend(arrays(&trained.parameter.name, &trained.parameter, &trained.moments));
        }
        let norms = blocks().flat_map(|block| &block.injections).filter_map(|injection| injection.norm());
        for norm in norms.chain(&self.norm) {
            all.extend(norm.statistics().map(|(name, array)| (name, norm.channels(), array)));
        }
        all
    }

    pub(super) fn arrays_mut(&mut self) -> Vec<Named<&mut D::Array>> {
        let Self { blocks, head, norm, .. } = self;
        let (mut all, mut learned, mut remembered) = (Vec::new(), Vec::new(), Vec::new());
        for Block { shape, prefix, injections, core, .. } in blocks {
            for (trained, statistics) in injections.iter_mut().map(|injection| injection.parts_mut()) {
                learned.extend(trained);
                remembered.extend(statistics.into_iter().map(|(name, array)| (name, shape.hidden, array)));
            }
            match core {
                CoreLayer::Explicit { affine, .. } => learned.extend(affine.trained_mut()),
                other => {
                    for (parameter, moments) in other.own_mut() {
                        let name = format!("{prefix}core.{}", parameter.name);
                        all.extend(arrays_mut(&name, parameter, moments));
                    }
                }
            }
        }
        learned.extend(head.trained_mut());
        if let Some(norm) = norm {
            let channels = norm.channels();
            let (trained, statistics) = norm.parts_mut();
            learned.extend(trained);
            remembered.extend(statistics.map(|(name, array)| (name, channels, array)));
        }
        for trained in learned {
            let name = trained.parameter.name.clone();
            all.extend(arrays_mut(&name, &mut trained.parameter, &mut trained.moments));
        }
        all.extend(remembered);
        all
    }
}
