//! A short run of the fuzzer, the same inputs every time.

use std::path::{Path, PathBuf};

use subdeq_data::graph::{Csr, pickle};
use subdeq_data::npy::{NpyArray, NpyData};
use subdeq_data::npz::Npz;
use subdeq_data::{idx, matlab};

use crate::mutate;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

#[test]
fn no_reader_panics_on_mutated_files() {
    for reader in mutate::READERS {
        let mut mutator = mutate::Mutator::new(1, mutate::seeds(&corpus(), reader));
        // Pictures are decoded for real, which takes its time.
        let runs = if *reader == "jxl" { 300 } else { 4000 };
        let mut accepted = 0;
        for _ in 0..runs {
            let (bytes, variant) = mutator.next();
            accepted += usize::from(mutate::read(reader, &bytes, variant));
        }
        assert!(accepted < runs, "{reader} accepts everything");
    }
}

#[test]
fn every_seed_is_accepted() {
    for reader in mutate::READERS {
        for (i, seed) in mutate::seeds(&corpus(), reader).iter().enumerate() {
            // Seeds are sorted by name: for archives, the variants are in the same order.
            let variant = if *reader == "archive" { i as u64 } else { 1 };
            assert!(mutate::read(reader, seed, variant), "{reader}, seed {i}");
        }
    }
}

/// The seeds were written by NumPy, SciPy and Pillow: their values are known.
#[test]
fn files_of_other_programs_have_the_right_values() {
    let ramp = NpyArray::new(vec![2, 3], NpyData::F32((0..6).map(|i| i as f32).collect())).unwrap();
    assert_eq!(NpyArray::read(&corpus().join("npy/c_f4.npy")).unwrap(), ramp);
    for file in ["npy/fortran_f8.npy", "npy/big_i2_v2.npy"] {
        let array = NpyArray::read(&corpus().join(file)).unwrap();
        assert_eq!((array.shape(), array.to_f32().unwrap()), (&[2, 3][..], vec![0., 1., 2., 3., 4., 5.]));
    }
    let matrix = Csr::from_dense("m", 2, 3, &[0., 2., 0., 1., 0., 0.5]).unwrap();
    for file in ["npz/stored.npz", "npz/deflated.npz"] {
        let npz = Npz::read(&corpus().join(file)).unwrap();
        assert_eq!(Csr::from_npz(&npz, "", file).unwrap(), matrix);
    }
    let csr = std::fs::read(corpus().join("pickle/csr.pickle")).unwrap();
    assert_eq!(pickle::read(&csr, "csr").unwrap(), pickle::Pickled::Sparse(matrix));
    assert_eq!(
        idx::read(&corpus().join("idx/images.idx.gz")).unwrap(),
        idx::read(&corpus().join("idx/images.idx")).unwrap()
    );
    let plain = matlab::read(&corpus().join("matlab/plain.mat")).unwrap();
    assert_eq!(plain, matlab::read(&corpus().join("matlab/compressed.mat")).unwrap());
    assert_eq!((plain[0].name.as_str(), &plain[0].dims[..]), ("X", &[2, 2, 3, 2][..]));
    // Element (1, 0, 2, 1) of a C-ordered ramp is 1*12 + 0*6 + 2*2 + 1; MATLAB stores it at 1 + 2*(0 + 2*(2 + 3*1)).
    let NpyData::U8(values) = &plain[0].data else { panic!("bytes expected") };
    assert_eq!(values[21], 17);
}
