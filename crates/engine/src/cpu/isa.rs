//! Which instructions the kernels may use.

use std::sync::OnceLock;

use crate::cpu::simd::{Lanes, SimdReal};
use crate::{EngineError, Result};

/// A family of vector instructions, from the plainest to the widest; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Portable,
    Avx2,
    Avx512,
    Amx,
}

/// The instruction set that a [`crate::Cpu`] uses.
///
/// A value of this type is a proof that the machine has these instructions: it can only be obtained by asking the
/// machine. The kernels rely on that.
///
/// ```
/// use subdeq_engine::cpu::Isa;
/// assert!(Isa::detect() >= Isa::PORTABLE);
/// assert!(Isa::named("portable").is_ok());
/// assert!(Isa::named("abacus").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(Level);

/// A computation that is written once over [`Lanes`] and compiled for every instruction set.
///
/// `run` must be `#[inline(always)]`, and so must everything hot that it calls: only then is it compiled with the
/// instructions of the entry point it is inlined into.
pub trait Vectorised<T: SimdReal> {
    /// What it returns.
    type Output;
    /// The computation with vectors of type `V`.
    fn run<V: Lanes<Elem = T>>(self) -> Self::Output;
}

impl Isa {
    /// Plain Rust, as the compiler vectorises it for the target; every machine has it.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The widest instruction set of this machine.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| Isa(detect()))
    }

    /// The widest instruction set of this machine, or what the environment variable `SUBDEQ_ISA` names
    /// (`portable`, `avx2`, `avx512`, `amx`).
    pub fn from_environment() -> Result<Isa> {
        match std::env::var("SUBDEQ_ISA") {
            Ok(name) => Self::named(&name),
            Err(_) => Ok(Self::detect()),
        }
    }

    /// The instruction set of this name, if the machine has it.
    pub fn named(name: &str) -> Result<Isa> {
        let level = match name.to_ascii_lowercase().as_str() {
            "portable" => Level::Portable,
            "avx2" => Level::Avx2,
            "avx512" => Level::Avx512,
            "amx" => Level::Amx,
            _ => {
                return Err(EngineError::Invalid(format!(
                    "unknown instruction set '{name}': use portable, avx2, avx512 or amx"
                )));
            }
        };
        let widest = Self::detect();
        if level > widest.0 {
            return Err(EngineError::Invalid(format!(
                "this machine does not have the instruction set {name}: it has {}",
                widest.name()
            )));
        }
        Ok(Isa(level))
    }

    /// All instruction sets of this machine.
    pub fn available() -> impl Iterator<Item = Isa> {
        let widest = Self::detect();
        [Level::Portable, Level::Avx2, Level::Avx512, Level::Amx]
            .into_iter()
            .map(Isa)
            .filter(move |&isa| isa <= widest)
    }

    /// Its name, as `SUBDEQ_ISA` takes it.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Amx => "amx",
        }
    }

    /// The widest instruction set within this one whose vectors have 256 bits at most.
    pub(crate) fn without_avx512(self) -> Isa {
        self.min(Isa(Level::Avx2))
    }

    /// Whether 256-bit vectors with fused multiply-add may be used.
    pub fn has_avx2(self) -> bool {
        self.0 >= Level::Avx2
    }

    /// Whether 512-bit vectors may be used.
    pub fn has_avx512(self) -> bool {
        self.0 >= Level::Avx512
    }

    /// Whether bf16 matrix tiles may be used.
    pub fn has_amx(self) -> bool {
        self.0 >= Level::Amx
    }

    /// Runs a computation with the vectors of this instruction set.
    #[inline]
    pub(crate) fn dispatch<T: SimdReal, K: Vectorised<T>>(self, kernel: K) -> K::Output {
        T::dispatch(self, kernel)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Portable
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        return Level::Portable;
    }
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if !avx512 {
        return Level::Avx2;
    }
    if is_x86_feature_detected!("avx512bf16") && amx_usable() { Level::Amx } else { Level::Avx512 }
}

/// Whether the processor has bf16 tiles and the kernel lets this process use them. The permission is asked for once,
/// for the whole process, and stays.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_usable() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let has = |bit: u32| features & (1 << bit) != 0;
    const AMX_BF16: u32 = 22;
    const AMX_TILE: u32 = 24;
    if !(has(AMX_BF16) && has(AMX_TILE)) {
        return false;
    }
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let answer: i64;
    // SAFETY: the system call arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) touches no memory of ours; it clobbers
    // rcx and r11 as every system call does, and answers 0 or a negative error number.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    answer == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_usable() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names the vectors that a computation gets.
    struct Vectors;
    impl<T: SimdReal> Vectorised<T> for Vectors {
        type Output = &'static str;
        fn run<V: Lanes<Elem = T>>(self) -> &'static str {
            std::any::type_name::<V>()
        }
    }

    #[test]
    fn the_chosen_instruction_set_is_the_one_that_runs() {
        for isa in Isa::available() {
            let vectors = match isa.name() {
                "portable" => "Array<f32, 8>",
                "avx2" => "F32x8",
                _ => "F32x16",
            };
            let found = isa.dispatch::<f32, _>(Vectors);
            assert!(found.ends_with(vectors), "{}: {found}", isa.name());
            assert!(isa.dispatch::<f64, _>(Vectors).ends_with("Array<f64, 8>"));
            assert!(isa.without_avx512() <= isa && !isa.without_avx512().has_avx512());
        }
    }
}
