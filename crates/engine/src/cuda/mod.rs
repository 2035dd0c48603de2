//! NVIDIA GPUs, through the driver alone: kernels are compiled ahead to PTX, which the driver translates for the GPU it finds.
//!
//! Numbers are `f32`; sums that decide something are `f64`. One stream carries out every call in its order, and the host waits
//! only where it reads: a training step reads nothing but its [`crate::Summary`], and a solve one word in every few
//! iterations. No sum depends on chance: same bits from run to run, and for a sample the same bits in any batch at any position.
//!
//! Solves for which there are kernels that do them whole, state on chip (`onchip.rs`), take one launch; `SUBDEQ_CUDA_ONCHIP=0` in the
//! environment turns these off, to compare.
//!
//! `SUBDEQ_CUDA_SYNC=1` in the environment waits after every kernel, so that an error names the kernel that made it;
//! `SUBDEQ_CUDA_TIMES=1` shows where the time went when the GPU is no longer used.

mod context;
mod convolution;
mod data_sets;
mod equilibria;
mod few_channels;
mod fourier;
mod gpu;
mod integrate;
mod kernel;
mod layers;
mod linear;
mod memory;
mod onchip;
mod onchip_anderson;
mod onchip_ode;
mod parametrise;
mod plan;
mod planes;
mod product;
mod resolvent;
mod scratch;
mod shifted;
mod solve;
mod spectra;
mod splitting;
mod times;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use data_sets::CudaImages;
pub use equilibria::CudaReports;
pub use gpu::Memory;
pub use integrate::{CudaOdePlan, CudaOdeReports};
pub use memory::{CudaIntegers, CudaTally};
pub use parametrise::CudaWeights;
pub use plan::CudaPlan;

use crate::{EngineError, Result};
use gpu::Gpu;
use scratch::Scratch;

/// One GPU, as a [`crate::Device`] of `f32`. Cheap to clone.
///
/// ```
/// use subdeq_engine::{Cuda, Device};
/// if Cuda::available().is_empty() {
///     assert!(Cuda::new(0).is_err());
/// } else {
///     println!("{}", Cuda::new(0)?.name());
/// }
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    scratch: Arc<Mutex<Scratch>>,
}

impl Cuda {
    /// GPU number `ordinal` of this machine.
    ///
    /// # Errors
    /// No driver, one that is too old, no such GPU, or one that is too old for the kernels.
    pub fn new(ordinal: usize) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(ordinal)?);
        let scratch = Arc::new(Mutex::new(Scratch::new(&gpu)?));
        Ok(Self { gpu, scratch })
    }

    /// Memory for the launches of one call, kept from other threads until it is dropped.
    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its compute capability, such as `(9, 0)`.
    #[must_use]
    pub fn compute_capability(&self) -> (i32, i32) {
        let capability = self.gpu.capability();
        (capability / 10, capability % 10)
    }

    /// The names of the GPUs of this machine, in the order of their numbers; none without a driver.
    #[must_use]
    pub fn available() -> Vec<String> {
        gpu::names().unwrap_or_default()
    }
}

/// What a call wants that there is no kernel for yet.
fn not_yet(what: &str) -> EngineError {
    EngineError::Invalid(format!("{what} is not on the GPU yet: use --device cpu"))
}
