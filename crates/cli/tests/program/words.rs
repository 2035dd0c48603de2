//! What the program says and how: premises, colour, full and closed outputs, comparisons.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use subdeq_data::npy::{NpyArray, NpyData};

fn subdeq(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_subdeq"));
    command.args(args).current_dir(folder);
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeed(output: Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn verdicts_begin_with_a_plain_sentence_that_states_its_premise() {
    let folder = tempfile::tempdir().unwrap();
    let first = |map: &str| {
        let output = subdeq(folder.path(), &["certify", "--map", map]).output().unwrap();
        text(&output.stdout).lines().next().unwrap_or_default().to_owned()
    };
    for map in ["split-sign", "divisive", "rational", "power-ratio", "gains"] {
        assert_eq!(
            first(map),
            "PROVEN: there is exactly one positive fixed point for every input y >= 0.",
            "{map}"
        );
    }
    let weights = NpyArray::new(vec![2, 2], NpyData::F64(vec![0.5, -9.0, 9.0, 0.5])).unwrap();
    weights.write(&folder.path().join("w.npy")).unwrap();
    let args = ["certify", "--map", "monotone", "--weights", "w.npy"];
    let told = succeed(subdeq(folder.path(), &args).output().unwrap());
    assert!(told.starts_with("PROVEN: there is exactly one fixed point for every real input y.\n"), "{told}");
    assert!(
        first("subdeq-tanh").starts_with("REFUTED: there is more than one positive fixed point for y = (")
    );
    // Asked about every input, a positive map has no proof.
    let args = ["certify", "--map", "split-sign", "--inputs", "all"];
    let output = subdeq(folder.path(), &args).output().unwrap();
    let told = text(&output.stdout);
    assert!(!told.starts_with("PROVEN"), "{told}");
}

#[test]
fn colour_is_for_terminals_and_for_those_who_insist() {
    let folder = tempfile::tempdir().unwrap();
    let certify = || subdeq(folder.path(), &["certify", "--map", "split-sign"]);
    assert!(!succeed(certify().output().unwrap()).contains('\x1b'));
    let insisted = succeed(certify().env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(insisted.starts_with("\x1b[1m\x1b[32mPROVEN\x1b[0m:"), "{insisted:?}");
    let json = subdeq(folder.path(), &["certify", "--map", "split-sign", "--json"])
        .env("CLICOLOR_FORCE", "1")
        .output()
        .unwrap();
    assert!(!succeed(json).contains('\x1b'));
}

/// A terminal of 60 columns, as `script` makes one.
#[test]
#[cfg(target_os = "linux")]
fn in_a_terminal_there_is_colour_and_nothing_is_wider_than_it() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        crate::skipped::skipped("a terminal (there is no `script`)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let in_terminal = |args: &str, no_colour: bool| {
        let line = format!("stty rows 20 cols 60; exec {} {args}", env!("CARGO_BIN_EXE_subdeq"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).current_dir(folder.path()).stdin(Stdio::null());
        command.env("TERM", "xterm").env_remove("NO_COLOR").env_remove("CLICOLOR");
        if no_colour {
            command.env("NO_COLOR", "1");
        }
        text(&command.output().unwrap().stdout)
    };
    let told = in_terminal("certify --map split-sign", false);
    assert!(told.contains("\x1b[32mPROVEN"), "{told:?}");
    assert!(!in_terminal("certify --map split-sign", true).contains('\x1b'));
    let told = in_terminal("train --epochs 3 --out run", true);
    let epochs: Vec<&str> = told.split(['\r', '\n']).filter(|line| line.contains("epoch ")).collect();
    assert!(!epochs.is_empty(), "{told:?}");
    for line in epochs {
        // A row that is full goes on in the next one: each begins with an epoch or with the bar, never within a word.
        let plain: Vec<char> = anstream::adapter::strip_str(line).to_string().trim_end().chars().collect();
        for row in plain.chunks(60) {
            let row: String = row.iter().collect();
            assert!(row.starts_with("epoch ") || row.starts_with(['█', '░']), "{row:?} of {line:?}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_output_is_an_error_and_a_closed_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 6] = [
        &["data", "list"],
        &["certify"],
        &["--help"],
        &["man"],
        &["completions", "bash"],
        &["degree", "tanh", "--shift", "1.2", "--json"],
    ];
    for args in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = subdeq(folder.path(), args).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.starts_with("subdeq: standard output cannot be written: No space left"),
            "{args:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = subdeq(folder.path(), args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn manual_pages_make_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    succeed(subdeq(folder.path(), &["man", "--out", "share/man"]).output().unwrap());
    assert!(folder.path().join("share/man/subdeq-train.1").exists());
}

/// A run of MNIST that is too short, or tested on too few images, is not held against the paper's figure.
#[test]
fn a_run_that_is_not_the_papers_is_not_compared_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, epochs: usize, samples: usize| {
        let path = folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        let config = format!("seed = 0\nepochs = {epochs}\n[data]\nname = \"mnist\"\n[model]\nhidden = 87\n");
        fs::write(path.join("config.toml"), config).unwrap();
        let line = |k: usize| format!("{{\"epoch\": {k}, \"validation_error\": 2.5, \"seconds\": 1.0}}\n");
        fs::write(path.join("metrics.jsonl"), (1..=epochs).map(line).collect::<String>()).unwrap();
        let evaluation = format!(
            "{{\"data\": \"mnist\", \"model\": \"subdeq-tanh\", \"samples\": {samples}, \"error\": 2.0, \"converged\": 1.0}}"
        );
        fs::write(path.join("evaluation.json"), evaluation).unwrap();
    };
    run("short", 3, 10_000);
    run("few", 30, 100);
    run("whole", 30, 10_000);
    let page = |runs: &[&str]| {
        succeed(
            subdeq(folder.path(), &[&["report"], runs, &["--out", "page.html"]].concat()).output().unwrap(),
        );
        fs::read_to_string(folder.path().join("page.html")).unwrap()
    };
    assert!(page(&["short"]).contains("not comparable: 3 epochs, the paper has 30"));
    assert!(page(&["few"]).contains("not comparable: tested on 100 images"));
    assert!(!page(&["whole"]).contains("not comparable"));
    // Side by side, the difference is not printed.
    let both = page(&["short", "few"]);
    assert!(
        both.contains("<td class=\"muted\">not comparable:") && !both.contains("<td>+0.8</td>"),
        "{both}"
    );
    assert!(page(&["whole", "whole"]).contains("<td>+0.8</td>"));
    // Ticks at whole epochs only.
    assert!(!page(&["short"]).contains(">1.5</text>"));
}
