//! Arrays in the machine's memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::packed::{check_finite, check_len};
use crate::network::Rows;
use crate::{Device, EngineError, MIRRORED, Picks, Result, Summary};

/// Numbers that are checked and copied together.
const WRITE_PIECE: usize = 1 << 13;

macro_rules! device {
    ($($t:ident),*) => {$(
        impl Device for Cpu<$t> {
            type Elem = $t;
            type Array = Buffer<$t>;
            type Integers = Vec<u32>;
            type Tally = Summary;

            fn name(&self) -> String {
                let plural = if self.threads == 1 { "" } else { "s" };
                format!("cpu: {} thread{plural}, {}", self.threads, self.isa.name())
            }

            fn memory(&self) -> Option<u64> {
                installed()
            }

            fn zeros(&self, len: usize) -> Result<Buffer<$t>> {
                allowed(len, size_of::<$t>())?;
                Buffer::try_zeros(len).ok_or_else(|| out_of_memory(len, size_of::<$t>()))
            }

            fn upload(&self, host: &[$t]) -> Result<Buffer<$t>> {
                let mut array = self.zeros(host.len())?;
                array.copy_from_slice(host);
                Ok(array)
            }

            fn write(&self, array: &mut Buffer<$t>, at: usize, host: &[$t]) -> Result<()> {
                check_range("the array", array.len(), at, host.len())?;
                array[at..at + host.len()].copy_from_slice(host);
                Ok(())
            }

            fn write_finite(&self, what: &'static str, array: &mut Buffer<$t>, host: &[$t]) -> Result<()> {
                check_len(what, array.len(), host.len())?;
                let refused = AtomicBool::new(false);
                // Checked and copied piece by piece, so that the second look finds the piece in cache.
                let pieces = array.chunks_mut(WRITE_PIECE).zip(host.chunks(WRITE_PIECE));
                self.team().for_each(pieces, |(array, host)| {
                    if check_finite(self.isa, what, host).is_err() {
                        refused.store(true, Ordering::Relaxed);
                    }
                    array[..host.len()].copy_from_slice(host);
                });
                if refused.into_inner() { check_finite(self.isa, what, host) } else { Ok(()) }
            }

            fn read(&self, array: &Buffer<$t>, at: usize, host: &mut [$t]) -> Result<()> {
                check_range("the array", array.len(), at, host.len())?;
                host.copy_from_slice(&array[at..at + host.len()]);
                Ok(())
            }

            fn integers(&self, host: &[u32]) -> Result<Vec<u32>> {
                let mut array = reserved(host.len())?;
                array.copy_from_slice(host);
                Ok(array)
            }

            fn write_integers(&self, array: &mut Vec<u32>, host: &[u32]) -> Result<()> {
                check_len("the whole numbers", array.len(), host.len())?;
                array[..host.len()].copy_from_slice(host);
                Ok(())
            }

            fn fill(&self, len: usize, value: f64, x: &mut Buffer<$t>) -> Result<()> {
                check_len("x", x.len(), len)?;
                x[..len].fill(value as $t);
                Ok(())
            }

            fn copy(&self, len: usize, x: &Buffer<$t>, y: &mut Buffer<$t>) -> Result<()> {
                check_len("x", x.len(), len)?;
                check_len("y", y.len(), len)?;
                y[..len].copy_from_slice(&x[..len]);
                Ok(())
            }

            fn copy_rows(
                &self,
                rows: usize,
                len: usize,
                from: Rows<&Buffer<$t>>,
                to: Rows<&mut Buffer<$t>>,
            ) -> Result<()> {
                let end = |stride: usize, offset: usize| {
                    if rows == 0 { 0 } else { (rows - 1) * stride + offset + len }
                };
                check_len("the source of the rows", from.array.len(), end(from.stride, from.offset))?;
                check_len("the target of the rows", to.array.len(), end(to.stride, to.offset))?;
                for row in 0..rows {
                    to.array[row * to.stride + to.offset..][..len]
                        .copy_from_slice(&from.array[row * from.stride + from.offset..][..len]);
                }
                Ok(())
            }

            fn gather_rows(
                &self,
                len: usize,
                from: &Buffer<$t>,
                picks: Picks<'_, Vec<u32>>,
                to: &mut Buffer<$t>,
            ) -> Result<()> {
                let picked = picked(&picks, from.len() / len.max(1))?;
                check_len("the gathered rows", to.len(), picked.len() * len)?;
                for (row, out) in picked.zip(to.chunks_exact_mut(len.max(1))) {
                    out.copy_from_slice(&from[row.sample * len..][..len]);
                }
                Ok(())
            }

            fn scatter_rows(
                &self,
                len: usize,
                from: &Buffer<$t>,
                picks: Picks<'_, Vec<u32>>,
                to: &mut Buffer<$t>,
            ) -> Result<()> {
                let picked = picked(&picks, to.len() / len.max(1))?;
                check_len("the rows to scatter", from.len(), picked.len() * len)?;
                for (row, state) in picked.zip(from.chunks_exact(len.max(1))) {
                    to[row.sample * len..][..len].copy_from_slice(state);
                }
                Ok(())
            }

            fn tally(&self) -> Result<Summary> {
                Ok(Summary::default())
            }

            fn finish(&self, tally: &mut Summary) -> Result<Summary> {
                Ok(std::mem::take(tally))
            }
        }
    )*};
}
device!(f32, f64);

/// One sample of a batch.
#[derive(Clone, Copy)]
pub(super) struct Pick {
    pub sample: usize,
    pub mirrored: bool,
}

/// The samples that are picked, each below `count`.
pub(super) fn picked<'a>(
    picks: &Picks<'a, Vec<u32>>,
    count: usize,
) -> Result<impl DoubleEndedIterator<Item = Pick> + ExactSizeIterator + Send + use<'a>> {
    let list: &'a Vec<u32> = picks.list;
    check_len("the list of samples", list.len(), picks.range.end)?;
    let pick = |entry: &u32| Pick { sample: (entry & !MIRRORED) as usize, mirrored: entry & MIRRORED != 0 };
    let part = list.get(picks.range.clone()).unwrap_or_default();
    if let Some(beyond) = part.iter().map(pick).find(|pick| pick.sample >= count) {
        return Err(EngineError::Invalid(format!("sample {} of {count} was picked", beyond.sample)));
    }
    Ok(part.iter().map(pick))
}

/// A vector of `len` default values; an error where memory does not suffice.
pub(super) fn reserved<R: Clone + Default>(len: usize) -> Result<Vec<R>> {
    allowed(len, size_of::<R>())?;
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| out_of_memory(len, size_of::<R>()))?;
    values.resize(len, R::default());
    Ok(values)
}

/// Refuses what is more than the machine's memory. The system might promise it all the same, and end the process once it is
/// used.
fn allowed(len: usize, size: usize) -> Result<()> {
    let needed = (len as u64).saturating_mul(size as u64);
    if installed().is_some_and(|bytes| needed > bytes) { Err(out_of_memory(len, size)) } else { Ok(()) }
}

fn out_of_memory(len: usize, size: usize) -> EngineError {
    EngineError::OutOfMemory { needed: (len as u64).saturating_mul(size as u64), installed: installed() }
}

/// Bytes of memory, where the system says: what the machine has, or what a container may use of it.
pub fn installed() -> Option<u64> {
    static BYTES: OnceLock<Option<u64>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let read = |path| std::fs::read_to_string(path).ok();
        let total = read("/proc/meminfo").and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        });
        let allowed = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
        [total, allowed].into_iter().flatten().min()
    })
}

fn check_range(what: &'static str, found: usize, at: usize, len: usize) -> Result<()> {
    check_len(what, found, at.saturating_add(len))
}
