//! The CPU.
