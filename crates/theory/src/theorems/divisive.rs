//! # A4: divide by the inhibition
//!
//! `z = s(P z / (q + N z)) + y + a`, `P, N >= 0` free, `q > 0`: the ratio has a strong degree below two, so the factor is `2 mu_p(a)` (tight): 0.493988
//! for tanh and `a = 1.2`. With softsign it is the rational layer `z = P z / (q + P z + N z) + y + a` with the factor `2 (sqrt(1+a) - sqrt(a))^2`,
//! below one if and only if `a > 1/8`.
//!
//! # Example
//!
//! ```
//! use subdeq_theory::degree::forms::{divisive, rational};
//! use subdeq_map::Activation;
//! assert!((divisive(Activation::Tanh, 1.2)?.bound() - 0.493988).abs() < 1e-6);
//! assert!(rational(0.126)?.is_contraction() && !rational(0.124)?.is_contraction());
//! # Ok::<(), subdeq_theory::degree::NoDegree>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! Signed weights: inhibition divides in place of subtracting.
