//! The CPU: aligned arrays, vector instructions chosen at run time, a thread pool.

mod activation;
mod buffer;
mod custom;
mod distance;
mod epilogue;
mod equilibrium;
mod gains;
pub mod graph;
mod isa;
mod linear;
mod linearise;
mod normalise;
mod ode;
mod packed;
mod parts;
mod peaks;
mod plan;
mod problem;
mod prox;
mod pullback;
pub mod simd;
mod solve;
mod step;
mod team;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vector;
mod vmath;

pub(crate) mod conv;
pub(crate) mod fourier;
pub(crate) mod network;

use std::marker::PhantomData;
use std::sync::Arc;

pub use buffer::Buffer;
pub use conv::{Accuracy, Grade};
pub use distance::Distance;
pub use isa::Isa;
pub use ode::OdePlan;
pub use peaks::Peaks;
pub use plan::CpuPlan;
pub use problem::CustomMap;
pub use step::{FixedPointStep, InPlace};

use crate::{EngineError, Result};
use simd::SimdReal;
use team::Team;

/// The processor cores of this machine, as a [`crate::Device`].
///
/// ```
/// use subdeq_engine::Cpu;
/// let cpu = Cpu::<f32>::new(2)?;
/// assert_eq!(cpu.threads(), 2);
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cpu<T> {
    isa: Isa,
    threads: usize,
    /// For long pieces of work, which wait for each other.
    pool: Arc<rayon::ThreadPool>,
    /// For short ones, at which the caller helps.
    team: Arc<Team>,
    numbers: PhantomData<T>,
}

/// More threads help nobody, and the team counts them in 15 bits.
const MAX_THREADS: usize = 1024;

impl<T: SimdReal> Cpu<T> {
    /// A device of `threads` threads (0: as many as the machine has cores) that uses the widest instruction set, or
    /// what the environment variable `SUBDEQ_ISA` names.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_isa(threads, Isa::from_environment()?)
    }

    /// The same with a chosen instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            some => some,
        };
        let refused = |error: &dyn std::fmt::Display| {
            EngineError::Invalid(format!("{threads} threads could not be started: {error}"))
        };
        if threads > MAX_THREADS {
            return Err(refused(&format!("at most {MAX_THREADS} can be asked for, 0 means one per core")));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = Arc::new(pool.map_err(|error| refused(&error))?);
        let team = Arc::new(Team::new(threads - 1).map_err(|error| refused(&error))?);
        Ok(Self { isa, threads, pool, team, numbers: PhantomData })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `work` inside the thread pool, so that parallel iterators in it use this device's threads.
    pub(crate) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// The threads that share short pieces of work.
    pub(crate) fn team(&self) -> &Team {
        &self.team
    }

    /// Hands the items of `queue` to the workers: each worker takes the next item until none is left. `workers` is
    /// what each thread needs for itself (scratch memory); as many threads work as there are workers, at most.
    ///
    /// Nothing is allocated. Which worker gets which item is left to chance, so results must not depend on it.
    pub(crate) fn share<W: Send, I: Send>(
        &self,
        workers: &mut [W],
        queue: impl DoubleEndedIterator<Item = I> + Send,
        work: impl Fn(&mut W, I) + Sync,
    ) {
        self.team.share(workers, queue, work);
    }
}
