//! What the test matrices share: every map, dense and convolutional, small enough for finite differences.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::map::{Divisive, Excitatory, Monotone, ParametrisedMap, RowSigned, SplitSign, SubDeq};
use subdeq::{Activation, Cpu, Equilibrium, EquilibriumBuilder, Error, Layout, PNorm, Real};

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Every map by name, and the variants that names do not reach.
pub fn maps(layout: Layout) -> Vec<ParametrisedMap> {
    let named = ParametrisedMap::NAMES.iter().map(|name| ParametrisedMap::named(name, layout).unwrap());
    let mut maps: Vec<ParametrisedMap> = named.collect();
    let softplus = Activation::Softplus { beta: 1.0 };
    let leaky = Activation::LeakyRelu { slope: 0.1 };
    maps.extend([
        built(SubDeq::NormalizedTanh(PNorm::Finite(1.0))),
        built(SubDeq::NormalizedTanh(PNorm::Finite(10.0))),
        built(Excitatory::new(Activation::Sigmoid, 0.5)),
        built(RowSigned::new(Activation::Tanh, 1.603)),
        built(SplitSign::new(Activation::Tanh, 1.603)),
        built(Divisive::new(Activation::Softsign, 1.2).q(0.5)),
        built(Monotone::new(leaky).shifted(0.1)),
        built(Monotone::new(softplus).shifted(0.1)),
        built(Monotone::new(Activation::Tanh).shifted(0.1).outer(1.2)),
        built(Monotone::new(Activation::Softsign).shifted(0.1).outer(0.0)),
        built(Monotone::new(Activation::Relu).shifted(0.1).outer(0.0)),
    ]);
    for activation in [Activation::Relu, leaky, Activation::Tanh, Activation::Softsign, softplus] {
        maps.push(built(Monotone::new(activation).product(0.5)));
        maps.push(built(Monotone::new(activation).product(0.5).outer(0.3)));
        maps.push(built(Monotone::new(activation).tied(0.1)));
        maps.push(built(Monotone::new(activation).tied(1.0).outer(0.3)));
    }
    if layout == Layout::Conv {
        let relu = Monotone::new(Activation::Relu);
        for (monotone, side) in [(relu.shifted(0.1), 5), (relu.product(0.5), 1), (relu.tied(1.0), 5)] {
            maps.push(built(monotone).with_kernel(side).unwrap());
        }
    }
    maps
}

pub fn built(map: impl TryInto<ParametrisedMap, Error = Error>) -> ParametrisedMap {
    map.try_into().unwrap()
}

pub fn builder(layout: Layout) -> EquilibriumBuilder {
    if layout == Layout::Dense { Equilibrium::dense(6) } else { Equilibrium::conv(2, 4, 3) }
}

pub fn cpu<T: Real>() -> Arc<Cpu<T>> {
    Arc::new(Cpu::new(1).unwrap())
}

/// Injections of two samples, nonnegative as the subhomogeneous maps want them.
pub fn injections(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = rng(seed);
    (0..2 * len).map(|_| rng.random_range(0.0..1.0)).collect()
}

pub fn random(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = rng(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

pub fn describe(map: &ParametrisedMap, layout: Layout) -> String {
    let (equation, made, side) = (map.equation(layout), map.parametrisation(), map.kernel());
    format!("{layout:?} {} {equation} {made:?} of side {side}", map.name())
}
