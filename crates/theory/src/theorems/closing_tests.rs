//! # T1 to T4 and TL: signed weights, one by one
//!
//! For `F(z) = s(W z) + b` on a box that `F` maps into itself, with `d_i` the largest slope of `s` there and `D = diag(d)` (`D = I`: all inputs):
//!
//! | test | condition | gives |
//! |---|---|---|
//! | T1 | `D abs(W) v <= theta v`, `v > 0`, `theta < 1` | unique, Picard with factor `theta` in the `v`-weighted sup norm |
//! | T2 | `norm(T D W T^-1) < 1`, `T` diagonal | unique, Picard in the `T`-weighted 2-norm |
//! | T3 | `P D^-1 - sym(P W)` positive definite, `P` diagonal | unique; Picard may oscillate |
//! | T4 | spectral radius of `R abs(W (I - C W)^-1)` below 1, slopes `C +- R` | unique |
//! | TL | `s'(u_i) (abs(W) z)_i / F_i <= c < 1` on the box | unique, Picard with factor `c` in Thompson's metric |
//!
//! *Why.* The difference of two images is `Delta W (z - z')` with secant slopes `0 < Delta <= D`.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//! let map = Map::named("subdeq-tanh", Layout::Dense)?;
//! // The family W = c [[1, -1], [-1, 1]] has one fixed point up to c = 1/2 and three beyond.
//! let family = |c: f64| Operator::dense(2, vec![c, -c, -c, c]);
//! assert!(Certifier::new().certify(&map, &family(0.49)?, &Scope::NonnegativeInputs)?.verdict.is_proven());
//! assert!(!Certifier::new().certify(&map, &family(0.51)?, &Scope::NonnegativeInputs)?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! "without any assumption on W": for signed weights something must be known about them.
