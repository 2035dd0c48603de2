//! Files and options that ask for the impossible: one sentence, status 1 or 2, less than a gigabyte, no panic, no hang.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A gigabyte, in the units of `ulimit`: heap, stacks and whatever else is written to. Who asks for more is aborted.
const KIBIBYTES: u64 = 1_000_000_000 / 1024;
/// More than any of these calls takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn limited(folder: &Path, arguments: &[&str]) -> Output {
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -d {KIBIBYTES} && exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_subdeq"))
        .args(arguments)
        .current_dir(folder)
        // One heap for all threads: each would reserve some of the little there is.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{arguments:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = limited(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The sentence that something is refused with.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = limited(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let what = format!("{arguments:?}: {} {said}", output.status);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{what}");
    assert!(output.stdout.is_empty() && !said.contains("panicked"), "{what}");
    assert_eq!(said.lines().count(), 1, "{what}");
    assert!(said.len() < 2000, "{what}");
    said
}

/// A run on digits, one on images with a convolution, one on a graph, and an image.
fn runs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let train = |out: &str, options: &[&str]| {
        let usual = ["train", "--epochs", "2", "--certify", "0", "--quiet", "--out", out];
        succeeds(folder.path(), &[&usual[..], options].concat());
    };
    train("dense", &["--channels", "8"]);
    train("conv", &["--arch", "conv", "--model", "power-ratio", "--channels", "2"]);
    train("graph", &["--data", "karate", "--channels", "8"]);
    let pixels = subdeq_data::npy::NpyArray::new(vec![8, 8], subdeq_data::npy::NpyData::U8(vec![3; 64]));
    pixels.unwrap().write(&folder.path().join("image.npy")).unwrap();
    folder
}

/// A `.safetensors` file in its parts.
#[derive(Clone)]
struct Parts {
    header: Value,
    data: Vec<u8>,
}

impl Parts {
    fn read(path: &Path) -> Parts {
        let bytes = fs::read(path).unwrap();
        let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        Parts { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header).unwrap();
        fs::write(path, [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat()).unwrap();
    }

    /// The same with one value of the note changed: `/config/model/hidden`.
    fn with_note(&self, place: &str, value: &Value) -> Parts {
        let mut parts = self.clone();
        let text = &mut parts.header["__metadata__"]["subdeq"];
        let mut note: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        *note.pointer_mut(place).unwrap_or_else(|| panic!("the note has no {place}")) = value.clone();
        *text = note.to_string().into();
        parts
    }

    fn arrays(&self) -> Vec<(String, usize)> {
        let arrays = self.header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        arrays.map(|(name, at)| (name.clone(), at["data_offsets"][0].as_u64().unwrap() as usize)).collect()
    }
}

/// Sizes that no model has.
fn absurd() -> Vec<Value> {
    vec![json!(0), json!(4_000_000_000u64), json!(u64::MAX / 3), json!(u64::MAX), json!(-1), json!(1e308)]
}

#[test]
fn a_note_that_lies_about_sizes_is_refused_by_name() {
    let folder = runs();
    let at = |path: &str| folder.path().join(path);
    for run in ["dense", "conv"] {
        let path = at(&format!("{run}/model.safetensors"));
        let whole = Parts::read(&path);
        let size = |name: &str| format!("/config/model/{name}");
        let mut cases: Vec<(String, Value)> = Vec::new();
        for name in ["hidden", "height", "width", "channels", "classes"] {
            cases.extend(absurd().into_iter().map(|value| (size(name), value)));
        }
        for value in [json!([]), json!([-1.0]), json!([0.0]), json!([0.1, 0.1])] {
            cases.push(("/config/data/deviation".to_owned(), value));
        }
        cases.push(("/config/data/mean".to_owned(), json!([])));
        cases.push(("/config/data/white".to_owned(), json!(0)));
        cases.push(("/config/data/class_names".to_owned(), json!(["one"])));
        cases.push(("/config/model/core/stopping/max_iterations".to_owned(), json!(u64::MAX)));
        let anderson =
            |window: u64| json!({"name": "anderson", "window": window, "ridge": 1e-4, "mixing": 1.0});
        for window in [0, 4_000_000_000] {
            cases.push(("/config/model/core/solver".to_owned(), anderson(window)));
        }
        for steps in [0u64, 4_000_000_000, 900_000] {
            let unrolled = json!({"name": "unrolled", "steps": steps});
            cases.push(("/config/model/core/adjoint".to_owned(), unrolled));
        }
        if run == "conv" {
            cases.extend([0u64, 9, u64::MAX].map(|pool| (size("pool"), json!(pool))));
        }
        for (place, value) in cases {
            whole.with_note(&place, &value).write(&path);
            for arguments in [vec!["eval", run], vec!["predict", run, "image.npy"], vec!["certify", run]] {
                let said = refused(folder.path(), &arguments);
                assert!(said.contains("model.safetensors"), "{place} = {value}: {said}");
            }
        }
        whole.write(&path);
        succeeds(folder.path(), &["eval", run]);
    }
    // Memory that no array of the file betrays: a convolution does not know the size of its images.
    let path = at("conv/model.safetensors");
    let whole = Parts::read(&path);
    let large = ["height", "width", "pool"].iter().fold(whole.clone(), |parts, name| {
        parts.with_note(&format!("/config/model/{name}"), &json!(1_000_000))
    });
    large.write(&path);
    assert!(refused(folder.path(), &["eval", "conv"]).contains("GB of memory"));

    let path = at("graph/model.safetensors");
    let whole = Parts::read(&path);
    for place in ["/shape/0", "/shape/1", "/shape/2"] {
        for value in absurd() {
            whole.with_note(place, &value).write(&path);
            let said = refused(folder.path(), &["eval", "graph"]);
            assert!(said.contains("graph/model.safetensors"), "{place} = {value}: {said}");
        }
    }
    for (place, value) in [
        ("/config/model/mode/max_iterations", json!(u64::MAX)),
        ("/config/model/mode/tolerance", json!(-1.0)),
        ("/config/model/mode", json!({"kind": "unrolled", "steps": u64::MAX})),
    ] {
        whole.with_note(place, &value).write(&path);
        refused(folder.path(), &["eval", "graph"]);
    }
}

#[test]
fn arrays_that_lie_are_refused_by_name() {
    let folder = runs();
    for (run, calls) in [
        (
            "dense",
            vec![vec!["eval", "dense"], vec!["predict", "dense", "image.npy"], vec!["certify", "dense"]],
        ),
        ("conv", vec![vec!["eval", "conv"], vec!["predict", "conv", "image.npy"], vec!["certify", "conv"]]),
        ("graph", vec![vec!["eval", "graph"]]),
    ] {
        let path = folder.path().join(run).join("model.safetensors");
        let whole = Parts::read(&path);
        let arrays = whole.arrays();
        assert!(arrays.len() >= 4, "{arrays:?}");
        for (name, offset) in &arrays {
            for wrong in [f32::NAN, f32::NEG_INFINITY] {
                let mut parts = whole.clone();
                parts.data[*offset..][..4].copy_from_slice(&wrong.to_le_bytes());
                parts.write(&path);
                for arguments in &calls {
                    let said = refused(folder.path(), arguments);
                    assert!(said.contains(&format!("`{name}`")) && said.contains("not a finite"), "{said}");
                }
            }
            let mut missing = whole.clone();
            let mut fields = missing.header.as_object().unwrap().clone();
            let entry = fields.remove(name).unwrap();
            fields.insert("stranger".to_owned(), entry);
            missing.header = fields.into();
            missing.write(&path);
            let said = refused(folder.path(), &calls[0]);
            // The weights of the equation may be left out; whatever is in their place may not.
            let wrong = if name.starts_with("equation.") {
                "`stranger` does not belong".to_owned()
            } else {
                format!("`{name}` is missing")
            };
            assert!(said.contains(&wrong), "{said}");
        }
    }
}

#[test]
fn a_checkpoint_that_lies_is_refused() {
    let folder = runs();
    for (run, places) in [
        (
            "dense",
            &["/epoch", "/step", "/running/samples", "/metrics_lines", "/best/1", "/splitting_step"][..],
        ),
        ("graph", &["/epoch", "/best/epoch"]),
    ] {
        let path = folder.path().join(run).join("checkpoint.safetensors");
        let whole = Parts::read(&path);
        let resume = ["train", "--resume", "--quiet", "--out", run];
        for place in places {
            for value in [json!(u64::MAX), json!(-1)] {
                if *place == "/splitting_step" && value == json!(u64::MAX) {
                    continue;
                }
                whole.with_note(place, &value).write(&path);
                let said = refused(folder.path(), &resume);
                assert!(said.contains("checkpoint.safetensors"), "{place} = {value}: {said}");
            }
        }
        let (name, offset) = whole.arrays()[0].clone();
        let mut nan = whole.clone();
        nan.data[offset..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        nan.write(&path);
        assert!(refused(folder.path(), &resume).contains(&format!("`{name}`")));
        whole.write(&path);
        succeeds(folder.path(), &resume);
    }
}

#[test]
fn options_that_no_machine_can_serve_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let taps = subdeq_data::npy::NpyData::F64(vec![0.01; 9]);
    let kernel = subdeq_data::npy::NpyArray::new(vec![1, 1, 3, 3], taps).unwrap();
    kernel.write(&path.join("w.npy")).unwrap();
    let huge = ["4000000000", "4000000000000", "18446744073709551615"];
    for n in huge {
        for arch in ["dense", "conv"] {
            let said = refused(path, &["train", "--arch", arch, "--channels", n]);
            assert!(said.contains("memory") && said.contains("this machine has"), "{said}");
        }
        let said = refused(path, &["train", "--data", "karate", "--channels", n]);
        assert!(said.contains("memory"), "{said}");
        refused(path, &["train", "--arch", "conv", "--pool", n]);
        refused(path, &["bench", "--case", "mnist-dense", "--batch", n]);
        refused(path, &["bench", "--case", "mnist-dense", "--repeats", n]);
        refused(path, &["certify", "--map", "monotone", "--weights", "w.npy", "--side", n]);
    }
    for n in ["1000000", huge[2]] {
        for command in
            [&["train"][..], &["train", "--data", "karate", "--out", n], &["bench", "--case", "mnist-dense"]]
        {
            let said = refused(
                path,
                &[command, &["--quiet", "--threads", n][usize::from(command[0] == "bench")..]].concat(),
            );
            assert!(said.contains("threads"), "{said}");
        }
    }
    let said = refused(path, &["train", "--epochs", huge[1]]);
    assert!(said.contains("epochs"), "{said}");
    refused(path, &["train", "--data", "karate", "--epochs", huge[1]]);
    // More images in a batch than there are means all of them.
    for (out, batch) in [("all", huge[1]), ("set", "1437")] {
        succeeds(
            path,
            &["train", "--epochs", "1", "--channels", "8", "--quiet", "--batch", batch, "--out", out],
        );
    }
    let metrics = |run: &str| {
        let text = fs::read_to_string(path.join(run).join("metrics.jsonl")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["train_loss"].clone()
    };
    assert_eq!(metrics("all"), metrics("set"));
}

/// Everything that reads a file is given a device, a pipe, a folder and a file without end.
#[test]
fn what_is_not_a_file_of_a_reasonable_size_is_not_read() {
    let folder = runs();
    let path = folder.path();
    let device = |at: &Path| std::os::unix::fs::symlink("/dev/zero", at).unwrap();
    let pipe = |at: &Path| assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
    let endless = |at: &Path| fs::File::create(at).unwrap().set_len(1 << 40).unwrap();
    let inside = |at: &Path| fs::create_dir(at).unwrap();
    for kind in ["device", "pipe", "endless", "folder"] {
        let make = |at: &Path| match kind {
            "device" => device(at),
            "pipe" => pipe(at),
            "endless" => endless(at),
            _ => inside(at),
        };
        for extension in ["npy", "safetensors", "png", "idx"] {
            let file = format!("{kind}.{extension}");
            make(&path.join(&file));
            if matches!(extension, "npy" | "safetensors") {
                refused(path, &["certify", "--map", "split-sign", "--weights", &file]);
                refused(path, &["solve", "--map", "split-sign", "--weights", &file, "--injection", &file]);
            }
            refused(path, &["predict", "dense", &file]);
        }
        for (run, name) in [
            ("dense", "model.safetensors"),
            ("dense", "checkpoint.safetensors"),
            ("dense", "config.toml"),
            ("dense", "metrics.jsonl"),
            ("graph", "model.safetensors"),
            ("graph", "checkpoint.safetensors"),
        ] {
            let place: PathBuf = path.join(run).join(name);
            let kept = path.join("kept");
            fs::rename(&place, &kept).unwrap();
            make(&place);
            if name.starts_with("model") {
                refused(path, &["eval", run]);
            } else {
                refused(path, &["train", "--resume", "--quiet", "--out", run]);
            }
            if matches!(name, "config.toml" | "metrics.jsonl") {
                refused(path, &["report", run]);
            }
            if kind == "folder" {
                fs::remove_dir(&place).unwrap()
            } else {
                fs::remove_file(&place).unwrap()
            }
            fs::rename(&kept, &place).unwrap();
        }
    }
}
