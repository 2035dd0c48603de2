//! What is proved about a classifier: a certificate for each of its equilibrium layers, and one sentence for all of them.
//!
//! Layers that are solved one after the other, with anything between them, have exactly one joint state if each of them has exactly one
//! for every input that it can get.

use std::fmt;

use serde::{Deserialize, Serialize};
use subdeq_engine::Backend;
use subdeq_theory::certificate::{Certificate, Scope, Verdict};

use super::Classifier;
use crate::{Equilibrium, Error, Result};

/// The certificates of a classifier's equilibrium layers, in their order: at least one. In files, that of a single layer is a
/// certificate and those of several are a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "OneOrSeveral", into = "OneOrSeveral")]
pub struct NetworkCertificate {
    layers: Vec<Certificate>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(Box<Certificate>),
    Several(Vec<Certificate>),
}

impl From<NetworkCertificate> for OneOrSeveral {
    fn from(network: NetworkCertificate) -> Self {
        let mut layers = network.layers;
        match layers.len() {
            1 => Self::One(Box::new(layers.remove(0))),
            _ => Self::Several(layers),
        }
    }
}

impl TryFrom<OneOrSeveral> for NetworkCertificate {
    type Error = Error;

    fn try_from(stored: OneOrSeveral) -> Result<Self> {
        let layers = match stored {
            OneOrSeveral::One(certificate) => vec![*certificate],
            OneOrSeveral::Several(layers) => layers,
        };
        Self::of(layers).ok_or_else(|| Error::invalid("a certificate of no layer"))
    }
}

impl From<Certificate> for NetworkCertificate {
    fn from(certificate: Certificate) -> Self {
        Self { layers: vec![certificate] }
    }
}

impl NetworkCertificate {
    /// From those of the layers; none for no layer.
    #[must_use]
    pub fn of(layers: Vec<Certificate>) -> Option<Self> {
        (!layers.is_empty()).then_some(Self { layers })
    }

    /// Those of the layers.
    #[must_use]
    pub fn layers(&self) -> &[Certificate] {
        &self.layers
    }

    /// Of a classifier with one layer, that one's.
    #[must_use]
    pub fn single(&self) -> Option<&Certificate> {
        match &self.layers[..] {
            [certificate] => Some(certificate),
            _ => None,
        }
    }

    /// The one that the verdict about the whole comes from: a layer that is refuted, else one that is not proved, else the first.
    #[must_use]
    pub fn deciding(&self) -> &Certificate {
        let first = |wanted: fn(&Verdict) -> bool| self.layers.iter().find(|layer| wanted(&layer.verdict));
        first(|verdict| matches!(verdict, Verdict::Refuted { .. }))
            .or_else(|| first(|verdict| !verdict.is_proven()))
            .unwrap_or(&self.layers[0])
    }

    /// Whether every layer's solution is proved to be the only one, and with them that of the whole.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.layers.iter().all(|layer| layer.verdict.is_proven())
    }

    /// `proven`, `unproven` or `refuted`.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        self.deciding().verdict.name()
    }
}

impl fmt::Display for NetworkCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(single) = self.single() {
            return single.fmt(f);
        }
        let count = self.layers.len();
        let at = 1 + self.layers.iter().position(|layer| layer == self.deciding()).unwrap_or(0);
        match self.verdict() {
            "proven" => write!(
                f,
                "PROVEN: the network has exactly one state for every image, since each of its {count} layers, solved one after the \
                 other, has exactly one fixed point for every input that it can get."
            )?,
            "refuted" => write!(
                f,
                "REFUTED: layer {at} of {count} has more than one fixed point for one of its inputs; whether an image leads there is \
                 not said."
            )?,
            _ => write!(f, "UNPROVEN: layer {at} of {count} may have more than one fixed point.")?,
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let words = layer.to_string().replace('\n', "\n  ");
            write!(f, "\n  Layer {}: {words}", index + 1)?;
        }
        Ok(())
    }
}

impl<D: Backend> Classifier<D> {
    /// What can be promised about the fixed points for all inputs that the layers are meant for; none for models without one.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn certify(&mut self) -> Result<Option<NetworkCertificate>> {
        self.certify_each(|layer| layer.certify(layer.scope()))
    }

    /// The same for the inputs of a scope that names none of them.
    ///
    /// # Errors
    /// Parameters that are not finite; inputs of a single layer.
    pub fn certify_for(&mut self, scope: &Scope) -> Result<Option<NetworkCertificate>> {
        self.certify_each(|layer| layer.certify(scope.clone()))
    }

    /// A proof if there is a quick one; refutations are not searched for.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn prove(&mut self) -> Result<Option<NetworkCertificate>> {
        self.certify_each(Equilibrium::prove)
    }

    fn certify_each(
        &mut self,
        certify: impl FnMut(&mut Equilibrium<D>) -> Result<Certificate>,
    ) -> Result<Option<NetworkCertificate>> {
        let layers: Result<Vec<Certificate>> = self.equilibria().map(certify).collect();
        Ok(NetworkCertificate::of(layers?))
    }

    /// Whether a certificate, from a file for example, is about the very equations and inputs of this classifier's layers, and holds
    /// for their weights.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn confirms(&mut self, certificate: &NetworkCertificate) -> Result<bool> {
        let mut known = certificate.layers.iter();
        for layer in self.equilibria() {
            match known.next() {
                Some(known) if known.scope == layer.scope() && layer.confirms(known)? => {}
                _ => return Ok(false),
            }
        }
        Ok(known.next().is_none())
    }
}
