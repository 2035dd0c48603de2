//! Processes ("ranks") that work together.
//!
//! One process is the usual case and needs nothing. With the feature `mpi` a program that is started by `mpirun` joins the others
//! ([`Session::join`]); what it then does with [`Ranks`] is written once, for one rank as for many.
#![forbid(unsafe_code)]

mod error;
mod ranks;
mod session;
mod travel;

pub use error::{Error, Result};
pub use ranks::{Number, Ranks};
pub use session::{Neighbours, Session, launched_rank};
