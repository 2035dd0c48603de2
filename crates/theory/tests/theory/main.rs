//! The theory from outside. One program: the library is linked once, not once per subject.

mod attack;
mod bounds;
mod by_form;
mod calculus;
mod counterexamples;
mod degrees;
mod exact;
mod false_verdicts;
mod intervals;
mod metrics;
mod new_theorems;
mod power_means;
mod recheck;
mod support;
