//! Data and images that people bring: the page about them, classes by name, predictions.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::skipped::skipped;

const PAGE: &str = include_str!("../../../../docs/your-own-data.md");

fn subdeq(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What was printed, if all went well.
fn told(folder: &Path, args: &[&str]) -> String {
    let output = subdeq(folder, args);
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// What was complained about, with this exit status.
fn refused(folder: &Path, args: &[&str], status: i32) -> String {
    let output = subdeq(folder, args);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{args:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stderr)
}

fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The code of a page in one language, block by block.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
#[cfg(unix)]
fn every_example_of_the_page_runs_and_has_at_most_ten_lines() {
    let program = Path::new(env!("CARGO_BIN_EXE_subdeq")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let examples = blocks(PAGE, "sh");
    assert_eq!(examples.len(), 6);
    for example in examples {
        assert!(example.lines().count() <= 10, "{example}");
        let folder = tempfile::tempdir().unwrap();
        let script = format!("set -eu\n{example}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(folder.path())
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{example}\n{}{}", text(&output.stdout), text(&output.stderr));
    }
    // Where numpy is, what the page says about it makes a data set.
    let numpy = Command::new("python3").args(["-c", "import numpy"]).output();
    if !numpy.is_ok_and(|output| output.status.success()) {
        skipped("the example in numpy (there is none)");
        return;
    }
    for example in blocks(PAGE, "python") {
        let folder = tempfile::tempdir().unwrap();
        let output =
            Command::new("python3").args(["-c", example]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(told(folder.path(), &["data", "show", "own.npz"]).contains("250 + 50 images of 8x8"));
    }
}

/// Ten runs need one training: digits as pictures, and a model that has seen them.
fn trained(folder: &Path) {
    told(folder, &["data", "export", "digits", "pictures"]);
    told(
        folder,
        &[
            "train", "--data", "pictures", "--arch", "dense", "--epochs", "12", "--batch", "32", "--out",
            "run", "--quiet",
        ],
    );
}

fn a_picture(folder: &Path, class: &str) -> String {
    let mut files: Vec<String> = fs::read_dir(folder.join("pictures/test").join(class))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    files.sort();
    format!("pictures/test/{class}/{}", files[0])
}

#[test]
fn classes_are_matched_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    trained(path);
    let whole: Value = serde_json::from_str(&told(path, &["eval", "run", "--json"])).unwrap();
    // Two of the classes, which alone would be numbered 0 and 1.
    for class in ["7", "3"] {
        let from = path.join("pictures/test").join(class);
        let to = path.join("two").join(class);
        fs::create_dir_all(&to).unwrap();
        for file in fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    let two: Value = serde_json::from_str(&told(path, &["eval", "run", "--data", "two", "--json"])).unwrap();
    let row = |evaluation: &Value, class: usize| evaluation["confusion"][class].clone();
    for class in [3, 7] {
        assert_eq!(row(&two, class), row(&whole, class));
    }
    let count =
        |class: usize| row(&whole, class).as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(two["samples"].as_u64().unwrap(), count(3) + count(7));
    assert_eq!(two["data"], "two");

    fs::rename(path.join("two/7"), path.join("two/cats")).unwrap();
    fs::rename(path.join("two/3"), path.join("two/dogs")).unwrap();
    let said = refused(path, &["eval", "run", "--data", "two"], 1);
    assert!(said.contains("cats, dogs") && said.contains("0, 1, 2, 3, 4, 5, 6, 7, 8, 9"), "{said}");

    // The same images by the path of a file, and the model without its run.
    told(path, &["data", "export", "pictures", "own.npz", "--as", "npz"]);
    fs::copy(path.join("run/model.safetensors"), path.join("alone.safetensors")).unwrap();
    let args = ["eval", "alone.safetensors", "--data", "own.npz", "--json"];
    let by_file: Value = serde_json::from_str(&told(path, &args)).unwrap();
    assert_eq!(by_file["confusion"], whole["confusion"]);
}

#[test]
fn pictures_of_all_kinds_are_answered_and_bad_ones_do_not_end_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    trained(path);
    let three = a_picture(path, "3");
    let grey = image::open(path.join(&three)).unwrap().to_luma8();
    let large = image::imageops::resize(&grey, 24, 24, image::imageops::FilterType::Nearest);
    image::DynamicImage::ImageLuma8(grey.clone()).to_rgb8().save(path.join("colour.png")).unwrap();
    large.save(path.join("large.png")).unwrap();
    image::GrayImage::new(5000, 2).save(path.join("long.png")).unwrap();
    fs::write(path.join("old.bmp"), b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0").unwrap();

    let args =
        ["predict", "run", &three, "colour.png", "old.bmp", "long.png", "large.png", "--top", "3", "--json"];
    let output = subdeq(path, &args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let answers = lines(&output);
    assert_eq!(answers.len(), 5);
    assert_eq!(answers[0]["class"], 3);
    assert_eq!(answers[0]["top"].as_array().unwrap().len(), 3);
    assert_eq!(answers[0]["top"][0]["probability"], answers[0]["probability"]);
    // Three equal channels are the grey they were made of.
    assert_eq!(answers[1]["probability"], answers[0]["probability"]);
    assert_eq!(answers[1]["changes"][0], "grey from colour");
    assert!(answers[2]["error"].as_str().unwrap().contains("is a BMP picture"), "{}", answers[2]);
    let long = answers[3]["error"].as_str().unwrap();
    assert!(long.contains("too large: 2 x 5000, at most 4096 x 4096"), "{long}");
    assert!(answers[4]["error"].as_str().unwrap().contains("--resize"), "{}", answers[4]);
    assert!(text(&output.stderr).contains("old.bmp"));

    let resized = told(path, &["predict", "run", "large.png", "--resize"]);
    assert!(resized.starts_with("large.png (resized from 24 x 24 to 8 x 8): 3,"), "{resized}");

    // A folder is all its pictures; the model's file is enough; standard input is a file like any other.
    fs::copy(path.join("run/model.safetensors"), path.join("alone.safetensors")).unwrap();
    let output = subdeq(path, &["predict", "alone.safetensors", "pictures/test/3", "--json"]);
    let answers = lines(&output);
    assert_eq!(answers.len(), fs::read_dir(path.join("pictures/test/3")).unwrap().count());
    let right = answers.iter().filter(|answer| answer["name"] == "3").count();
    assert!(right * 10 > answers.len() * 8, "{right} of {}", answers.len());
    let mut child = Command::new(env!("CARGO_BIN_EXE_subdeq"))
        .args(["predict", "alone.safetensors", "-", "--json"])
        .current_dir(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(path.join(&three)).unwrap()).unwrap();
    let answer = &lines(&child.wait_with_output().unwrap())[0];
    assert_eq!((&answer["file"], &answer["class"]), (&"standard input".into(), &3.into()));

    assert!(refused(path, &["predict", "run"], 2).contains("which images?"));
    assert!(refused(path, &["predict", "run", &three, "--top", "0"], 2).contains("--top"));
    fs::create_dir(path.join("empty")).unwrap();
    assert!(refused(path, &["predict", "run", "empty"], 1).contains("no pictures"));
}

#[test]
fn graph_runs_are_certified_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    told(path, &["train", "--data", "karate", "--epochs", "60", "--out", "run", "--quiet"]);
    let words = told(path, &["certify", "run"]);
    assert!(
        words.starts_with("PROVEN: there is exactly one") && words.contains("for every real input y"),
        "{words}"
    );
    let certified: Value = serde_json::from_str(&told(path, &["certify", "run", "--json"])).unwrap();
    assert_eq!(certified["verdict"], "proven");

    let output = subdeq(path, &["predict", "run", "--json", "--top", "2"]);
    let nodes = lines(&output);
    assert_eq!(nodes.len(), 34);
    let drawing: Value = serde_json::from_slice(&fs::read(path.join("run/graph.json")).unwrap()).unwrap();
    for (node, drawn) in nodes.iter().zip(drawing["nodes"].as_array().unwrap()) {
        assert_eq!(node["class"], drawn["prediction"]);
        let [first, second] = [0, 1].map(|k| node["top"][k]["probability"].as_f64().unwrap());
        assert!(first >= second && (first + second - 1.0).abs() < 1e-6, "{node}");
    }
    let some = told(path, &["predict", "run", "0", "33"]);
    assert!(some.starts_with("node 0: class ") && some.contains("\nnode 33: class "), "{some}");
    assert!(refused(path, &["predict", "run", "34"], 2).contains("from 0 to 33"));
    assert!(refused(path, &["predict", "run/model.safetensors", "0"], 2).contains("folder of its run"));
    assert!(refused(path, &["certify", "run", "--samples", "3"], 2).contains("--samples is for images"));

    told(
        path,
        &["train", "--data", "karate", "--form", "release", "--epochs", "20", "--out", "steps", "--quiet"],
    );
    assert!(refused(path, &["certify", "steps"], 1).contains("nothing to certify"));
    assert!(told(path, &["predict", "steps", "5"]).starts_with("node 5: class "));
}

#[test]
fn slips_in_names_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| refused(folder.path(), args, 2);
    assert!(said(&["train", "--model", "monoton"]).contains("Did you mean `monotone`?"));
    assert!(refused(folder.path(), &["train", "--data", "mnits"], 1).contains("Did you mean `mnist`?"));
    assert!(said(&["certify", "--map", "splitsign"]).contains("Did you mean `split-sign`?"));
    assert!(said(&["train", "--data", "karate", "--model", "apnp"]).contains("Did you mean `appnp`?"));
    let degree = said(&["degree", "foo"]);
    for name in [
        "tanh",
        "sigmoid",
        "softplus",
        "softsign",
        "hardtanh",
        "relu",
        "leaky-relu",
        "identity",
        "log-sum-exp",
    ] {
        assert!(degree.contains(name), "{degree}");
    }
    assert!(said(&["degree", "tahn"]).contains("Did you mean `tanh`?"));
    // Clap has its own.
    assert!(said(&["train", "--solver", "picrad"]).contains("picard"));
}
