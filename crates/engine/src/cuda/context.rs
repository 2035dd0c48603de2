//! What everything in the process that uses one GPU has in common: its context, and the kernels that are loaded there.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::gpu::{failed, said, words};
use super::kernel::{Kernel, Module, entries};
use crate::{EngineError, Result};

/// The primary context of a GPU. Streams of several trainings share it, and with it the kernels: loading a file of them may wait for all
/// that the GPU is doing, which for a training that begins beside others would be until they end.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Those of the files that are loaded, by name. Whoever loads holds back the launches of all others meanwhile.
    kernels: RwLock<HashMap<&'static str, Kernel>>,
}

// SAFETY: contexts and functions are handles that the driver allows every thread to use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The contexts in use, by the number of their GPU.
static CONTEXTS: Mutex<BTreeMap<sys::CUdevice, Weak<Context>>> = Mutex::new(BTreeMap::new());

impl Context {
    /// The context of a GPU that the driver has handed out.
    pub fn of(device: sys::CUdevice) -> Result<Arc<Self>> {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&device).and_then(Weak::upgrade) {
            return Ok(context);
        }
        // SAFETY: the device was handed out by the driver; `drop` releases what is retained here.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|error| cannot_open(&error))?;
        let context = Arc::new(Self { device, context, kernels: RwLock::default() });
        contexts.insert(device, Arc::downgrade(&context));
        Ok(context)
    }

    /// Makes it current on this thread.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        said("the GPU", unsafe { result::ctx::set_current(self.context) })
    }

    /// A kernel, if its file is loaded.
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Loads a file of kernels and prepares each of them, if that has not been done.
    pub fn load_once(
        &self,
        module: &Module,
        prepare: impl Fn(&Kernel, &'static str) -> Result<()>,
    ) -> Result<()> {
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        if entries(module.ptx).next().is_none_or(|(first, _)| kernels.contains_key(first)) {
            return Ok(());
        }
        self.bind()?;
        let loaded = load(module)?;
        for (name, kernel) in &loaded {
            prepare(kernel, name)?;
        }
        kernels.extend(loaded);
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and whatever lives in it holds `self`. Nothing can be done about an error: the process may be
        // ending, and the driver with it.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Nothing ran before: what is missing is what other processes have.
fn cannot_open(error: &DriverError) -> EngineError {
    let others = match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            ": other processes leave no room for one more on the GPU (`nvidia-smi` lists them; under MPS they also share connections, of \
             which each takes CUDA_DEVICE_MAX_CONNECTIONS)"
        }
        _ => "",
    };
    EngineError::DeviceFailed(format!("opening a GPU: {}{others}", words(error)))
}

/// Loads a file of kernels into the current context.
fn load(module: &Module) -> Result<HashMap<&'static str, Kernel>> {
    let mut kernels = HashMap::new();
    let image =
        CString::new(module.ptx).map_err(|_| EngineError::DeviceFailed("PTX with a zero byte".into()))?;
    // SAFETY: the image is text that ends with a zero, as the driver expects of PTX.
    let loaded = unsafe { result::module::load_data(image.as_ptr().cast()) };
    let loaded = loaded.map_err(|error| failed(&format!("loading `{}.ptx`", module.name), &error))?;
    for (name, parameters) in entries(module.ptx) {
        let symbol =
            CString::new(name).map_err(|_| EngineError::DeviceFailed("a name with a zero byte".into()))?;
        // SAFETY: the module is loaded, and stays so as long as its context: modules are never unloaded.
        let function = unsafe { result::module::get_function(loaded, symbol) };
        let function = function.map_err(|error| failed(&format!("kernel `{name}`"), &error))?;
        kernels.insert(name, Kernel::new(function, parameters));
    }
    Ok(kernels)
}
