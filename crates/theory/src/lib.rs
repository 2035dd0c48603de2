//! What can be proved about an equilibrium layer.
#![forbid(unsafe_code)]
