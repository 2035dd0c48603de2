//! A GPU by its driver: memory, one stream, kernels.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};

use super::context::Context;
use super::kernel::{Argument, Kernel, module_named, module_with};
use super::times::Times;
use crate::{EngineError, Result};

/// The least driver that understands the kernels' PTX, as the driver counts: 13.0.
const DRIVER: i32 = 13_000;
/// The least GPU that the kernels are compiled for: compute capability 8.0.
const CAPABILITY: i32 = 80;
/// The GPUs that kernels with Hopper's own instructions run on: compute capability 9.0.
const HOPPER: i32 = 90;
/// Blocks of a cluster that every GPU with clusters can run.
const PORTABLE_CLUSTER: u32 = 8;
/// Threads of a block, as in `kernels/common.cuh`.
pub(super) const THREADS: u32 = 256;

/// A GPU that is in use, by a stream of its own.
pub(super) struct Gpu {
    device: sys::CUdevice,
    context: Arc<Context>,
    stream: sys::CUstream,
    /// Where the stream is when [`Gpu::rest`] waits for it.
    mark: sys::CUevent,
    name: String,
    capability: i32,
    memory: u64,
    /// Whether to wait after every kernel, to find the one that fails.
    sync: bool,
    times: Option<Times>,
}

// SAFETY: streams and events are handles that the driver allows every thread to use; each call makes the context current on its
// thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver orders what is put on a stream by several threads.
unsafe impl Sync for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid(pub u32, pub u32, pub u32);

/// A block's threads, and the bytes of shared memory that a launch gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub threads: u32,
    pub shared: u32,
}

impl Grid {
    /// Enough for an entry per thread; the kernels go on from there where the entries are more.
    pub fn entries(len: usize) -> Self {
        Self(u32::try_from(len.div_ceil(THREADS as usize)).unwrap_or(u32::MAX).clamp(1, 1 << 20), 1, 1)
    }

    /// One thread per item, all of them at once.
    pub fn threads(count: usize) -> Self {
        Self(count.div_ceil(THREADS as usize).max(1) as u32, 1, 1)
    }

    /// One block per sample.
    pub fn blocks(batch: usize) -> Self {
        Self(batch as u32, 1, 1)
    }

    /// As many blocks for each sample as its numbers need.
    pub fn samples(batch: usize, len: usize) -> Self {
        Self((batch * len.div_ceil(THREADS as usize).clamp(1, 64)) as u32, 1, 1)
    }
}

/// Refuses machines without a driver that can be used. Nothing may be asked of the driver's library before: it is loaded by name,
/// and a missing one would be a panic.
fn start() -> Result<()> {
    // SAFETY: looks for the library and loads it; the driver's library has no unusual constructors.
    if !unsafe { sys::is_culib_present() } {
        return Err(EngineError::DeviceFailed(
            "there is no NVIDIA driver on this machine (libcuda was not found): use --device cpu".into(),
        ));
    }
    let mut version = 0;
    // SAFETY: the pointer is that of a local number; this call needs no initialisation.
    said("the driver's version", unsafe { sys::cuDriverGetVersion(&mut version) }.result())?;
    if version < DRIVER {
        return Err(EngineError::DeviceFailed(format!(
            "the NVIDIA driver is for CUDA {}.{}, the kernels need {}.{}: update the driver or use --device cpu",
            version / 1000,
            version % 1000 / 10,
            DRIVER / 1000,
            DRIVER % 1000 / 10
        )));
    }
    result::init().map_err(|error| {
        EngineError::DeviceFailed(format!(
            "the NVIDIA driver found no GPU that it can use ({})",
            words(&error)
        ))
    })
}

/// The names of all GPUs.
pub(super) fn names() -> Result<Vec<String>> {
    start()?;
    let count = said("counting GPUs", result::device::get_count())?;
    (0..count)
        .map(|k| said("a GPU's name", result::device::get(k).and_then(result::device::get_name)))
        .collect()
}

impl Gpu {
    /// GPU number `ordinal`. A file of kernels is loaded with the first launch of one of them: the driver takes seconds to translate it.
    pub fn open(ordinal: usize) -> Result<Self> {
        start()?;
        let count = said("counting GPUs", result::device::get_count())?;
        let Some(number) = i32::try_from(ordinal).ok().filter(|&number| number < count) else {
            return Err(EngineError::DeviceFailed(format!(
                "there is no GPU number {ordinal}: this machine has {count}, numbered from 0"
            )));
        };
        let device = said("opening a GPU", result::device::get(number))?;
        let name = said("a GPU's name", result::device::get_name(device))?;
        let attribute = |which| {
            // SAFETY: the device was just handed out by the driver.
            said("a GPU's attributes", unsafe { result::device::get_attribute(device, which) })
        };
        use sys::CUdevice_attribute as Detail;
        let capability = 10 * attribute(Detail::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(Detail::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if capability < CAPABILITY {
            return Err(EngineError::DeviceFailed(format!(
                "{name} has compute capability {}.{}, the kernels need {}.{} (Ampere or newer): use --device cpu",
                capability / 10,
                capability % 10,
                CAPABILITY / 10,
                CAPABILITY % 10
            )));
        }
        let context = Context::of(device)?;
        context.bind()?;
        keep_freed_memory(device)?;
        let stream = said("a stream", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        let mark = said("an event", result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC))?;
        // SAFETY: as for the attributes.
        let memory = said("a GPU's memory", unsafe { result::device::total_mem(device) })? as u64;
        let sync = std::env::var("SUBDEQ_CUDA_SYNC").is_ok_and(|value| value != "0");
        let times = Times::wanted();
        Ok(Self { device, context, stream, mark, name, capability, memory, sync, times })
    }

    /// Its compute capability, times 10.
    pub fn capability(&self) -> i32 {
        self.capability
    }

    /// Whether kernels with Hopper's own instructions run on it.
    pub fn is_hopper(&self) -> bool {
        self.capability == HOPPER
    }

    /// A kernel, whose file is loaded if it has not been.
    fn kernel(&self, name: &'static str) -> Result<Kernel> {
        if let Some(kernel) = self.context.kernel(name) {
            return Ok(kernel);
        }
        let missing = || EngineError::DeviceFailed(format!("there is no kernel `{name}`: rebuild the PTX"));
        self.context.load_once(module_with(name).ok_or_else(missing)?, |_, _| Ok(()))?;
        self.context.kernel(name).ok_or_else(missing)
    }

    /// Loads a file of kernels that are launched with such blocks, in clusters of so many.
    pub fn load(&self, name: &str, block: Block, cluster: u32) -> Result<()> {
        let module = module_named(name)
            .ok_or_else(|| EngineError::DeviceFailed(format!("there is no `{name}.ptx`: rebuild the PTX")))?;
        self.context.load_once(module, |kernel, name| {
            allow_shared(kernel, name, block.shared)?;
            if cluster > PORTABLE_CLUSTER {
                let large = Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
                set_attribute(kernel, name, large, 1)?;
            }
            Ok(())
        })
    }

    /// How many clusters of a kernel can be at work at once; 0 if it cannot run at all.
    pub fn active_clusters(&self, name: &'static str, block: Block, cluster: u32) -> Result<i32> {
        let kernel = self.kernel(name)?;
        self.bind()?;
        // SAFETY: a union of plain numbers, all of whose bits may be zero.
        let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: cluster,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: block.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: block.shared,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let mut count = 0;
        // SAFETY: the function is loaded; the configuration and its one attribute outlive the call.
        let asked = unsafe { sys::cuOccupancyMaxActiveClusters(&mut count, kernel.function(), &config) };
        said(&format!("clusters of `{name}`"), asked.result())?;
        Ok(count)
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Makes the GPU's context current on this thread.
    fn bind(&self) -> Result<()> {
        self.context.bind()
    }

    /// The most bytes of the process's pool that were in use at one time; the code of kernels is not counted.
    pub fn peak_memory(&self) -> Result<u64> {
        self.bind()?;
        let mut most = 0u64;
        // SAFETY: the device was handed out by the driver, and the attribute is a number of 64 bits.
        let read = unsafe {
            result::device::get_default_mem_pool(self.device).and_then(|pool| {
                let high = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
                result::mem_pool::get_attribute(pool, high, (&raw mut most).cast())
            })
        };
        said("the GPU's memory", read)?;
        Ok(most)
    }

    /// Waits for everything that was asked for, and leaves the core to others meanwhile: several trainings may share a machine.
    /// Slower to wake up than [`Gpu::wait`], which is for short waits.
    pub fn rest(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: event and stream are this GPU's own. Another thread may move the mark; it only moves it further on.
        said("the GPU", unsafe {
            result::event::record(self.mark, self.stream).and_then(|()| result::event::synchronize(self.mark))
        })?;
        if let Some(times) = &self.times {
            times.read();
        }
        Ok(())
    }

    /// Waits for everything that was asked for.
    pub fn wait(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream is this GPU's own.
        said("the GPU", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Puts a kernel on the stream. Refuses arguments that are not of the kinds that it takes.
    pub fn launch(&self, name: &'static str, grid: Grid, arguments: &[Argument]) -> Result<()> {
        self.launch_blocks(name, grid, Block { threads: THREADS, shared: 0 }, arguments)
    }

    /// The same for blocks of another size, with shared memory that is not the kernel's own.
    pub fn launch_blocks(
        &self,
        name: &'static str,
        grid: Grid,
        block: Block,
        arguments: &[Argument],
    ) -> Result<()> {
        let kernel = self.kernel(name)?;
        kernel.check(name, arguments)?;
        self.bind()?;
        if block.shared > kernel.allowed() {
            allow_shared(&kernel, name, block.shared)?;
        }
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Argument::pointer).collect();
        let (grid, threads) = ((grid.0, grid.1, grid.2), (block.threads, 1, 1));
        // SAFETY: the arguments are of the kinds that the kernel takes and outlive the call, which copies them. What the kernel
        // reads and writes is the GPU's memory, which Rust has no references to; lengths are checked by who calls this.
        let mut launch = || unsafe {
            result::launch_kernel(kernel.function(), grid, threads, block.shared, self.stream, &mut pointers)
        };
        let launched = match &self.times {
            None => launch(),
            Some(times) => times.around(name, self.stream, launch),
        };
        launched.map_err(|error| failed(&format!("kernel `{name}` on {grid:?} blocks"), &error))?;
        if self.sync {
            // SAFETY: the stream is this GPU's own.
            let waited = unsafe { result::stream::synchronize(self.stream) };
            waited.map_err(|error| failed(&format!("kernel `{name}` on {grid:?} blocks"), &error))?;
        }
        Ok(())
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Nothing can be done about errors here: the process may be ending, and the driver with it.
        if self.bind().is_ok() {
            if let Some(times) = self.times.as_ref().filter(|_| self.wait().is_ok()) {
                times.show();
            }
            // SAFETY: stream and event are this GPU's own, and all arrays on it are gone (they hold the GPU).
            unsafe {
                let _ = result::event::destroy(self.mark);
                let _ = result::stream::destroy(self.stream);
            }
        }
    }
}

/// Memory that is freed stays with the process: scratch memory of a call is then found again without asking the system.
fn keep_freed_memory(device: sys::CUdevice) -> Result<()> {
    let mut most = u64::MAX;
    // SAFETY: the device was handed out by the driver, and the attribute is a number of 64 bits.
    let kept = unsafe {
        result::device::get_default_mem_pool(device).and_then(|pool| {
            let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, (&raw mut most).cast())
        })
    };
    said("the GPU's memory", kept)
}

/// Lets launches give a kernel's blocks so many bytes of shared memory, and as much of the first cache as there is, so that as many
/// blocks fit as can.
fn allow_shared(kernel: &Kernel, name: &str, bytes: u32) -> Result<()> {
    let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    set_attribute(kernel, name, most, bytes as i32)?;
    set_attribute(kernel, name, Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100)?;
    kernel.allow(bytes);
    Ok(())
}

fn set_attribute(kernel: &Kernel, name: &str, attribute: Attribute, value: i32) -> Result<()> {
    // SAFETY: a kernel's function is loaded.
    let set = unsafe { result::function::set_function_attribute(kernel.function(), attribute, value) };
    set.map_err(|error| failed(&format!("{attribute:?} {value} of kernel `{name}`"), &error))
}

/// Numbers in the GPU's memory.
pub struct Memory<T> {
    gpu: Arc<Gpu>,
    /// 0 while it is empty.
    address: sys::CUdeviceptr,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T> fmt::Debug for Memory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} on {})", self.len, self.gpu.name)
    }
}

// SAFETY: an address that only the driver follows, and plain numbers behind it.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Memory<T> {}

impl<T: Copy> Memory<T> {
    /// Nothing yet.
    pub(super) fn empty(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: gpu.clone(), address: 0, len: 0, numbers: PhantomData }
    }

    /// `len` values whose bits are all zero.
    pub(super) fn zeros(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let mut memory = Self::room(gpu, len)?;
        memory.clear()?;
        Ok(memory)
    }

    /// Room for `len` values, whatever it holds.
    pub(super) fn room(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let mut memory = Self::empty(gpu);
        if len == 0 {
            return Ok(memory);
        }
        let out_of_memory =
            |bytes: u64| EngineError::OutOfMemory { needed: bytes, installed: Some(gpu.memory) };
        let needed = (len as u64).saturating_mul(size_of::<T>() as u64);
        if needed > gpu.memory {
            return Err(out_of_memory(needed));
        }
        gpu.bind()?;
        // SAFETY: the stream is the GPU's own; `drop` frees what is allocated here.
        memory.address = match unsafe { result::malloc_async(gpu.stream, needed as usize) } {
            Ok(address) => address,
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Err(out_of_memory(needed)),
            Err(error) => return Err(failed(&format!("{needed} bytes of memory"), &error)),
        };
        memory.len = len;
        Ok(memory)
    }

    /// A copy of values on the host.
    pub(super) fn upload(gpu: &Arc<Gpu>, host: &[T]) -> Result<Self> {
        let mut memory = Self::room(gpu, host.len())?;
        memory.write(0, host)?;
        Ok(memory)
    }

    /// Makes sure that there is room for `len` values; what it held may be lost.
    pub(super) fn reserve(&mut self, len: usize) -> Result<()> {
        if self.len < len {
            // The old memory goes first: both might not fit.
            self.release();
            *self = Self::room(&self.gpu, len)?;
        }
        Ok(())
    }

    /// Gives its memory back: what comes later on the stream may have it.
    pub(super) fn release(&mut self) {
        *self = Self::empty(&self.gpu);
    }

    /// How many values it holds.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where value number `at` is.
    pub(super) fn address_of(&self, at: usize) -> u64 {
        debug_assert!(at <= self.len, "{at} of {}", self.len);
        self.address + (at * size_of::<T>()) as u64
    }

    /// The values from number `at` on, for a kernel.
    pub(super) fn at(&self, at: usize) -> Argument<'static> {
        Argument::Address(self.address_of(at))
    }

    /// All bits zero.
    pub(super) fn clear(&mut self) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        self.gpu.bind()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: the memory is `bytes` long.
        said("clearing memory", unsafe { result::memset_d8_async(self.address, 0, bytes, self.gpu.stream) })
    }

    /// Writes values from number `at` on. The caller has checked that they fit.
    pub(super) fn write(&mut self, at: usize, host: &[T]) -> Result<()> {
        assert!(at + host.len() <= self.len, "{} values from {at} on of {}", host.len(), self.len);
        if host.is_empty() {
            return Ok(());
        }
        self.gpu.bind()?;
        // SAFETY: the values fit. The driver has taken a copy of memory that is not page-locked when the call returns.
        said("writing memory", unsafe {
            result::memcpy_htod_async(self.address_of(at), host, self.gpu.stream)
        })
    }

    /// Reads values from number `at` on, when everything before is done. The caller has checked that there are as many.
    pub(super) fn read(&self, at: usize, host: &mut [T]) -> Result<()> {
        assert!(at + host.len() <= self.len, "{} values from {at} on of {}", host.len(), self.len);
        if host.is_empty() {
            return Ok(());
        }
        self.gpu.bind()?;
        // SAFETY: there are as many values, of this type; the wait comes before the borrow of `host` ends.
        said("reading memory", unsafe {
            result::memcpy_dtoh_async(host, self.address_of(at), self.gpu.stream)
        })?;
        self.gpu.wait()
    }

    /// Copies the first `len` values of other memory. The caller has checked that there are as many in both.
    pub(super) fn copy_from(&mut self, from: &Self, len: usize) -> Result<()> {
        assert!(len <= self.len && len <= from.len, "{len} values of {} and {}", self.len, from.len);
        if len == 0 {
            return Ok(());
        }
        self.gpu.bind()?;
        // SAFETY: both hold as many values, and they are different memory: one is borrowed mutably.
        said("copying memory", unsafe {
            result::memcpy_dtod_async(self.address, from.address, len * size_of::<T>(), self.gpu.stream)
        })
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        if self.address != 0 && self.gpu.bind().is_ok() {
            // SAFETY: it was allocated on this stream and is freed once, after what was asked for before. An error here cannot be
            // reported; the next call will meet it too.
            let _ = unsafe { result::free_async(self.address, self.gpu.stream) };
        }
    }
}

/// The driver's answer, as the engine's.
pub(super) fn said<R>(what: &str, answer: Result<R, DriverError>) -> Result<R> {
    answer.map_err(|error| failed(what, &error))
}

pub(super) fn failed(what: &str, error: &DriverError) -> EngineError {
    EngineError::DeviceFailed(format!(
        "{what}: {}. An error of an earlier kernel may show only now: SUBDEQ_CUDA_SYNC=1 names it",
        words(error)
    ))
}

/// What the driver calls an error.
pub(super) fn words(error: &DriverError) -> String {
    let text = |words: Result<&std::ffi::CStr, DriverError>| {
        words.map_or_else(|_| "unknown error".into(), |words| words.to_string_lossy().into_owned())
    };
    format!("{}, {}", text(error.error_name()), text(error.error_string()))
}
