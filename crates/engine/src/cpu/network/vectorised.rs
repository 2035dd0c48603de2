//! Plain loops compiled for each instruction set.
//!
//! The loops below contain no fused multiply-adds and no reductions that a compiler may reorder, so their results are
//! the same bits whichever version runs.

use crate::cpu::isa::Isa;

/// Runs a loop as compiled for an instruction set.
#[inline]
pub(crate) fn vectorised<R>(isa: Isa, body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if isa.has_avx512() {
            // SAFETY: an `Isa` of this level exists only if the machine has the instructions.
            return unsafe { avx512(body) };
        }
        if isa.has_avx2() {
            // SAFETY: as above.
            return unsafe { avx2(body) };
        }
    }
    let _ = isa;
    body()
}

/// # Safety
/// The machine must have AVX-512 F and DQ.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn avx512<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// # Safety
/// The machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}
