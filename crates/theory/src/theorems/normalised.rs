//! # Theorems 3 and 4: normalised maps
//!
//! `G = F / phi(F)` with `phi` monotone and 1-homogeneous, such as a p-norm.
//!
//! **Theorem 3.** One normalised vector and an order-preserving `F` of degree `mu`: `G` contracts Hilbert's metric by `mu` on the slice `phi = 1`, so `mu < 1` suffices.
//!
//! **Theorem 4.** In general the factor is `kappa = max_i P_i + max_k N_k`, the largest sums of positive and of negative entries in a row of the log-Jacobian:
//! `mu_p + mu_n` for rows of one sign, `mu_p(a-1) + mu_n(a)` for split signs. Groups that are normalised separately but depend on one another need twice the
//! strong degree to be below one.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::{Metric, Scope, Verdict}, certify::Certifier};
//! let map = Map::named("subdeq-normalized-tanh", Layout::Dense)?;
//! let positive = Operator::dense(2, vec![7.0, 3.0, 1.0, 60.0])?;
//! let Verdict::Proven { metric, .. } = Certifier::new().certify(&map, &positive, &Scope::NonnegativeInputs)?.verdict else { panic!() };
//! assert_eq!(metric, Metric::Hilbert);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! The corollary for normalised maps: its inequality in Thompson's metric is false (a factor `2 mu` is attained), and so is uniqueness for signed weights and for interacting groups with `mu > 1/2`.
