//! The program's `solve` and `bench`, as a person calls them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use subdeq_data::npy::{NpyArray, NpyData};

fn subdeq(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(arguments).current_dir(folder).output().unwrap()
}

fn save(folder: &Path, name: &str, shape: &[usize], data: &[f64]) -> PathBuf {
    let path = folder.join(name);
    NpyArray::new(shape.to_vec(), NpyData::F64(data.to_vec())).unwrap().write(&path).unwrap();
    path
}

/// `solve` of `y.npy` with the weights `w.npy`.
fn solve(folder: &Path, map: &str, more: &[&str]) -> Output {
    let arguments = ["solve", "--weights", "w.npy", "--injection", "y.npy", "--map", map];
    subdeq(folder, &[&arguments[..], more].concat())
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// E1 of the theory has three equilibria: whichever the iteration reaches, nothing is promised about it.
#[test]
fn the_answer_of_a_refuted_layer_comes_without_a_promise() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "w.npy", &[2, 2], &[2.0, -2.0, 0.0, 0.0]);
    save(folder.path(), "y.npy", &[1, 2], &[0.0, 0.0]);
    let output = solve(folder.path(), "subdeq-tanh", &["--out", "z.npy", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let report = json(&output);
    assert_eq!(report["all_inputs"], "refuted");
    assert_eq!(report["samples"][0]["error_bound"], Value::Null);
    let z = NpyArray::read(&folder.path().join("z.npy")).unwrap().to_f64().unwrap();
    assert!([0.242_495_98, 1.2, 2.157_504_02].iter().any(|known| (known - z[0]).abs() < 1e-4), "{z:?}");
}

#[test]
fn a_solve_that_does_not_converge_says_so() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "w.npy", &[2, 2], &[0.0, -2.0, -2.0, 0.0]);
    save(folder.path(), "y.npy", &[1, 2], &[0.3, 0.1]);
    let few = ["--solver", "picard", "--max-iterations", "2", "--json"];
    let output = solve(folder.path(), "subdeq-tanh", &few);
    assert_eq!(output.status.code(), Some(12));
    assert_eq!(json(&output)["samples"][0]["outcome"], "iteration-limit");
}

#[test]
fn a_proven_solution_comes_with_its_bound_and_images_keep_their_layout() {
    let folder = tempfile::tempdir().unwrap();
    let kernel: Vec<f64> = (0..2 * 2 * 9).map(|k| ((k * 7 % 11) as f64 - 5.0) / 20.0).collect();
    let y: Vec<f64> = (0..2 * 2 * 3 * 4).map(|k| (k % 5) as f64 / 3.0).collect();
    save(folder.path(), "w.npy", &[2, 2, 3, 3], &kernel);
    save(folder.path(), "y.npy", &[2, 2, 3, 4], &y);
    let finely = ["--out", "z.npy", "--json", "--precision", "f64", "--tol", "1e-10"];
    let output = solve(folder.path(), "split-sign", &finely);
    assert_eq!(output.status.code(), Some(0));
    let report = json(&output);
    let sample = &report["samples"][1];
    let number = |name: &str| sample[name].as_f64().unwrap();
    assert!(number("error_bound") < 1e-8 && sample["error_metric"] == "thompson");
    let z = NpyArray::read(&folder.path().join("z.npy")).unwrap();
    assert!(z.shape() == [2, 2, 3, 4] && matches!(z.data(), NpyData::F64(_)));
    // Entries are below 5 here, and the relative bound of the largest bounds all.
    assert!(number("relative_error") >= number("error_bound"));
    assert!(number("absolute_error") > number("relative_error") && number("absolute_error") < 5e-8);
    let said = String::from_utf8(solve(folder.path(), "split-sign", &["--out", "z32.npy"]).stdout).unwrap();
    assert!(said.contains("relative, every entry (Thompson's metric") && said.contains("absolute"), "{said}");
    assert!(matches!(NpyArray::read(&folder.path().join("z32.npy")).unwrap().data(), NpyData::F32(_)));
    // The equation itself, channel first, zero beyond the border.
    let z = z.to_f64().unwrap();
    let softsign = |u: f64| u / (1.0 + u.abs());
    for (c, row, column) in [(0, 0, 0), (1, 1, 2), (0, 2, 3)] {
        let (mut positive, mut negative) = (0.0, 0.0);
        for input in 0..2 {
            for tap in 0..9 {
                let (r, q) = (row as i64 + tap / 3 - 1, column as i64 + tap % 3 - 1);
                if (0..3).contains(&r) && (0..4).contains(&q) {
                    let w = kernel[(c * 2 + input) * 9 + tap as usize];
                    let x = w * z[(input * 3 + r as usize) * 4 + q as usize];
                    if w > 0.0 { positive += x } else { negative -= x }
                }
            }
        }
        let at = (c * 3 + row) * 4 + column;
        let expected = softsign(positive) - softsign(negative) + y[at] + 1.2;
        assert!((z[at] - expected).abs() < 1e-6, "{} {expected}", z[at]);
    }
}

#[test]
fn bad_input_gets_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "w.npy", &[2, 2], &[2.0, 0.0, -1.0, 2.0]);
    save(folder.path(), "y.npy", &[1, 3], &[0.0; 3]);
    save(folder.path(), "ok.npy", &[1, 2], &[0.0; 2]);
    for (map, injection, needle, code) in [
        ("split-sign", "y.npy", "y.npy has the shape [1, 3]", 1),
        ("monotone", "ok.npy", "not monotone", 1),
        ("nonsense", "ok.npy", "there is no map `nonsense`", 2),
        ("split-sign", "missing.npy", "missing.npy", 1),
        ("row-signed", "ok.npy", "rows of one sign", 1),
    ] {
        let arguments = ["solve", "--weights", "w.npy", "--injection", injection, "--map", map];
        let output = subdeq(folder.path(), &arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(needle), "{told}");
        assert_eq!(told.trim_end().lines().count(), 1, "{told}");
        assert_eq!(output.status.code(), Some(code), "{told}");
    }
}

#[test]
fn options_of_another_equation_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "w.npy", &[2, 2], &[0.5, -0.5, -0.5, 0.5]);
    save(folder.path(), "y.npy", &[1, 4], &[0.3; 4]);
    for (map, options, needle) in [
        ("power-ratio", &["--shift=-0.5"][..], "a power ratio has no shift"),
        ("power-ratio", &["--activation", "tanh"], "a power ratio has no activation"),
        ("split-sign", &["--power", "0.5"], "takes a power"),
        ("monotone", &["--norm", "inf"], "a monotone map has no normalisation"),
    ] {
        let output = solve(folder.path(), map, options);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(needle) && output.status.code() == Some(2), "{told}");
    }
}

/// The proof of split-sign is about y >= 0; here there are three solutions.
#[test]
fn inputs_that_a_proof_does_not_cover_are_judged_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "w.npy", &[2, 2], &[0.0, -5.0, -5.0, 0.0]);
    save(folder.path(), "y.npy", &[1, 2], &[-1.2, -1.2]);
    let output = solve(folder.path(), "split-sign", &[]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("UNPROVEN") && told.contains("below 0"), "{told}");
    assert!(!told.replace("UNPROVEN", "").to_uppercase().contains("PROVEN"), "{told}");
    let report = json(&solve(folder.path(), "split-sign", &["--json"]));
    assert_eq!(report["all_inputs"], Value::Null);
    let sample = &report["samples"][0];
    assert_eq!((&sample["covered"], &sample["verdict"]), (&false.into(), &"unproven".into()));
    assert_eq!(sample["error_bound"], Value::Null);

    // Beside one that it covers.
    save(folder.path(), "y.npy", &[2, 2], &[-1.2, -1.2, 0.0, 0.5]);
    let report = json(&solve(folder.path(), "split-sign", &["--json"]));
    assert_eq!((&report["all_inputs"], &report["inputs"]), (&"proven".into(), &"nonnegative".into()));
    let covered =
        |k: usize| (report["samples"][k]["covered"].clone(), report["samples"][k]["verdict"].clone());
    assert_eq!(covered(0), (false.into(), "unproven".into()));
    assert_eq!(covered(1), (true.into(), "proven".into()));
    assert!(report["samples"][1]["error_bound"].is_number());
}

/// `certify` and `solve` mean the same equation by the same name.
#[test]
fn names_and_options_mean_one_equation() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), "w.npy", &[2, 2], &[0.5, 0.2, -0.2, -0.5]);
    save(folder.path(), "y.npy", &[1, 2], &[0.3, 0.1]);
    save(folder.path(), "twice.npy", &[1, 4], &[0.3, 0.1, 0.2, 0.4]);
    let cases: [(&str, &[&str]); 10] = [
        ("subdeq-tanh", &["--activation", "sigmoid", "--shift", "0.3"]),
        ("subdeq-power-tanh", &["--shift", "1.5"]),
        ("subdeq-power-tanh", &["--power", "0.5"]),
        ("subdeq-normalized-power-tanh", &["--shift", "0.4"]),
        ("excitatory", &["--norm", "2"]),
        ("row-signed", &[]),
        ("divisive", &["--shift", "0.5"]),
        ("power-ratio", &["--power", "0.3"]),
        ("monotone-tanh", &[]),
        ("monotone-tied", &["--activation", "softsign"]),
    ];
    for (map, options) in cases {
        let sign = if map == "row-signed" { [0.5, 0.2, -0.2, -0.5] } else { [0.5, -0.2, 0.2, -0.5] };
        save(folder.path(), "w.npy", &[2, 2], &sign);
        let y = if map == "power-ratio" { "twice.npy" } else { "y.npy" };
        let ask = |command: &str| {
            let arguments = [command, "--weights", "w.npy", "--injection", y, "--map", map, "--json"];
            json(&subdeq(folder.path(), &[&arguments[..], options].concat()))
        };
        let (certified, solved) = (ask("certify"), ask("solve"));
        assert_eq!(certified["map"], solved["equation"]);
        assert_eq!(certified["weights"], solved["weights"], "{map}");
        assert_eq!(certified["verdict"], "proven", "{map}: {certified}");
    }
    // The power is of activation and shift, and nothing is added outside.
    save(folder.path(), "w.npy", &[2, 2], &[0.5, -0.2, 0.2, -0.5]);
    let finely =
        ["--out", "z.npy", "--precision", "f64", "--tol", "1e-12", "--power", "0.5", "--shift", "1.5"];
    solve(folder.path(), "subdeq-power-tanh", &finely);
    let z = NpyArray::read(&folder.path().join("z.npy")).unwrap().to_f64().unwrap();
    let expected = ((0.5 * z[0] - 0.2 * z[1]).tanh() + 1.5).sqrt() + 0.3;
    assert!((z[0] - expected).abs() < 1e-6, "{z:?} {expected}");
}

#[test]
fn a_bench_prints_the_fields_of_the_peer() {
    let folder = tempfile::tempdir().unwrap();
    let output = subdeq(
        folder.path(),
        &["bench", "--case", "mnist-dense", "--batch", "4", "--repeats", "1", "--threads", "1"],
    );
    let line = json(&output);
    for field in ["train_ms", "eval_ms", "forward_iters", "backward_iters"] {
        assert!(line[field].as_f64().unwrap() > 0.0, "{line}");
    }
    assert_eq!((line["case"].as_str(), line["batch"].as_u64()), (Some("mnist-dense"), Some(4)));
}
