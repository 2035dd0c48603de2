//! The CPU: aligned arrays, vector instructions chosen at run time, a thread pool.

mod activation;
mod buffer;
mod custom;
mod data_sets;
mod distance;
mod epilogue;
mod equilibrium;
mod gains;
pub mod graph;
mod isa;
mod linear;
mod linearise;
mod memory;
mod normalise;
pub(crate) mod ode;
pub(crate) mod packed;
mod parametrise;
mod parts;
mod peaks;
mod plan;
mod problem;
mod prox;
mod pullback;
mod simd;
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
use std::sync::{Arc, Mutex, PoisonError};

pub use buffer::{Buffer, Lent};
pub use conv::{Accuracy, Grade};
pub use distance::Distance;
pub use isa::Isa;
pub use memory::installed as installed_memory;
pub use ode::OdePlan;
pub use parametrise::CpuWeights;
pub use peaks::Peaks;
pub use plan::CpuPlan;
pub(crate) use plan::check_solver;
pub(crate) use prox::{check_splitting, leaves_zero};
pub use simd::SimdReal;
pub use step::{FixedPointStep, InPlace};

use crate::{EngineError, Result};
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
    workers: Arc<Workers>,
    numbers: PhantomData<T>,
}

/// The threads of a device.
#[derive(Debug)]
struct Workers {
    /// For long pieces of work, which wait for each other.
    pool: rayon::ThreadPool,
    /// For short ones, at which the caller helps.
    team: Team,
}

impl Workers {
    fn new(threads: usize) -> Result<Arc<Self>> {
        let refused = |error: &dyn std::fmt::Display| {
            EngineError::Invalid(format!("{threads} threads could not be started: {error}"))
        };
        if threads > MAX_THREADS {
            return Err(refused(&format!("at most {MAX_THREADS} can be asked for, 0 means one per core")));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|error| refused(&error))?;
        let team = Team::new(threads - 1).map_err(|error| refused(&error))?;
        Ok(Arc::new(Self { pool, team }))
    }

    /// One thread per core, the same ones for everybody who asks.
    fn of_the_machine(cores: usize) -> Result<Arc<Self>> {
        static SHARED: Mutex<Option<Arc<Workers>>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(workers) = &*shared {
            return Ok(workers.clone());
        }
        Ok(shared.insert(Self::new(cores)?).clone())
    }
}

/// More threads help nobody, and the team counts them in 15 bits.
const MAX_THREADS: usize = 1024;

impl<T> Cpu<T> {
    /// A device of `threads` threads that uses the widest instruction set, or what the environment variable `SUBDEQ_ISA`
    /// names. With 0 it uses one thread per core of the machine, which all such devices of the process share.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_isa(threads, Isa::from_environment()?)
    }

    /// The same with a chosen instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let (threads, workers) = match threads {
            0 => (cores, Workers::of_the_machine(cores)?),
            some => (some, Workers::new(some)?),
        };
        Ok(Self { isa, threads, workers, numbers: PhantomData })
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
        self.workers.pool.install(work)
    }

    /// The threads that share short pieces of work.
    pub(crate) fn team(&self) -> &Team {
        &self.workers.team
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
        self.workers.team.share(workers, queue, work);
    }
}
