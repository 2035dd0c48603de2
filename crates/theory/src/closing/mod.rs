//! The closing tests: sufficient conditions for exactly one fixed point on a set where the slopes of the response are
//! bounded, `|phi'(u_i)| <= d_i`. Each returns a bound that is rounded outward.
//!
//! | test | condition | gives |
//! |---|---|---|
//! | [`weighted_sup`] T1 | `D\|W\|v <= theta v`, `theta < 1` | unique, Picard, factor `theta` in `\|\|.\|\|_v` |
//! | [`two_norm`] T2 | `\|\|T D W T^-1\|\|_2 < 1` | unique, Picard in the weighted 2-norm |
//! | [`diagonal_stability`] T3 | `P D^-1 - sym(P W)` positive definite | unique |
//! | [`slope_interval`] T4 | `rho(R \|W (I - Dc W)^-1\|) < 1` | unique |
//! | [`log_jacobian`] TL | log-Jacobian of absolute row sum `< 1` on a box | unique, Picard in Thompson's metric |

pub(crate) mod diagonal_stability;
pub(crate) mod log_jacobian;
pub(crate) mod slope_interval;
pub(crate) mod two_norm;
pub(crate) mod weighted_sup;
