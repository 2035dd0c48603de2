//! Training, testing and asking, as a person calls the program.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn subdeq(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|why| panic!("{why}: {}{}", text(&output.stdout), text(&output.stderr)))
}

fn ok(output: Output) -> Output {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[test]
fn without_arguments_the_digits_are_learned_and_certified() {
    let folder = tempfile::tempdir().unwrap();
    let told = ok(subdeq(folder.path(), &["train", "--epochs", "12"]));
    let out = text(&told.stdout);
    assert!(out.contains("test error") && out.contains("certificate: PROVEN"), "{out}");
    let error: f64 = out.split("test error ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(error < 8.0, "{out}");
    assert!(text(&told.stderr).lines().filter(|line| line.starts_with("epoch")).count() == 12);

    let page = out.lines().find_map(|line| line.strip_prefix("report: ")).unwrap();
    assert!(std::fs::read_to_string(folder.path().join(page)).unwrap().contains("</html>"));

    let run = "runs/digits-dense-monotone";
    for file in
        ["config.toml", "metrics.jsonl", "model.safetensors", "checkpoint.safetensors", "evaluation.json"]
    {
        assert!(folder.path().join(run).join(file).exists(), "{file}");
    }
    let tested = json(&ok(subdeq(folder.path(), &["eval", run, "--json"])));
    assert!((tested["error"].as_f64().unwrap() - error).abs() < 0.005);
    assert_eq!((tested["certified"].as_f64(), tested["converged"].as_f64()), (Some(1.0), Some(1.0)));
    assert_eq!(tested["samples"].as_u64(), Some(260));

    let certified = subdeq(folder.path(), &["certify", run, "--samples", "5", "--json"]);
    assert_eq!(certified.status.code(), Some(0));
    let certified = json(&certified);
    assert_eq!(
        (certified["verdict"].as_str(), certified["shares"]["proven"].as_f64()),
        (Some("proven"), Some(1.0))
    );

    // A second run does not overwrite the first.
    ok(subdeq(folder.path(), &["train", "--epochs", "1", "--quiet"]));
    assert!(folder.path().join("runs/digits-dense-monotone-2/model.safetensors").exists());
    // And a config repeats a run to the bit.
    let config = format!("{run}/config.toml");
    ok(subdeq(folder.path(), &["train", "--config", &config, "--out", "again", "--quiet", "--threads", "1"]));
    let bytes = |path: &str| std::fs::read(folder.path().join(path)).unwrap();
    assert!(bytes(&format!("{run}/model.safetensors")) == bytes("again/model.safetensors"));
}

#[test]
fn every_model_trains_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for arch in ["dense", "conv"] {
        for model in subdeq::model::CoreSpec::names() {
            let out = format!("{arch}-{model}");
            let size = if arch == "conv" { "4" } else { "16" };
            let args = ["train", "--model", model, "--arch", arch, "--channels", size, "--lr", "0.01"];
            let rest = ["--epochs", "4", "--certify", "1", "--json", "--out", &out];
            let trained = json(&ok(subdeq(folder.path(), &[&args[..], &rest[..]].concat())));
            assert_eq!(trained["model"].as_str(), Some(model));
            let error = trained["error"].as_f64().unwrap();
            assert!(error < 60.0, "{out}: {error}");
        }
    }
}

#[test]
fn a_run_that_was_stopped_continues_only_with_its_own_config() {
    let folder = tempfile::tempdir().unwrap();
    let train =
        |args: &[&str]| subdeq(folder.path(), &[&["train", "--out", "run", "--quiet"], args].concat());
    ok(train(&["--epochs", "2", "--model", "split-sign"]));
    let again = train(&["--epochs", "2", "--model", "split-sign"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));
    ok(train(&["--resume"]));
    ok(train(&["--resume", "--epochs", "2", "--model", "split-sign"]));
    let other = train(&["--resume", "--epochs", "2", "--model", "rational"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(
        text(&other.stderr).contains("(--model rational where it has split-sign)"),
        "{}",
        text(&other.stderr)
    );
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let said = |args: &[&str], code: i32| {
        let told = subdeq(folder.path(), args);
        let message = text(&told.stderr);
        assert_eq!(told.status.code(), Some(code), "{args:?}: {message}");
        assert!(!message.contains("panicked"), "{message}");
        message
    };
    assert!(said(&["train", "--model", "transformer"], 2).contains("subdeq-tanh"));
    assert!(said(&["train", "--data", "no-such-data"], 1).contains("digits"));
    assert!(said(&["train", "--epochs", "0"], 2).contains("at least one epoch"));
    assert!(said(&["train", "--lr", "-1"], 2).contains("-1"));
    assert!(said(&["train", "--pool", "3"], 2).contains("conv"));
    assert!(said(&["train", "--data", "mnist", "--data-dir", "nowhere"], 1).contains("subdeq data fetch"));
    assert!(said(&["eval", "nowhere"], 1).contains("subdeq train"));
    assert!(said(&["predict", "nowhere", "x.png"], 1).contains("nowhere"));
    assert!(said(&["certify", "nowhere"], 1).contains("nowhere"));
    assert!(
        said(&["train", "--lr", "1e30", "--model", "subdeq-tanh", "--epochs", "3"], 1)
            .contains("Try a smaller --lr")
    );
    assert!(
        said(&["train", "--warm-start", "--model", "explicit-tanh"], 1).contains("leave --warm-start out")
    );
    assert!(said(&["train", "--kernel", "5"], 2).contains("leave --kernel out"));
    let kernel = |model, side| said(&["train", "--arch", "conv", "--model", model, "--kernel", side], 2);
    assert!(kernel("subdeq-tanh", "5").contains("only monotone maps"));
    assert!(kernel("monotone", "4").contains("1x1, 3x3 or 5x5"));
    assert!(kernel("explicit-tanh", "5").contains("no equilibrium"));
    assert!(said(&["train", "--augment", "flips"], 2).contains("write flip, cropN"));
    assert!(said(&["train", "--augment", "crop8"], 2).contains("moved by up to 8 pixels"));
    assert!(said(&["train", "--dropout-input", "1"], 2).contains("from 0 to below 1"));
    assert!(said(&["train", "--label-smoothing", "2"], 2).contains("from 0 to 1"));
    assert!(said(&["train", "--warm-up", "3", "--epochs", "3"], 2).contains("leaves nothing of 3"));
    assert!(said(&["train", "--validation", "10"], 2).contains("--split standard"));
    assert!(said(&["train", "--split", "standard"], 2).contains("without test images of its own"));
    assert!(said(&["train", "--data", "karate", "--augment", "flip"], 2).contains("--augment is for images"));
}

#[test]
fn a_recipe_is_recorded_repeated_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let train =
        |args: &[&str]| subdeq(folder.path(), &[&["train", "--quiet", "--certify", "2"], args].concat());
    let recipe = "--epochs 3 --injection-norm --dropout-input 0.1 --dropout-head 0.2 --label-smoothing 0.1 --warm-up 1 \
                  --optimiser adamw --augment flip,crop1 --lr 0.01 --out run";
    let recipe: Vec<&str> = recipe.split_whitespace().collect();
    ok(train(&recipe));
    let config = std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    for line in [
        "injection_norm = true",
        "dropout_input = 0.1",
        "dropout_head = 0.2",
        "label_smoothing = 0.1",
        "warm_up = 1",
        "decoupled_decay = true",
        "crop = 1",
        "flips = true",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    let tested = json(&ok(subdeq(folder.path(), &["eval", "run", "--json"])));
    assert_eq!(tested["certified"].as_f64(), Some(1.0), "{tested}");
    assert!(tested["error"].as_f64().unwrap() < 35.0, "{tested}"); // 29 % after three epochs of mirrored digits
    ok(train(&["--config", "run/config.toml", "--out", "again", "--threads", "1"]));
    let bytes = |run: &str| std::fs::read(folder.path().join(run).join("model.safetensors")).unwrap();
    assert!(bytes("run") == bytes("again"));
    ok(train(&[&recipe[..], &["--resume"]].concat()));
    let other = train(&["--resume", "--out", "run", "--dropout-head", "0.3", "--augment", "flip"]);
    let message = text(&other.stderr);
    assert_eq!(other.status.code(), Some(2), "{message}");
    assert!(message.contains("--dropout-head 0.3 where it has 0.2"), "{message}");
    assert!(message.contains("--augment flip where it has flip,crop1"), "{message}");
}

#[test]
fn a_damaged_checkpoint_or_model_is_told_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    ok(subdeq(folder.path(), &["train", "--epochs", "1", "--out", "run", "--quiet"]));
    for file in ["run/checkpoint.safetensors", "run/model.safetensors"] {
        let path = folder.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 7, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let args: &[&str] = if file.contains("model") {
                &["eval", "run"]
            } else {
                &["train", "--resume", "--out", "run", "--quiet"]
            };
            let told = subdeq(folder.path(), args);
            assert_eq!(told.status.code(), Some(1), "{file} cut at {cut}");
            assert!(text(&told.stderr).contains(file), "{}", text(&told.stderr));
        }
        std::fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn images_of_ones_own_are_classified() {
    let folder = tempfile::tempdir().unwrap();
    ok(subdeq(folder.path(), &["train", "--epochs", "10", "--out", "run", "--quiet"]));
    let shown = json(&ok(subdeq(folder.path(), &["data", "show", "digits", "--image", "3", "--json"])));
    let pixels: Vec<u8> =
        shown["pixels"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap() as u8).collect();
    let array =
        subdeq_data::npy::NpyArray::new(vec![8, 8], subdeq_data::npy::NpyData::U8(pixels.clone())).unwrap();
    array.write(&folder.path().join("three.npy")).unwrap();
    let floats: Vec<f64> = pixels.iter().map(|&p| f64::from(p) / 16.0).collect();
    let array =
        subdeq_data::npy::NpyArray::new(vec![1, 8, 8], subdeq_data::npy::NpyData::F64(floats)).unwrap();
    array.write(&folder.path().join("float.npy")).unwrap();
    let told = ok(subdeq(folder.path(), &["predict", "run", "three.npy", "float.npy", "--json"]));
    let lines: Vec<Value> =
        text(&told.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!((line["class"].as_u64(), line["certified"].as_bool()), (Some(3), Some(true)), "{line}");
        assert!(line["radius"].as_f64().unwrap() > 0.0, "{line}");
    }
    assert_eq!(lines[0]["probability"], lines[1]["probability"]);

    std::fs::write(folder.path().join("broken.png"), b"no picture").unwrap();
    let told = subdeq(folder.path(), &["predict", "run", "broken.png"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(text(&told.stderr).contains("broken.png"), "{}", text(&told.stderr));
}

#[test]
fn output_can_be_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    // Whoever should read is gone before the first byte is written.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let told = Command::new(env!("CARGO_BIN_EXE_subdeq"))
        .args(["data", "show", "digits"])
        .current_dir(folder.path())
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    assert_eq!(text(&told.stderr), "");
}

#[test]
#[cfg(unix)]
fn a_disk_without_room_ends_with_a_sentence_and_the_run_can_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = "train --model split-sign --epochs 2 --quiet";
    ok(subdeq(folder.path(), &[&options.split(' ').collect::<Vec<_>>()[..], &["--out", "whole"]].concat()));
    // Files of at most a few kilobytes: the config fits, a checkpoint (here after the first batch) does not.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 8; exec {} {options} --out short --resume --checkpoint-seconds 0",
        env!("CARGO_BIN_EXE_subdeq")
    );
    let told = Command::new("sh").args(["-c", &limited]).current_dir(folder.path()).output().unwrap();
    let message = text(&told.stderr);
    assert_eq!(told.status.code(), Some(1), "{message}");
    assert!(message.contains("checkpoint.safetensors cannot be written"), "{message}");
    let left: Vec<String> = std::fs::read_dir(folder.path().join("short"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(!left.iter().any(|name| name.ends_with(".new") || name.ends_with(".safetensors")), "{left:?}");
    ok(subdeq(folder.path(), &["train", "--out", "short", "--resume", "--quiet"]));
    let bytes = |run: &str| std::fs::read(folder.path().join(run).join("model.safetensors")).unwrap();
    assert!(bytes("whole") == bytes("short"));

    // A place that is no folder.
    let told = subdeq(folder.path(), &["train", "--out", "whole/config.toml/run"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(text(&told.stderr).contains("whole/config.toml/run"), "{}", text(&told.stderr));
}

#[test]
fn seeds_are_averaged_and_neither_threads_nor_trainings_beside_them_change_anything() {
    let folder = tempfile::tempdir().unwrap();
    for (out, option, count) in
        [("t1", "--threads", "1"), ("t2", "--threads", "2"), ("beside", "--jobs", "2")]
    {
        let args =
            ["train", "--model", "subdeq-tanh", "--epochs", "2", "--seeds", "2", "--certify", "4", "--json"];
        let told = ok(subdeq(folder.path(), &[&args[..], &[option, count, "--out", out]].concat()));
        let lines: Vec<Value> =
            text(&told.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        let mean = (lines[0]["error"].as_f64().unwrap() + lines[1]["error"].as_f64().unwrap()) / 2.0;
        assert!((lines[2]["mean_error"].as_f64().unwrap() - mean).abs() < 1e-9);
    }
    for seed in ["seed-0", "seed-1"] {
        for file in ["model.safetensors", "evaluation.json"] {
            let bytes = |run: &str| std::fs::read(folder.path().join(run).join(seed).join(file)).unwrap();
            assert!(bytes("t1") == bytes("t2"), "{seed}/{file}");
            assert!(bytes("t1") == bytes("beside"), "{seed}/{file}");
        }
    }
    let told = subdeq(folder.path(), &["train", "--data", "karate", "--seeds", "2", "--jobs", "2"]);
    assert!(text(&told.stderr).contains("--jobs is for images"), "{}", text(&told.stderr));
    assert_eq!(subdeq(folder.path(), &["train", "--jobs", "2"]).status.code(), Some(2));
}

#[test]
fn a_network_with_a_bounded_gain_is_certified_at_radii_and_attacked() {
    let folder = tempfile::tempdir().unwrap();
    let train = ["train", "--lipschitz", "4", "--epochs", "8", "--threads", "1", "--out", "run"];
    let told = text(&ok(subdeq(folder.path(), &train)).stdout);
    assert!(told.contains("gain from pixels (0 to 1) to logits: at most 4.0000, proved"), "{told}");
    assert!(told.contains("right and proved to stay so"), "{told}");
    let eval = ["eval", "run", "--radii", "0.1,0.5", "--attack", "30", "--json", "--threads", "1"];
    let found = &json(&ok(subdeq(folder.path(), &eval)))["robustness"];
    let certified: Vec<f64> = (0..2).map(|k| found["certified"][k][1].as_f64().unwrap()).collect();
    assert!(certified[0] > 60.0 && certified[0] > certified[1] && certified[1] > 0.0, "{found}");
    let attacked = &found["attacked"];
    assert!(attacked["broken"] == 0 && attacked["samples"] == 30, "{attacked}");
    for k in 0..2 {
        let [proved, left] = [1, 2].map(|at| attacked["at"][k][at].as_f64().unwrap());
        assert!(proved <= left && left <= attacked["clean"].as_f64().unwrap(), "{attacked}");
    }
    ok(subdeq(folder.path(), &["report", "run"]));
    let page = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(page.contains("Changed images") && page.contains("what attacks leave"));

    // Continued as it was begun, and not otherwise; models without a gain are refused.
    let other = subdeq(folder.path(), &["train", "--resume", "--out", "run", "--lipschitz", "5"]);
    assert!(text(&other.stderr).contains("--lipschitz 5 where it has 4"), "{}", text(&other.stderr));
    let other = subdeq(folder.path(), &["train", "--lipschitz", "4", "--model", "split-sign"]);
    assert!(text(&other.stderr).contains("not bounded by construction"), "{}", text(&other.stderr));
    let other = subdeq(folder.path(), &["eval", "run", "--radii", "-1"]);
    assert_eq!(other.status.code(), Some(2));
}
