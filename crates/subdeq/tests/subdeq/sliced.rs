//! Batches cut into slices: the mathematics of a batch that is not.

use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use subdeq::model::{Batch, Classifier, ClassifierSpec, Noise};
use subdeq::sliced::{Sliced, check_ranks};
use subdeq::subdeq_engine::{Crop, Dropout, Picks, Summary};
use subdeq::{Adam, Backend, Cpu, Layout, Ranks};

use crate::devices::{cores, images, spec};

type Named = Vec<(String, Vec<f32>)>;

/// Gradients and state after a pass over some images, whose states are kept where `warm`; the parameters stay.
fn passed<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    spec: &ClassifierSpec,
    batch: std::ops::Range<usize>,
    warm: bool,
) -> (Named, Named, Vec<f32>, Summary) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut model = Classifier::new(device.clone(), spec.clone(), &mut rng).unwrap();
    let set = device.images(&images(40, 2), 3).unwrap();
    let list = device.integers(&(0..40).rev().collect::<Vec<u32>>()).unwrap();
    let state_len = if spec.pool.is_some() { 5 * 16 } else { 5 };
    let mut states = device.zeros(40 * state_len).unwrap();
    device.fill(40 * state_len, 1.0, &mut states).unwrap();
    let noise = Noise {
        crop: Crop::new(1, 1, 7),
        input: Dropout::new(0.1, 2, 7),
        head: Dropout::new(0.1, 3, 7),
        label_smoothing: 0.1,
    };
    let picks = Picks { list: &list, range: batch };
    let step = Batch { images: &set, picks, states: warm.then_some(&mut states), noise };
    model.step(step, &Adam::new(0.0, 0.0, 1)).unwrap();
    let mut host = vec![0.0; 40 * state_len];
    device.read(&states, 0, &mut host).unwrap();
    let moments = |(name, _): &(String, Vec<f32>)| !(name.ends_with(".mean") || name.ends_with(".square"));
    let state = model.state().unwrap().into_iter().filter(moments).collect();
    let summary = model.finish().unwrap();
    (model.named_gradients().unwrap(), state, host, summary)
}

fn assert_close(what: &str, found: &Named, expected: &Named) {
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let size = expected.iter().fold(1e-3f32, |size, x| size.max(x.abs()));
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= 2e-4 * size, "{what}, {name}: {a} and {b}");
        }
    }
}

#[test]
fn gradients_and_statistics_are_those_of_the_whole_batch() {
    let cpu = Arc::new(Cpu::<f32>::new(2).unwrap());
    for layout in [Layout::Dense, Layout::Conv] {
        for core in cores(layout) {
            let warm = matches!(core, subdeq::model::CoreSpec::Equilibrium { .. });
            let spec = ClassifierSpec { injection_norm: true, ..spec(layout, core) };
            // More images than slices; fewer, so that some slices are empty.
            for range in [3..36, 0..7] {
                let what = format!("{layout:?} {} {range:?}", spec.core.name());
                let whole = passed(&cpu, &spec, range.clone(), warm);
                let sliced = Arc::new(Sliced::new(cpu.clone(), Ranks::alone(), 16).unwrap());
                let found = passed(&sliced, &spec, range.clone(), warm);
                assert_close(&what, &found.0, &whole.0);
                assert_close(&what, &found.1, &whole.1);
                assert!((found.3.loss - whole.3.loss).abs() < 1e-4 * whole.3.loss, "{what}");
                let counts = |s: Summary| (s.samples, s.correct, s.solves, s.converged, s.adjoint_solves);
                assert_eq!(counts(found.3), counts(whole.3), "{what}");
                if !warm {
                    continue;
                }
                let gap = found.2.iter().zip(&whole.2).fold(0.0f32, |gap, (a, b)| gap.max((a - b).abs()));
                assert!(gap < 1e-3, "{what}: states differ by {gap}");
            }
        }
    }
}

#[test]
fn the_bits_depend_on_the_slices_and_not_on_the_threads() {
    let spec = spec(Layout::Conv, cores(Layout::Conv).swap_remove(0));
    let of = |threads: usize, slices: usize| {
        let cpu = Arc::new(Cpu::<f32>::new(threads).unwrap());
        passed(&Arc::new(Sliced::new(cpu, Ranks::alone(), slices).unwrap()), &spec, 0..33, false)
    };
    assert_eq!(of(1, 16), of(2, 16));
    assert_ne!(of(1, 16).0, of(1, 4).0, "else nothing is shown");
}

#[test]
fn slices_that_make_no_tree_are_refused() {
    for (slices, ranks, words) in [
        (12, 1, "a power of two"),
        (1, 1, "a power of two"),
        (16, 17, "--slices 32"),
        (0, 2, "not cut into slices"),
    ] {
        let error = check_ranks(slices, ranks).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    check_ranks(16, 16).unwrap();
    check_ranks(0, 1).unwrap();
}
