//! Arrays in a GPU's memory.

use super::Cuda;
use super::gpu::{Grid, Memory};
use super::kernel::launch;
use crate::cpu::packed::check_len;
use crate::network::Rows;
use crate::{Device, EngineError, MIRRORED, Picks, Result, Summary};

/// Whole numbers on a GPU, with what the host knows of them: nothing has to be read back to refuse what does not fit.
#[derive(Debug)]
pub struct CudaIntegers {
    pub(super) memory: Memory<u32>,
    pub(super) known: Known,
}

/// What the host knows of whole numbers on a GPU.
#[derive(Debug)]
pub(super) enum Known {
    /// All of them: they came from the host.
    Values(Vec<u32>),
    /// Only that each is below this: they were written by the GPU.
    Below(u32),
}

impl Known {
    /// What each is below.
    pub(super) fn bound(&self) -> u32 {
        match self {
            Self::Values(values) => values.iter().max().map_or(0, |largest| largest.saturating_add(1)),
            Self::Below(bound) => *bound,
        }
    }
}

/// Counters on a GPU: the fields of [`Summary`].
#[derive(Debug)]
pub struct CudaTally(pub(super) Memory<u64>);

/// Fields of [`Summary`].
const COUNTERS: usize = 11;

impl Device for Cuda {
    type Elem = f32;
    type Array = Memory<f32>;
    type Integers = CudaIntegers;
    type Tally = CudaTally;

    fn name(&self) -> String {
        format!("cuda: {}", self.gpu.name())
    }

    fn memory(&self) -> Option<u64> {
        Some(self.gpu.memory())
    }

    fn peak_memory(&self) -> Result<Option<u64>> {
        self.gpu.peak_memory().map(Some)
    }

    fn steps_per_summary(&self) -> usize {
        16
    }

    fn zeros(&self, len: usize) -> Result<Memory<f32>> {
        Memory::zeros(&self.gpu, len)
    }

    fn upload(&self, host: &[f32]) -> Result<Memory<f32>> {
        Memory::upload(&self.gpu, host)
    }

    fn write(&self, array: &mut Memory<f32>, at: usize, host: &[f32]) -> Result<()> {
        check_len("the array", array.len(), at.saturating_add(host.len()))?;
        array.write(at, host)
    }

    fn write_finite(&self, what: &'static str, array: &mut Memory<f32>, host: &[f32]) -> Result<()> {
        check_len(what, array.len(), host.len())?;
        if let Some(index) = host.iter().position(|x| !x.is_finite()) {
            return Err(EngineError::NotFinite { what, index, value: host[index].to_string() });
        }
        array.write(0, host)
    }

    fn read(&self, array: &Memory<f32>, at: usize, host: &mut [f32]) -> Result<()> {
        check_len("the array", array.len(), at.saturating_add(host.len()))?;
        array.read(at, host)
    }

    fn integers(&self, host: &[u32]) -> Result<CudaIntegers> {
        Ok(CudaIntegers { memory: Memory::upload(&self.gpu, host)?, known: Known::Values(host.to_vec()) })
    }

    fn write_integers(&self, array: &mut CudaIntegers, host: &[u32]) -> Result<()> {
        check_len("the whole numbers", array.memory.len(), host.len())?;
        array.memory.write(0, host)?;
        match &mut array.known {
            Known::Values(values) => values[..host.len()].copy_from_slice(host),
            Known::Below(_) if host.len() == array.memory.len() => array.known = Known::Values(host.to_vec()),
            Known::Below(bound) => {
                let largest = host.iter().max().map_or(0, |x| x.saturating_add(1));
                *bound = largest.max(*bound);
            }
        }
        Ok(())
    }

    fn fill(&self, len: usize, value: f64, x: &mut Memory<f32>) -> Result<()> {
        check_len("x", x.len(), len)?;
        if len == 0 {
            return Ok(());
        }
        launch!(self.gpu, "fill", Grid::entries(len), x, len, value as f32)
    }

    fn copy(&self, len: usize, x: &Memory<f32>, y: &mut Memory<f32>) -> Result<()> {
        check_len("x", x.len(), len)?;
        check_len("y", y.len(), len)?;
        y.copy_from(x, len)
    }

    fn copy_rows(
        &self,
        rows: usize,
        len: usize,
        from: Rows<&Memory<f32>>,
        to: Rows<&mut Memory<f32>>,
    ) -> Result<()> {
        let end = |stride: usize, offset: usize| {
            if rows == 0 { 0 } else { (rows - 1) * stride + offset + len }
        };
        check_len("the source of the rows", from.array.len(), end(from.stride, from.offset))?;
        check_len("the target of the rows", to.array.len(), end(to.stride, to.offset))?;
        if rows * len == 0 {
            return Ok(());
        }
        launch!(
            self.gpu,
            "copy_rows",
            Grid::entries(rows * len),
            from.array.at(from.offset),
            from.stride,
            to.array.at(to.offset),
            to.stride,
            rows,
            len,
        )
    }

    fn gather_rows(
        &self,
        len: usize,
        from: &Memory<f32>,
        picks: Picks<'_, CudaIntegers>,
        to: &mut Memory<f32>,
    ) -> Result<()> {
        let count = picked(&picks, from.len() / len.max(1))?;
        check_len("the gathered rows", to.len(), count * len)?;
        if count * len == 0 {
            return Ok(());
        }
        let list = picks.list.memory.at(picks.range.start);
        launch!(self.gpu, "gather_rows", Grid::entries(count * len), from, list, count, len, to)
    }

    fn scatter_rows(
        &self,
        len: usize,
        from: &Memory<f32>,
        picks: Picks<'_, CudaIntegers>,
        to: &mut Memory<f32>,
    ) -> Result<()> {
        let count = picked(&picks, to.len() / len.max(1))?;
        check_len("the rows to scatter", from.len(), count * len)?;
        if count * len == 0 {
            return Ok(());
        }
        let list = picks.list.memory.at(picks.range.start);
        launch!(self.gpu, "scatter_rows", Grid::entries(len), from, list, count, len, to)
    }

    fn tally(&self) -> Result<CudaTally> {
        Ok(CudaTally(Memory::zeros(&self.gpu, COUNTERS)?))
    }

    fn finish(&self, tally: &mut CudaTally) -> Result<Summary> {
        let mut counters = [0; COUNTERS];
        self.gpu.rest()?;
        tally.0.read(0, &mut counters)?;
        tally.0.clear()?;
        let [
            samples,
            loss,
            penalty,
            correct,
            solves,
            converged,
            forward_iterations,
            adjoint_solves,
            backward_iterations,
            adjoint_not_finite,
            unfinished,
        ] = counters;
        Ok(Summary {
            samples,
            loss: f64::from_bits(loss),
            penalty: f64::from_bits(penalty),
            correct,
            solves,
            converged,
            forward_iterations,
            adjoint_solves,
            backward_iterations,
            adjoint_not_finite,
            unfinished,
        })
    }
}

/// How many samples are picked, each below `count`.
pub(super) fn picked(picks: &Picks<'_, CudaIntegers>, count: usize) -> Result<usize> {
    let list = picks.list;
    check_len("the list of samples", list.memory.len(), picks.range.end)?;
    let beyond = match &list.known {
        Known::Values(values) => {
            let part = values.get(picks.range.clone()).unwrap_or_default();
            part.iter().map(|entry| entry & !MIRRORED).find(|&sample| sample as usize >= count)
        }
        Known::Below(bound) => bound.checked_sub(1).filter(|&largest| largest as usize >= count),
    };
    match beyond {
        Some(sample) => Err(EngineError::Invalid(format!("sample {sample} of {count} was picked"))),
        None => Ok(picks.range.len()),
    }
}
