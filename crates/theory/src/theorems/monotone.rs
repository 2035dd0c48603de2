//! # A7, A8: strongly monotone operators
//!
//! `z = s(W z + y)`, the slopes of `s` in `[0, 1]`, and `sym(T W T^-1) <= (1 - m) I` for a diagonal `T > 0` and an `m > 0`: exactly one solution for every real
//! input. Signs, norm and spectral radius of `W` are free on the negative side. Plain iteration need not converge; Peaceman-Rachford splitting does.
//!
//! *Why.* For two solutions, `e = z - z'` has `e_i (W e)_i >= e_i^2`, so `e'(I - W)e <= 0`, so `e = 0`.
//!
//! **Tied (A8).** A layer with `W = (1-m) I - A'A + b (A - A')` has exactly one solution for every real input, whatever the matrix `A` and the number
//! `b` are, because `sym(W) = (1-m) I - A'A <= (1-m) I`. The certificate takes `m` as the premise and speaks about `A` and `b`, not about `W`: checking it
//! again needs a norm `a` of `A` (for a convolution, of each frequency's matrix), since `||I - W|| <= m + a^2 + 2 |b| a =: L`, and with the step `1/L`
//! the factor of the splitting is at most `sqrt((L-m)/(L+m))`.
//!
//! **Gain.** Solutions move by at most `1/m` times as much as inputs, in the 2-norm: `m = 1` is nonexpansive.
//!
//! *Why.* `dz_i` has the sign of `(W dz + dy)_i` and is at most as large, so `<dz, W dz + dy> >= ||dz||^2`, so `<dz, dy> >= dz'(I - W) dz >= m ||dz||^2`.
//!
//! **Reflected.** `2 m z - y` moves by at most as much as `y`, in the 2-norm, and need not forget anything (with `W = 0`, `m = 1` and a ReLU it is `|y|`):
//! `||2m dz - dy||^2 = ||dy||^2 - 4m (<dz, dy> - m ||dz||^2) <= ||dy||^2`.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//! let map = Map::named("monotone", Layout::Dense)?;
//! let rotation = Operator::dense(2, vec![0.5, -9.0, 9.0, 0.5])?;
//! assert!(Certifier::new().certify(&map, &rotation, &Scope::AllInputs)?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! The monotone baseline as the paper prints it, `W = A'A + B - B'`; what is meant is `W = (1-m) I - A'A + B - B'`.
