//! Networks of several blocks, as a person calls the program.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn subdeq(folder: &Path, args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args.split(' ')).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeed(folder: &Path, args: &str) -> Output {
    let output = subdeq(folder, args);
    assert!(output.status.success(), "{args}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {}", text(&output.stdout)))
}

fn refused(folder: &Path, args: &str) -> String {
    let output = subdeq(folder, args);
    assert_eq!(output.status.code(), Some(2), "{args}: {}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn a_network_is_trained_certified_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let told = succeed(
        path,
        "train --arch conv --model monotone-tied --blocks 8,12 --epochs 3 --lr 0.005 --out run",
    );
    let (out, err) = (text(&told.stdout), text(&told.stderr));
    assert!(err.contains("2 blocks of 8,12 channels, pooled 2x2; 3384 parameters"), "{err}");
    assert!(
        out.contains("certificate: PROVEN: the network has exactly one state")
            && out.contains("Layer 2: PROVEN")
    );
    let error: f64 = out.split("test error ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(error < 40.0, "{out}");

    let tested = json(&succeed(path, "eval run --json"));
    assert!((tested["error"].as_f64().unwrap() - error).abs() < 0.005);
    assert_eq!(tested["all_inputs"]["verdict"].as_str(), Some("proven"));
    assert_eq!(tested["certified"].as_f64(), Some(1.0));
    // What is left of a margin after the errors of two solves.
    let examples = tested["examples"].as_array().unwrap();
    assert!(examples.iter().any(|example| example["radius"].as_f64().is_some_and(|radius| radius > 0.0)));

    let certified = json(&succeed(path, "certify run --json"));
    assert_eq!(certified["verdict"].as_str(), Some("proven"));
    assert_eq!(certified["layers"].as_array().map(Vec::len), Some(2));
    assert!(text(&succeed(path, "certify run").stdout).starts_with("PROVEN: the network"));
    assert!(refused(path, "certify run --samples 3").contains("--samples is for models of one block"));

    let page = std::fs::read_to_string(path.join("run/report.html")).unwrap();
    assert!(page.contains("the network has exactly one state"));
    // The same bits with the config alone.
    succeed(path, "train --config run/config.toml --quiet --out again");
    let bytes = |run: &str| std::fs::read(path.join(run).join("model.safetensors")).unwrap();
    assert!(bytes("run") == bytes("again"));

    let said = refused(path, "train --resume --out run --blocks 8,16");
    assert!(said.contains("--blocks 8,16 where it has 8,12"), "{said}");
    assert!(
        refused(path, "train --config run/config.toml --channels 9").contains("say all widths with --blocks")
    );
    assert!(refused(path, "train --blocks 8,16 --channels 9").contains("--channels"));
    assert!(
        refused(path, "train --arch conv --blocks 8,16 --warm-start")
            .contains("warm starts are for models of one block")
    );
    assert!(refused(path, "train --blocks 8;16").contains("64,128,128"));

    // Dense blocks, and other ones in the place of a config's.
    succeed(path, "train --blocks 16,12,8 --epochs 1 --certify 0 --quiet --out dense");
    succeed(path, "train --config run/config.toml --blocks 6,6,6 --epochs 1 --certify 0 --quiet --out three");
    let config = std::fs::read_to_string(path.join("three/config.toml")).unwrap();
    assert_eq!(config.matches("[[model.block]]").count(), 2, "{config}");
}
