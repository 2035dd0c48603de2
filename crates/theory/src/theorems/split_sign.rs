//! # A3: split the signs
//!
//! `z = s(P z) - s(N z) + y + a` with `P, N >= 0` free, for instance `P = W+` and `N = W-` of one signed matrix. With `alpha_p(m)` and `alpha_n(m)` the
//! shifts that bring the two sides of `s` down to the degree `m`, the factor is the root of `alpha_p(m) + alpha_n(m) = a`:
//!
//! * softsign: `a - sqrt(a^2 - 1)`, below one for every `a > 1`;
//! * tanh: below one if and only if `a > 1.1996786403`.
//!
//! **With gains** (A3'): `A s(P z) - B s(N z) + y + a`, all matrices nonnegative, the root of `A_i alpha_p(m) + B_i alpha_n(m) = a_i` in the worst row; tie
//! `a_i = B_i + eps` (softsign) and no weight needs a constraint.
//!
//! *Why.* `u = P z` and `w = N z` are independent, and each saturates by itself.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//! let wild = Operator::dense(2, vec![500.0, -300.0, -0.1, 40.0])?;
//! for name in ["split-sign", "gains"] {
//!     let map = Map::named(name, Layout::Dense)?;
//!     assert!(Certifier::new().certify(&map, &wild, &Scope::NonnegativeInputs)?.verdict.is_proven());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! `tanh(W z) + y + a` with signed weights: same parameter, same range of the state, but sound.
