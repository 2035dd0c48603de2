//! The table of fractions certified: Gaussian weights, entries N(0, g^2/n), tanh + 1.2, y = 0 and y = 2 ReLU(N(0, 1)).

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use subdeq_map::{Activation, Map, Operator};
use subdeq_theory::certificate::{Domain, Scope, States, Theorem};
use subdeq_theory::certify::Certifier;

use super::campaign::{matrix, normal};
use super::evaluate::System;

const ROWS: [(usize, f64); 12] = [
    (2, 1.0),
    (5, 1.0),
    (10, 0.5),
    (10, 1.0),
    (10, 2.0),
    (20, 1.0),
    (50, 0.7),
    (50, 5.0),
    (87, 0.1),
    (87, 0.5),
    (87, 1.0),
    (87, 5.0),
];

const COLUMNS: [(&str, Domain, Theorem); 10] = [
    ("all:T1", Domain::Everywhere, Theorem::WeightedSup),
    ("all:T2", Domain::Everywhere, Theorem::WeightedTwoNorm),
    ("all:T3", Domain::Everywhere, Theorem::DiagonalStability),
    ("B0:T1", Domain::Propagated { steps: 0 }, Theorem::WeightedSup),
    ("B0:TL", Domain::Propagated { steps: 0 }, Theorem::LogJacobian),
    ("IBP+T1", Domain::Propagated { steps: 50 }, Theorem::WeightedSup),
    ("IBP+T2", Domain::Propagated { steps: 50 }, Theorem::WeightedTwoNorm),
    ("IBP+T3", Domain::Propagated { steps: 50 }, Theorem::DiagonalStability),
    ("sec T1", Domain::Propagated { steps: 50 }, Theorem::SecantWeightedSup),
    ("sec T3", Domain::Propagated { steps: 50 }, Theorem::SecantDiagonalStability),
];

/// Prints the table with `per_row` systems per entry (a tenth of it from n = 50 on).
pub fn print(per_row: usize, seed: u64) {
    print!("{:>3} {:>4}", "n", "g");
    COLUMNS.iter().for_each(|(name, ..)| print!(" {name:>9}"));
    println!(" {:>9}", "several");
    for (n, gain) in ROWS {
        let systems = if n >= 50 { per_row.div_ceil(10) } else { per_row };
        let [without, with] = [false, true].map(|inputs| count(n, gain, inputs, systems, seed));
        print!("{n:>3} {gain:>4}");
        let share = |count: usize| count as f64 / systems as f64;
        for (without, with) in without.into_iter().zip(with) {
            print!(" {:>4.2}/{:<4.2}", share(without), share(with));
        }
        println!();
    }
}

fn count(n: usize, gain: f64, inputs: bool, systems: usize, seed: u64) -> [usize; COLUMNS.len() + 1] {
    let map = Map::single(Activation::Tanh, 1.2).unwrap();
    let one = |k: usize| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(((n * 1000) as u64) << 32 | k as u64);
        let w = Operator::dense(n, matrix("gaussian", n, gain, &mut rng)).expect("finite");
        let y: Vec<f64> =
            (0..n).map(|_| if inputs { 2.0 * normal(&mut rng).max(0.0) } else { 0.0 }).collect();
        let mut passed = [0; COLUMNS.len() + 1];
        let mut certifier = Certifier::proofs_only();
        for (column, &(_, domain, theorem)) in COLUMNS.iter().enumerate() {
            let scope =
                if domain == Domain::Everywhere { Scope::AllInputs } else { Scope::Sample { y: y.clone() } };
            let found = certifier.close(&map, &w, &scope, domain, theorem).expect("a proper question");
            passed[column] = usize::from(found.is_some_and(|found| found.verdict.is_proven()));
        }
        passed[COLUMNS.len()] = usize::from(several(&System::new(&map, &w, &y, States::Positive), &mut rng));
        passed
    };
    (0..systems)
        .into_par_iter()
        .map(one)
        .reduce(|| [0; COLUMNS.len() + 1], |a, b| std::array::from_fn(|i| a[i] + b[i]))
}

/// Whether plain iteration has two limits.
fn several(system: &System<'_>, rng: &mut ChaCha8Rng) -> bool {
    let mut known: Option<Vec<f64>> = None;
    (0..12).any(|k| {
        let start = if k < 3 { system.corner(k) } else { system.start(rng, States::Positive) };
        let (z, residual) = system.iterate(start, 500);
        if residual > 1e-10 {
            return false;
        }
        match &known {
            None => {
                known = Some(z);
                false
            }
            Some(other) => other.iter().zip(&z).any(|(a, b)| (a - b).abs() > 1e-6),
        }
    })
}
