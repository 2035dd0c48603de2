//! A state of which several processes have a piece each: sums and decisions over the whole.

use std::sync::Arc;

use crate::cpu::graph::Company;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::cpu::vector::{LANES, dots_from};

/// A process's piece of a state.
#[derive(Clone)]
pub(crate) struct Piece<T> {
    /// Who has the others.
    pub company: Arc<dyn Company<T>>,
    /// The place of its first number in the whole.
    pub begin: usize,
    /// Numbers of the whole.
    pub whole: usize,
}

impl<T: SimdReal> Piece<T> {
    /// As `vector::dots`, of whole vectors, with the same bits: each process goes on where the one before ended.
    pub fn dots(&self, isa: Isa, x: &[T], states: &[T], products: &mut [f64]) {
        let count = products.len();
        let mut baton = vec![0.0; count * (1 + LANES)];
        self.company.relay(&mut baton, &mut |baton| {
            let (products, lanes) = baton.split_at_mut(count);
            dots_from(isa, (self.begin, self.whole), x, states, products, lanes);
        });
        products.copy_from_slice(&baton[..count]);
    }

    /// Whether it holds for all pieces.
    pub fn all<const N: usize>(&self, holds: [bool; N]) -> [bool; N] {
        let counts = vec![N; self.company.size()];
        let gathered = self.company.gather(&holds.map(|holds| f64::from(u8::from(holds))), &counts);
        std::array::from_fn(|k| gathered.iter().skip(k).step_by(N).all(|&holds| holds == 1.0))
    }
}
