//! A certificate, as Python sees it.

use numpy::PyReadonlyArrayDyn;
use pyo3::prelude::*;
use subdeq::Verdict;
use subdeq::subdeq_map::Operator;

use crate::certify::operator;
use crate::error::{raise, refuse};

/// What is known about the fixed points of a map with certain weights. See the package's documentation.
#[pyclass(module = "subdeq", frozen, from_py_object)]
#[derive(Clone)]
pub struct Certificate {
    inner: subdeq::Certificate,
    /// The weights that it is about; none where it was read from a file.
    weights: Option<Operator>,
}

impl Certificate {
    pub fn about(inner: subdeq::Certificate, weights: Operator) -> Self {
        Self { inner, weights: Some(weights) }
    }

    pub fn alone(inner: subdeq::Certificate) -> Self {
        Self { inner, weights: None }
    }
}

#[pymethods]
impl Certificate {
    /// 'proven', 'refuted' or 'unproven'.
    #[getter]
    fn verdict(&self) -> &'static str {
        self.inner.verdict.name()
    }

    /// Whether there is exactly one fixed point, proved.
    #[getter]
    fn proven(&self) -> bool {
        self.inner.verdict.is_proven()
    }

    /// The equation that it is about.
    #[getter]
    fn equation(&self) -> String {
        self.inner.map.to_string()
    }

    /// The inputs that it is about, in words.
    #[getter]
    fn inputs(&self) -> String {
        self.inner.scope.to_string()
    }

    /// The theorem that proves it, in words; None unless proven.
    #[getter]
    fn theorem(&self) -> Option<String> {
        match &self.inner.verdict {
            Verdict::Proven { theorem, .. } => Some(theorem.to_string()),
            _ => None,
        }
    }

    /// By how much each plain iteration shrinks the distance to the solution, at least; None where that is not proved.
    #[getter]
    fn factor(&self) -> Option<f64> {
        match self.inner.verdict {
            Verdict::Proven { factor, .. } => factor,
            _ => None,
        }
    }

    /// What the factor measures distances with: 'thompson', 'hilbert', 'weighted-sup', 'weighted-two-norm', 'none'.
    #[getter]
    fn metric(&self) -> Option<&'static str> {
        match &self.inner.verdict {
            Verdict::Proven { metric, .. } => Some(metric.name()),
            _ => None,
        }
    }

    /// How much further apart than two inputs their solutions can be, in the 2-norm; None where that is not proved.
    #[getter]
    fn gain(&self) -> Option<f64> {
        self.inner.gain()
    }

    /// The fixed points of a refutation, each a list of numbers.
    #[getter]
    fn witnesses(&self) -> Vec<Vec<f64>> {
        match &self.inner.verdict {
            Verdict::Refuted { witness } => witness.points().into_iter().map(<[f64]>::to_vec).collect(),
            _ => Vec::new(),
        }
    }

    /// The input for which a refutation has several fixed points; None unless refuted.
    #[getter]
    fn injection(&self) -> Option<Vec<f64>> {
        match &self.inner.verdict {
            Verdict::Refuted { witness } => Some(witness.y().to_vec()),
            _ => None,
        }
    }

    /// What stands in the way of a proof; None unless unproven.
    #[getter]
    fn why(&self) -> Option<String> {
        match &self.inner.verdict {
            Verdict::Unproven { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    /// Checks every claim again from the weights, by code that is independent of what found it; raises ValueError with the
    /// first claim that does not hold. Without weights, those that it was made for are taken. Weights of a convolution need
    /// the size of its images.
    #[pyo3(signature = (weights=None, *, size=None))]
    fn recheck(
        &self,
        py: Python<'_>,
        weights: Option<PyReadonlyArrayDyn<'_, f64>>,
        size: Option<(usize, usize)>,
    ) -> PyResult<()> {
        let given = weights.map(|w| operator(&self.inner.map, &w, size, None)).transpose()?;
        let operator = given.as_ref().or(self.weights.as_ref()).ok_or_else(|| {
            refuse("this certificate was read from a file, which does not hold the weights: give them")
        })?;
        py.detach(|| self.inner.recheck(operator)).map_err(refuse)
    }

    /// The whole certificate as JSON: every number that the proof rests on.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner).map_err(refuse)
    }

    /// Reads what `to_json` wrote.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        let inner = serde_json::from_str(text)
            .map_err(|why| refuse(format!("this is not a certificate of subdeq: {why}")))?;
        Ok(Self { inner, weights: None })
    }

    fn __str__(&self) -> String {
        self.inner.to_string()
    }

    fn __repr__(&self) -> String {
        let mut text = format!("<subdeq.Certificate {}", self.verdict());
        if let Some(theorem) = self.theorem() {
            text.push_str(&format!(" by {theorem}"));
        }
        if let Some(factor) = self.factor() {
            text.push_str(&format!(", factor {factor:.6}"));
        }
        text.push('>');
        text
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.inner == other.inner
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        let from_json = slf.get_type().getattr("from_json")?.unbind();
        Ok((from_json, (slf.get().to_json()?,)))
    }
}

/// The certificate that belongs to a model, if it has one.
pub fn of_model(
    model: &mut subdeq::model::Classifier<subdeq::Cpu<f32>>,
    inner: Option<&subdeq::model::NetworkCertificate>,
) -> PyResult<Option<Certificate>> {
    let inner = match inner {
        Some(network) => Some(network.single().ok_or_else(|| {
            refuse("a network of several blocks has a certificate for each of them: ask the program, `subdeq certify`")
        })?),
        None => None,
    };
    match (inner, model.equilibrium()) {
        (Some(inner), Some(layer)) => {
            Ok(Some(Certificate::about(inner.clone(), layer.operator().map_err(raise)?)))
        }
        (Some(inner), None) => Ok(Some(Certificate::alone(inner.clone()))),
        (None, _) => Ok(None),
    }
}
