//! A run's `model.safetensors` alone, as somebody meets it who was given nothing else.

use std::path::Path;
use std::process::{Command, Output};

fn subdeq(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args).current_dir(folder).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_model_file_is_certified_without_being_told_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for (arch, model, tensor, kernel, side) in [
        ("dense", "split-sign", "core.weight", None, None),
        ("conv", "monotone", "equation.W", None, Some("8")),
        ("conv", "monotone-tied", "core.a", Some("5"), Some("8")),
    ] {
        let out = format!("{model}-run");
        let train =
            ["train", "--epochs", "1", "--quiet", "--arch", arch, "--model", model, "--channels", "6"];
        let kernel: Vec<&str> = kernel.into_iter().flat_map(|side| ["--kernel", side]).collect();
        let trained = subdeq(folder.path(), &[&train[..], &kernel, &["--out", &out]].concat());
        assert!(trained.status.success(), "{}", told(&trained));
        let file = format!("{model}.safetensors");
        std::fs::rename(folder.path().join(&out).join("model.safetensors"), folder.path().join(&file))
            .unwrap();
        std::fs::remove_dir_all(folder.path().join(&out)).unwrap();
        for ask in [&["certify", "--weights", &file][..], &["certify", &file]] {
            let certified = subdeq(folder.path(), ask);
            assert_eq!(certified.status.code(), Some(0), "{}", told(&certified));
        }
        // The weights of its equation, as if they were anybody's.
        let by_hand = ["certify", "--weights", &file, "--tensor", tensor, "--map", model];
        let side: Vec<&str> = side.into_iter().flat_map(|side| ["--side", side]).collect();
        let certified = subdeq(folder.path(), &[&by_hand[..], &side].concat());
        assert_eq!(certified.status.code(), Some(0), "{}", told(&certified));
        let confused = subdeq(folder.path(), &["certify", "--weights", &file, "--map", model]);
        assert_eq!(confused.status.code(), Some(2));
        assert!(
            told(&confused).contains("is a trained model") && told(&confused).contains("leave --map out")
        );
    }
}
