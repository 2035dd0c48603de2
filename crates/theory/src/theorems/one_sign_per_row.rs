//! # Theorem 2 and Lemma 2: weights of one sign per row
//!
//! For `s(W z) + y + a` weak and strong degrees agree as soon as each row of `W` has one sign. The factor is `sup |u| s'(u) / (s(u) + a)`
//!
//! * over `u >= 0` for `W >= 0` (Theorem 2; also for `s(W z + y) + a`): 0.246994 for tanh and `a = 1.2`;
//! * over all `u` for rows of either sign (Lemma 2; the input outside the activation): 0.999124.
//!
//! *Why.* In a row of one sign nothing cancels, so `|J z| = |J| z`. An input inside the activation could outweigh any inhibition, hence the restriction.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::{Scope, Theorem, Verdict}, certify::Certifier};
//! let map = Map::named("subdeq-tanh", Layout::Dense)?;
//! let inhibitory_row = Operator::dense(2, vec![30.0, 2.0, -5.0, -70.0])?;
//! let Verdict::Proven { theorem, .. } = Certifier::new().certify(&map, &inhibitory_row, &Scope::NonnegativeInputs)?.verdict else { panic!() };
//! assert_eq!(theorem, Theorem::RowSignedWeights);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! The claim for *every* `W`, which is false: `W = [[1, -1], [-1, 1]]` with tanh + 1.2 has three fixed points.
