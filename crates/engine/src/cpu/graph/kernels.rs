//! Kernels as functions of a number type that is known: they are compiled here, once, and not again in every crate that
//! propagates.

use super::adjacency::Thin;
use super::conjugate_gradient::{Advance, Apply, Products, UpdateDirection};
use super::encoder::{Accumulate, Backward, Forward};
use super::propagate::{NormaliseColumns, Propagate};
use super::pull::Pull;
use crate::cpu::distance::Distance;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;

macro_rules! kernels {
    ($($name:ident: $kernel:ident -> $output:ty;)*) => {
        /// See [`crate::cpu::isa::Vectorised`] for what the functions do.
        pub trait GraphKernels: Sized {
            $(
                #[doc(hidden)]
                fn $name(isa: Isa, kernel: $kernel<'_, Self>) -> $output
                where
                    Self: SimdReal;
            )*
        }
        kernels!(f32: $($name: $kernel -> $output;)*);
        kernels!(f64: $($name: $kernel -> $output;)*);
    };
    ($number:ident: $($name:ident: $kernel:ident -> $output:ty;)*) => {
        impl GraphKernels for $number {
            $(
                fn $name(isa: Isa, kernel: $kernel<'_, Self>) -> $output {
                    <Self as SimdReal>::dispatch(isa, kernel)
                }
            )*
        }
    };
}

kernels! {
    propagate: Propagate -> Distance;
    normalise_columns: NormaliseColumns -> Distance;
    pull: Pull -> Distance;
    thin: Thin -> ();
    encode: Forward -> ();
    pull_encoder: Backward -> ();
    accumulate: Accumulate -> ();
    channel_products: Products -> ();
    shifted_product: Apply -> ();
    advance: Advance -> ();
    update_direction: UpdateDirection -> ();
}
