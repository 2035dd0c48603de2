//! Plain loops compiled for the widest vectors of the machine.
//!
//! The loops below contain no fused multiply-adds and no reductions that a compiler may reorder, so their results are
//! the same bits whichever version runs.

/// Runs a loop as compiled for AVX-512 or AVX2 where the machine has them.
#[inline]
pub(super) fn vectorised<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            // SAFETY: the features were just found.
            return unsafe { avx512(body) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just found.
            return unsafe { avx2(body) };
        }
    }
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
