//! Kernels: the PTX that is compiled ahead, what its kernels take, and arguments for them.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use cudarc::driver::sys;

use super::gpu::Memory;
use crate::{EngineError, Result};

/// One file of kernels.
pub(super) struct Module {
    pub name: &'static str,
    pub ptx: &'static str,
    #[cfg(test)]
    pub target: Target,
    /// What it is compiled from.
    #[cfg(test)]
    pub source: &'static str,
}

/// The GPUs that a file of kernels is compiled for.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// All that the engine runs on.
    Every,
    /// Compute capability 9.0 and no other, for instructions that come with no promise for later ones.
    Hopper,
}

macro_rules! modules {
    ($($target:ident: $($name:literal),*;)*) => {
        /// All kernels. `kernels/build.sh` compiles them.
        pub(super) const MODULES: &[Module] = &[$($(Module {
            name: $name,
            ptx: include_str!(concat!("kernels/", $name, ".ptx")),
            #[cfg(test)]
            target: Target::$target,
            #[cfg(test)]
            source: include_str!(concat!("kernels/", $name, ".cu")),
        }),*),*];
    };
}
modules! {
    Every:
    "memory",
    "data_sets",
    "products",
    "linear",
    "few_channels",
    "convolutions",
    "convolution_gradients",
    "layers",
    "pooling",
    "parametrise",
    "eigen",
    "maps",
    "solve",
    "anderson",
    "broyden",
    "splitting",
    "resolvent",
    "fourier",
    "fourier_8",
    "fourier_16",
    "fourier_28",
    "fourier_32",
    "ode",
    "onchip_dense";
    Hopper:
    "anderson_clusters",
    "warpgroup_convolutions",
    "onchip_c16",
    "onchip_c32",
    "onchip_c48",
    "onchip_c64",
    "onchip_anderson_48_32",
    "onchip_anderson_32_28",
    "onchip_ode_48_32",
    "onchip_ode_32_28";
}

/// The file of kernels of this name.
pub(super) fn module_named(name: &str) -> Option<&'static Module> {
    MODULES.iter().find(|module| module.name == name)
}

/// The file that has a kernel of this name.
pub(super) fn module_with(kernel: &str) -> Option<&'static Module> {
    static FILES: LazyLock<HashMap<&str, &Module>> = LazyLock::new(|| {
        let kernels = |module: &'static Module| entries(module.ptx).map(move |(kernel, _)| (kernel, module));
        MODULES.iter().flat_map(kernels).collect()
    });
    FILES.get(kernel).copied()
}

/// A kernel that is loaded.
#[derive(Clone)]
pub(super) struct Kernel {
    function: sys::CUfunction,
    parameters: Arc<[Parameter]>,
    /// What [`Kernel::allowed`] tells; one number for all copies.
    shared: Arc<AtomicU32>,
}

/// What a kernel takes, as its PTX declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// A number or an address of so many bits; `float` for floating point.
    Number { bits: u8, float: bool },
    /// A struct of so many bytes.
    Struct(usize),
}

impl Kernel {
    pub fn new(function: sys::CUfunction, parameters: Vec<Parameter>) -> Self {
        Self { function, parameters: parameters.into(), shared: Arc::default() }
    }

    pub fn function(&self) -> sys::CUfunction {
        self.function
    }

    /// The most bytes of shared memory that a launch may give a block, as far as the driver was asked. (What it allows unasked depends on
    /// what the kernel has of its own.)
    pub fn allowed(&self) -> u32 {
        self.shared.load(Ordering::Relaxed)
    }

    /// Notes that the driver allows so many.
    pub fn allow(&self, shared: u32) {
        self.shared.fetch_max(shared, Ordering::Relaxed);
    }

    /// Refuses arguments of other kinds: the driver could not tell and would read beyond them.
    pub fn check(&self, name: &str, arguments: &[Argument]) -> Result<()> {
        if arguments.iter().map(Argument::parameter).eq(self.parameters.iter().copied()) {
            return Ok(());
        }
        let given: Vec<Parameter> = arguments.iter().map(Argument::parameter).collect();
        Err(EngineError::DeviceFailed(format!(
            "kernel `{name}` takes {:?}, but was given {given:?}: source and PTX do not belong together",
            self.parameters
        )))
    }
}

/// The kernels of a PTX text, with what they take.
pub(super) fn entries(ptx: &'static str) -> impl Iterator<Item = (&'static str, Vec<Parameter>)> {
    ptx.split(".visible .entry ").skip(1).map(|text| {
        let (name, rest) = text.split_once('(').unwrap_or((text, ""));
        let list = rest.split_once(')').map_or("", |(list, _)| list);
        (name.trim(), list.lines().filter_map(parameter).collect())
    })
}

/// One line of a kernel's parameter list: `.param .u64 .ptr .align 1 name,` or `.param .align 8 .b8 name[48]`.
fn parameter(line: &str) -> Option<Parameter> {
    let line = line.trim().strip_prefix(".param ")?.trim_end_matches(',');
    if let Some((_, rest)) = line.split_once('[') {
        return rest.trim_end_matches(']').parse().ok().map(Parameter::Struct);
    }
    let kind = line.split_whitespace().next()?;
    Some(Parameter::Number { bits: kind[2..].parse().ok()?, float: kind.starts_with(".f") })
}

/// What is given to a kernel.
#[derive(Clone, Copy)]
pub(super) enum Argument<'a> {
    Address(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
    /// A struct: where it is, and its bytes.
    Struct(&'a [u8]),
}

impl Argument<'_> {
    fn parameter(&self) -> Parameter {
        match *self {
            Self::Address(_) | Self::U64(_) => Parameter::Number { bits: 64, float: false },
            Self::U32(_) => Parameter::Number { bits: 32, float: false },
            Self::F32(_) => Parameter::Number { bits: 32, float: true },
            Self::F64(_) => Parameter::Number { bits: 64, float: true },
            Self::Struct(bytes) => Parameter::Struct(bytes.len()),
        }
    }

    /// Where the driver finds it.
    pub fn pointer(&self) -> *mut c_void {
        match self {
            Self::Address(x) | Self::U64(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Self::U32(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Self::F32(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Self::F64(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Self::Struct(bytes) => bytes.as_ptr().cast_mut().cast(),
        }
    }
}

impl<T: Copy> From<&Memory<T>> for Argument<'_> {
    fn from(memory: &Memory<T>) -> Self {
        Self::Address(memory.address_of(0))
    }
}

impl<T: Copy> From<&mut Memory<T>> for Argument<'_> {
    fn from(memory: &mut Memory<T>) -> Self {
        Self::Address(memory.address_of(0))
    }
}

/// Where an array begins; a missing one is the address 0.
pub(super) fn address<T: Copy>(memory: Option<&Memory<T>>) -> u64 {
    memory.map_or(0, |memory| memory.address_of(0))
}

impl<T: Copy> From<Option<&Memory<T>>> for Argument<'_> {
    fn from(memory: Option<&Memory<T>>) -> Self {
        Self::Address(address(memory))
    }
}

impl From<u32> for Argument<'_> {
    fn from(x: u32) -> Self {
        Self::U32(x)
    }
}

/// Lengths are 64 bits on the GPU; shapes are `u32`.
impl From<usize> for Argument<'_> {
    fn from(x: usize) -> Self {
        Self::U64(x as u64)
    }
}

impl From<bool> for Argument<'_> {
    fn from(x: bool) -> Self {
        Self::U32(u32::from(x))
    }
}

impl From<f32> for Argument<'_> {
    fn from(x: f32) -> Self {
        Self::F32(x)
    }
}

impl From<f64> for Argument<'_> {
    fn from(x: f64) -> Self {
        Self::F64(x)
    }
}

/// A struct of plain numbers that a kernel takes by value.
///
/// # Safety
/// `repr(C)`, without padding, and the same fields as the kernels' struct.
pub(super) unsafe trait Passed: Sized {
    fn passed(&self) -> Argument<'_> {
        let start = std::ptr::from_ref(self).cast::<u8>();
        // SAFETY: a struct without padding is as many bytes as its size says, all of them set.
        Argument::Struct(unsafe { std::slice::from_raw_parts(start, size_of::<Self>()) })
    }
}

impl<'a, P: Passed> From<&'a P> for Argument<'a> {
    fn from(passed: &'a P) -> Self {
        passed.passed()
    }
}

impl fmt::Debug for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parameter().fmt(f)
    }
}

/// Puts a kernel on a GPU's stream: `launch!(gpu, "name", grid, argument, ..)`.
macro_rules! launch {
    ($gpu:expr, $name:literal, $grid:expr, $($argument:expr),+ $(,)?) => {
        $gpu.launch($name, $grid, &[$($crate::cuda::kernel::Argument::from($argument)),+])
    };
}
pub(super) use launch;

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: &str = concat!(
        include_str!("kernels/common.cuh"),
        include_str!("kernels/images.cuh"),
        include_str!("kernels/map.cuh"),
        include_str!("kernels/mma.cuh"),
        include_str!("kernels/product.cuh"),
        include_str!("kernels/prox.cuh"),
        include_str!("kernels/solve.cuh")
    );

    const HOPPER_HEADERS: &str = concat!(
        include_str!("kernels/dev.cuh"),
        include_str!("kernels/onchip_report.cuh"),
        include_str!("kernels/onchip.cuh")
    );

    const ONCHIP_ANDERSON_HEADERS: &str = concat!(
        include_str!("kernels/dev.cuh"),
        include_str!("kernels/onchip_report.cuh"),
        include_str!("kernels/onchip_tiles.cuh"),
        include_str!("kernels/onchip_anderson.cuh")
    );

    const ONCHIP_ODE_HEADERS: &str = concat!(
        include_str!("kernels/dev.cuh"),
        include_str!("kernels/onchip_tiles.cuh"),
        include_str!("kernels/onchip_ode.cuh")
    );

    /// What only some files include.
    const COPIES: &str = include_str!("kernels/copies.cuh");
    const CONVOLUTIONS: &str = include_str!("kernels/convolutions.cuh");
    const ANDERSON: &str = include_str!("kernels/anderson.cuh");
    const DEV: &str = include_str!("kernels/dev.cuh");
    const FOURIER_HEADERS: &str = concat!(
        include_str!("kernels/copies.cuh"),
        include_str!("kernels/fourier.cuh"),
        include_str!("kernels/ripples.cuh")
    );

    /// FNV-1a, as `kernels/build.sh` computes it.
    fn hash(text: &str) -> u64 {
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn the_ptx_is_that_of_the_sources() {
        for Module { name, ptx, target, source } in MODULES {
            let headers = match target {
                Target::Hopper if name.starts_with("onchip_anderson") => ONCHIP_ANDERSON_HEADERS,
                Target::Hopper if name.starts_with("onchip_ode") => ONCHIP_ODE_HEADERS,
                Target::Hopper if name.starts_with("onchip") => HOPPER_HEADERS,
                _ => HEADERS,
            };
            let own = match *name {
                name if name.starts_with("fourier") => FOURIER_HEADERS.to_owned(),
                "convolutions" => format!("{COPIES}{CONVOLUTIONS}"),
                "warpgroup_convolutions" => format!("{COPIES}{CONVOLUTIONS}{DEV}"),
                "convolution_gradients" => COPIES.to_owned(),
                "anderson" => ANDERSON.to_owned(),
                "anderson_clusters" => format!("{ANDERSON}{DEV}"),
                _ => String::new(),
            };
            let expected = format!("// source {:016x}", hash(&format!("{headers}{own}{source}")));
            let first = ptx.lines().next().unwrap_or_default();
            assert_eq!(first, expected, "{name}.ptx is not that of {name}.cu: run kernels/build.sh");
        }
    }

    #[test]
    fn every_kernel_is_found_in_its_file() {
        for module in MODULES {
            for (kernel, _) in entries(module.ptx) {
                assert_eq!(module_with(kernel).map(|found| found.name), Some(module.name), "{kernel}");
            }
        }
        assert!(module_with("no such kernel").is_none() && module_named("no such file").is_none());
    }

    #[test]
    fn every_kernel_and_its_parameters_are_read_from_the_ptx() {
        let kernels: std::collections::HashMap<_, _> =
            MODULES.iter().flat_map(|module| entries(module.ptx)).collect();
        let declared: usize = MODULES.iter().map(|m| m.ptx.matches(".entry ").count()).sum();
        assert_eq!(kernels.len(), declared);
        let address = Parameter::Number { bits: 64, float: false };
        assert_eq!(kernels["fill"], [address, address, Parameter::Number { bits: 32, float: true }]);
        assert_eq!(kernels["adam"][..2], [Parameter::Struct(36), Parameter::Struct(704)]);
        assert_eq!(kernels["onchip_solve_c48"], [Parameter::Struct(96)]);
    }
}
