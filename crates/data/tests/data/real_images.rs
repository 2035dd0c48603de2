//! The real data sets, where they are there: `SUBDEQ_DATA`, or `../shared/data` beside the workspace.

use std::path::Path;

use sha2::{Digest, Sha256};
use subdeq_data::checksum::Checksum;
use subdeq_data::image_dataset::ImageDataset;
use subdeq_data::jxl_sheet::Sheet;
use subdeq_data::split::SplitRule;
use subdeq_data::standardise::Standardisation;

use crate::real::data;
use crate::skipped::skipped;

fn close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance, "{found:?} instead of {expected:?}");
    }
}

#[test]
fn mnist() {
    let Some(root) = data("mnist", "mnist") else { return };
    for (file, md5) in [
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ] {
        let path = root.join("mnist").join(file);
        if path.exists() {
            Checksum::Md5(md5).check(&path).unwrap();
        }
    }
    let mnist = ImageDataset::load("mnist", Some(&root)).unwrap();
    assert_eq!((mnist.official_train, mnist.official_test()), (60_000, 10_000));
    assert_eq!(mnist.images.labels()[..5], [5, 0, 4, 1, 9]);
    let all: Vec<u32> = (0..60_000).collect();
    let measured = Standardisation::measured(&mnist.images, &all).unwrap();
    close(&measured.mean, &[0.1307], 5e-5);
    close(&measured.deviation, &[0.3081], 5e-5);

    let release = mnist.split(SplitRule::Release, 1).unwrap();
    assert_eq!((release.train.len(), release.validation.len(), release.test.len()), (50_000, 10_000, 10_000));
    assert!(release.test.iter().all(|&i| i >= 60_000));
    let paper = mnist.split(SplitRule::Paper, 1).unwrap();
    assert_eq!((paper.train.len(), paper.validation.len(), paper.test.len()), (49_700, 10_150, 10_150));
}

/// The SHA-256 of the original file that a sheet stands for, as `unpacked.sha256` has it.
fn unpacked_sha256(root: &Path, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(root.join("unpacked.sha256")).ok()?;
    text.lines().find_map(|line| line.strip_suffix(file).map(|hash| hash.trim().to_owned()))
}

#[test]
fn a_cifar_sheet_is_the_original_batch() {
    let name = "a_cifar_sheet_is_the_original_batch";
    let Some(root) = data(name, "cifar10") else { return };
    let sheet = root.join("cifar10/test_batch.jxl");
    let Some(expected) =
        unpacked_sha256(&root, "cifar-10-batches-bin/test_batch.bin").filter(|_| sheet.exists())
    else {
        skipped(format!("{name}: no data at {}", sheet.display()));
        return;
    };
    let labels = std::fs::read(root.join("cifar10/test_labels.u8")).unwrap();
    let mut images = Vec::new();
    Sheet::read(&sheet).unwrap().cut(32, 10_000, "sheet", &mut images).unwrap();
    let mut hash = Sha256::new();
    for (label, image) in labels.iter().zip(images.chunks_exact(3072)) {
        hash.update([*label]);
        hash.update(image);
    }
    let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(found, expected);
}

#[test]
fn an_svhn_sheet_and_all_labels() {
    let name = "an_svhn_sheet_and_all_labels";
    let Some(root) = data(name, "svhn") else { return };
    let sheet = root.join("svhn/train_7.jxl");
    if !sheet.exists() {
        skipped(format!("{name}: no data at {}", sheet.display()));
        return;
    }
    let mut images = Vec::new();
    Sheet::read(&sheet).unwrap().cut(32, 3_257, "sheet", &mut images).unwrap();
    assert_eq!(images.len(), 3_257 * 3072);
    for (file, expected) in [
        ("train", [13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659, 4948]),
        ("test", [5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595, 1744]),
    ] {
        let labels = std::fs::read(root.join(format!("svhn/{file}_labels.u8"))).unwrap();
        let counts: Vec<usize> = (1..=10).map(|l| labels.iter().filter(|&&x| x == l).count()).collect();
        assert_eq!(counts, expected);
    }
}

#[test]
fn tiny_imagenet() {
    let Some(root) = data("tiny_imagenet", "tiny-imagenet") else { return };
    let tiny = ImageDataset::load("tiny-imagenet", Some(&root)).unwrap();
    let classes = tiny.images.classes();
    assert_eq!(tiny.official_train, 500 * classes);
    assert_eq!(tiny.official_test(), 50 * classes);
    assert!(tiny.images.label_counts().iter().all(|&count| count == 550));
    let split = tiny.split(SplitRule::Release, 0).unwrap();
    assert_eq!(split.validation, split.test);
    assert!(tiny.split(SplitRule::Paper, 0).is_err());
}

/// Minutes of decoding: `cargo test -- --ignored`.
#[test]
#[ignore = "decodes all sheets"]
fn whole_cifar_and_svhn() {
    let Some(root) = data("whole_cifar_and_svhn", "cifar10") else { return };
    let cifar = ImageDataset::load("cifar10", Some(&root)).unwrap();
    assert_eq!(cifar.class_names[0], "airplane");
    assert_eq!(cifar.images.label_counts(), [6000; 10]);
    let train: Vec<u32> = (0..50_000).collect();
    let measured = Standardisation::measured(&cifar.images, &train).unwrap();
    close(&measured.mean, &[0.4914, 0.4822, 0.4465], 5e-5);
    close(&measured.deviation, &[0.2470, 0.2435, 0.2616], 5e-5);
    let Some(root) = data("whole_cifar_and_svhn", "svhn") else { return };
    let svhn = ImageDataset::load("svhn", Some(&root)).unwrap();
    let train: Vec<u32> = (0..73_257).collect();
    let measured = Standardisation::measured(&svhn.images, &train).unwrap();
    close(&measured.mean, &[0.4376821, 0.4437697, 0.47280442], 1e-6);
    close(&measured.deviation, &[0.19803012, 0.20101562, 0.19703614], 1e-6);
    let split = svhn.split(SplitRule::Paper, 0).unwrap();
    assert_eq!((split.train.len(), split.validation.len(), split.test.len()), (50_000, 23_257, 26_032));
}
