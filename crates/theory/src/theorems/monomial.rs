//! # A5 and A6: monomials and power ratios
//!
//! **A5.** `z = s(exp(W ln z)) + y + a`: the factor is `||W||_inf mu_p(a)`, a mild constraint on signed `W` (4.04 for tanh and `a = 1.2`).
//!
//! **A6.** `z = ((P z + y1 + e) / (N z + y2 + e))^p` with `P, N >= 0` free and `e > 0`: numerator and denominator have degrees at most one, so the factor is
//! `2 p`, below one for every `p < 1/2`.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//! let map = Map::named("monomial", Layout::Dense)?;
//! let verdict = |w| Ok::<_, Box<dyn std::error::Error>>(Certifier::new().certify(&map, &Operator::dense(2, w)?, &Scope::NonnegativeInputs)?.verdict);
//! assert!(verdict(vec![2.0, -2.0, 0.5, 1.0])?.is_proven());
//! assert!(!verdict(vec![3.0, -3.0, 0.5, 1.0])?.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! The power scaling trick, which needs a positive base and thus excludes `tanh(W z)^0.99` with signed weights.
