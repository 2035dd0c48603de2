//! # What every verdict says
//!
//! A verdict is about three sets, and names them: `Y`, the inputs it holds for ([`Scope`](crate::certificate::Scope)); `Z`, the states among which the fixed point is the
//! only one; `S`, the starts from which plain iteration reaches it ([`States`](crate::certificate::States)).
//!
//! Proofs by form (A1 to A6) work in the positive orthant: `Z = S =` the positive vectors. They extend to all real vectors where the map sends every real vector
//! into the positive orthant (the range of `s`, plus the shift, plus the least input, is above zero). T1 to T4, TL and A7 look at all real states, for the inputs
//! whose box they use: a box over `y >= 0` proves nothing for `y < 0`. A refutation lies in the same `Y` and `Z` as the question. Where the map is not defined
//! (0/0, ln 0, a power of a negative base) nothing is proved, and "not a number" is never small ([`Upper`](crate::bound::Upper)).
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Activation, Map, Operator};
//! use subdeq_theory::certificate::{Scope, States, Verdict};
//! use subdeq_theory::certify::Certifier;
//! // z = tanh(5 z) + y + 0.3 has one positive solution for y = 0, and two negative ones.
//! let map = Map::single(Activation::Tanh, 0.3)?;
//! let certificate = Certifier::new().certify(&map, &Operator::dense(1, vec![5.0])?, &Scope::NonnegativeInputs)?;
//! assert!(matches!(certificate.verdict, Verdict::Proven { states: States::Positive, .. }));
//! assert!(certificate.to_string().contains("exactly one positive fixed point for every input y >= 0"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! "Unique", without saying among what.
