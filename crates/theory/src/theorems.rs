//! What the certificates appeal to: one page per theorem, with an example that runs and the notion of the paper that it
//! replaces. There is no code in these modules.
//!
//! Notation: vectors are real, inequalities and `abs` of vectors and matrices are entrywise, `W+ = max(W, 0)`,
//! `W- = max(-W, 0)`, `sym(X) = (X + X')/2`; `J` is the Jacobian of the map `F`, `s` the activation, `a` the shift, `y` the
//! injection.

pub mod closing_tests;
pub mod divisive;
pub mod error_bounds;
pub mod interval_propagation;
pub mod monomial;
pub mod monotone;
pub mod normalised;
pub mod one_sign_per_row;
pub mod power_means;
pub mod premises;
pub mod refutation;
pub mod split_sign;
pub mod strong_degree;
