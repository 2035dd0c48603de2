//! Norms and factors of linear parts.

use super::Cuda;
use super::gpu::Memory;
use crate::cpu::packed::check_len;
use crate::{Cpu, Device, Operator, Result, Spectra};

/// On the host: a step is chosen rarely, and the weights are few against what a solve reads.
impl Spectra for Cuda {
    fn splitting_rate(
        &self,
        operator: &Operator,
        w: &Memory<f32>,
        step: f64,
        frequencies: usize,
    ) -> Result<f64> {
        let cpu = Cpu::<f32>::new(0)?;
        let w = on_host(operator, w)?;
        cpu.splitting_rate(operator, &cpu.upload(&w)?, step, frequencies)
    }

    fn norm_bound(&self, operator: &Operator, w: &Memory<f32>) -> Result<f64> {
        let cpu = Cpu::<f32>::new(0)?;
        let w = on_host(operator, w)?;
        cpu.norm_bound(operator, &cpu.upload(&w)?)
    }
}

fn on_host(operator: &Operator, w: &Memory<f32>) -> Result<Vec<f32>> {
    let needed = operator.weight_len();
    check_len("the weights", w.len(), needed)?;
    let mut host = vec![0.0; needed];
    w.read(0, &mut host)?;
    Ok(host)
}
