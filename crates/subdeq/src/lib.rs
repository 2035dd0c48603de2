//! Deep equilibrium layers whose fixed point is provably unique.
#![forbid(unsafe_code)]
