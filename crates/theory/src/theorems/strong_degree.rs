//! # Theorem 1: a strong degree below one
//!
//! **Lemma 1.** On a set of positive vectors that is convex in logarithms (every box is), `d(F(x), F(x')) <= c d(x, x')` in Thompson's metric for all
//! `x, x'` if and only if `|J| z <= c F(z)` there: the *strong* degree is at most `c`.
//!
//! **Theorem 1.** Strong degree `c < 1` on the open positive orthant, or on a closed box that `F` maps into itself: exactly one fixed point, and
//! `d(z_k, z*) <= c^k d(z_0, z*)` from every start.
//!
//! *Why.* `g(u) = ln F(e^u)` has the gradient rows `|J_ij| z_j / F_i`, whose 1-norms the strong degree bounds; then Banach.
//!
//! # Example
//!
//! ```
//! use subdeq_map::Activation;
//! use subdeq_theory::calculus::{Expr, PositiveMap};
//! use subdeq_theory::degree::Nonlinearity;
//! let mixed = Expr::sum([(3.0, Expr::coordinate(0)), (40.0, Expr::coordinate(1))], 0.0)?;
//! let layer = mixed.apply(Nonlinearity::shifted(Activation::Tanh, 1.2))?;
//! assert!(PositiveMap::new(vec![layer.clone(), layer]).verdict().is_proven());
//! # Ok::<(), subdeq_theory::calculus::NotPositive>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! The main theorem, whose proof bounds `|J| z` but whose hypothesis bounds only `|J z|`, the weak degree.
