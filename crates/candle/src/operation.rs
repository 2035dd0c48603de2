//! The solve as an operation that candle differentiates.

use std::sync::{Arc, Mutex};

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor};
use subdeq::subdeq_engine::cpu::Buffer;
use subdeq::{Cpu, Equilibrium, SampleReport};

/// The engine's side of a layer: weights packed, memory kept between calls.
pub(crate) struct Shared {
    pub(crate) layer: Mutex<Equilibrium<Cpu<f32>>>,
    pub(crate) reports: Mutex<Vec<SampleReport>>,
}

/// `z = F(z; y)` of an injection and one or two parameters.
pub(crate) struct Solve {
    pub(crate) shared: Arc<Shared>,
    pub(crate) parameters: usize,
}

/// The numbers of a contiguous tensor.
fn numbers<'a>(what: &str, storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(all) = storage else {
        candle_core::bail!("{what} is not of f32, the only number type of this layer")
    };
    match layout.contiguous_offsets() {
        Some((begin, end)) => Ok(&all[begin..end]),
        None => candle_core::bail!("{what} is not contiguous"),
    }
}

impl Solve {
    fn forward(&self, y: &[f32], parameters: &[&[f32]]) -> Result<(CpuStorage, Shape)> {
        let (z, reports, units) = self.shared.with(|layer| {
            layer.set_parameters(parameters)?;
            let (operator, per_sample) = (layer.map().operator(), layer.map().injection_len());
            let batch = y.len() / per_sample;
            let mut z = vec![0.0; batch * operator.state_len()];
            if batch == 0 {
                return Ok((z, Vec::new(), operator.state_len()));
            }
            let injection = Buffer::lend(y);
            let reports = Buffer::lend_mut(&mut z, |z| layer.solve_into(batch, &injection, z))?;
            Ok((z, reports, operator.state_len()))
        })?;
        self.shared.set_reports(reports);
        let shape = Shape::from((z.len() / units, units));
        Ok((CpuStorage::F32(z), shape))
    }

    /// Gradients for the injection and each parameter, in their shapes.
    fn backward(&self, y: &Tensor, parameters: &[&Tensor], z: &Tensor, v: &Tensor) -> Result<Vec<Tensor>> {
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let values = parameters.iter().map(|p| flat(p)).collect::<Result<Vec<_>>>()?;
        let (numbers, states, arriving) = (flat(y)?, flat(z)?, flat(v)?);
        let mut gy = vec![0.0; numbers.len()];
        let gradients = self.shared.with(|layer| {
            layer.set_parameters(&values.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
            let batch = numbers.len() / layer.map().injection_len();
            let (y, z, v) = (Buffer::lend(&numbers), Buffer::lend(&states), Buffer::lend(&arriving));
            Buffer::lend_mut(&mut gy, |gy| layer.pull_back_at(batch, &y, &z, &v, gy))?;
            Ok(layer.parameters().iter().map(|p| p.gradient[..p.len].to_vec()).collect::<Vec<_>>())
        })?;
        let mut all = vec![Tensor::from_vec(gy, y.shape(), y.device())?];
        for (gradient, parameter) in gradients.into_iter().zip(parameters) {
            all.push(Tensor::from_vec(gradient, parameter.shape(), parameter.device())?);
        }
        Ok(all)
    }

    fn check(&self, given: usize) -> Result<()> {
        if self.parameters == given {
            return Ok(());
        }
        Err(Error::Msg(format!("a layer of {} parameters was applied to {given}", self.parameters)))
    }
}

impl CustomOp2 for Solve {
    fn name(&self) -> &'static str {
        "subdeq-equilibrium"
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        ly: &Layout,
        p: &CpuStorage,
        lp: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check(1)?;
        self.forward(numbers("the injection", y, ly)?, &[numbers("the parameter", p, lp)?])
    }

    fn bwd(
        &self,
        y: &Tensor,
        p: &Tensor,
        z: &Tensor,
        v: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.backward(y, &[p], z, v)?.into_iter();
        Ok((gradients.next(), gradients.next()))
    }
}

impl CustomOp3 for Solve {
    fn name(&self) -> &'static str {
        "subdeq-equilibrium"
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        ly: &Layout,
        p: &CpuStorage,
        lp: &Layout,
        q: &CpuStorage,
        lq: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check(2)?;
        let parameters = [numbers("a parameter", p, lp)?, numbers("a parameter", q, lq)?];
        self.forward(numbers("the injection", y, ly)?, &parameters)
    }

    fn bwd(
        &self,
        y: &Tensor,
        p: &Tensor,
        q: &Tensor,
        z: &Tensor,
        v: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.backward(y, &[p, q], z, v)?.into_iter();
        Ok((gradients.next(), gradients.next(), gradients.next()))
    }
}
