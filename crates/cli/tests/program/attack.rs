//! What the program prints about drawn systems, attacked with the exact evaluator: what `certify` and `solve` call proven has one solution
//! among the states that the sentence names, from many starts; what they do not cover they do not call proven.
//!
//! A large attack: `SUBDEQ_ATTACK_RUNS=2000 SUBDEQ_ATTACK_ROWS=500 cargo test --release -p subdeq-cli --test program attack`.

use std::path::Path;
use std::process::Command;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use subdeq::subdeq_map::{Layout, Map, Operator, Overrides};
use subdeq_data::npy::{NpyArray, NpyData};

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn run(folder: &Path, arguments: &[String]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_subdeq")).current_dir(folder).args(arguments).output();
    let output = output.expect("the program starts");
    let code = output.status.code().expect("it ends by itself, without a signal");
    assert!(code != 101, "a panic: {}", String::from_utf8_lossy(&output.stderr));
    (code, String::from_utf8(output.stdout).expect("text"))
}

fn save(folder: &Path, name: &str, shape: &[usize], data: &[f64]) {
    let array = NpyArray::new(shape.to_vec(), NpyData::F64(data.to_vec())).expect("an array");
    array.write(&folder.join(name)).expect("a file");
}

/// A drawn command line: a map with options, weights, and inputs.
struct Draw {
    name: &'static str,
    options: Vec<String>,
    map: Option<Map>,
    w: Vec<f64>,
    n: usize,
    y: Vec<f64>,
    entries: usize,
}

fn draw(rng: &mut ChaCha8Rng, rows: usize) -> Draw {
    let names = [
        "subdeq-tanh",
        "subdeq-normalized-tanh",
        "subdeq-power-tanh",
        "split-sign",
        "divisive",
        "rational",
        "power-ratio",
        "monotone",
        "monotone-tied",
        "excitatory",
    ];
    let name = names[rng.random_range(0..names.len())];
    let mut overrides = Overrides::default();
    let mut options = Vec::new();
    if rng.random_bool(0.5) {
        let shift = [0.0, 0.3, 0.6, 1.05, 1.2, 1.603, -0.5][rng.random_range(0..7)];
        overrides.shift = Some(shift);
        options.push(format!("--shift={shift}"));
    }
    if rng.random_bool(0.2) {
        let power = [0.5, 0.99, 2.0, 2.5][rng.random_range(0..4)];
        overrides.power = Some(power);
        options.push(format!("--power={power}"));
    }
    if rng.random_bool(0.3) {
        let text = ["tanh", "softsign", "sigmoid", "relu", "hardtanh(0,1)"][rng.random_range(0..5)];
        overrides.activation = Some(text.parse().expect("an activation"));
        options.push(format!("--activation={text}"));
    }
    if rng.random_bool(0.1) {
        overrides.norm = Some("2".parse().expect("a norm"));
        options.push("--norm=2".into());
    }
    let map = Map::named(name, Layout::Dense).and_then(|map| map.with(&overrides, Layout::Dense)).ok();
    let n = rng.random_range(1..=3);
    let gain = 10f64.powf(rng.random_range(-0.7..0.9));
    let mut w: Vec<f64> = (0..n * n).map(|_| gain * rng.random_range(-1.0..1.0)).collect();
    if rng.random_bool(0.3) {
        w.iter_mut().for_each(|w| *w = w.abs());
    }
    let entries = n * if name == "power-ratio" { 2 } else { 1 };
    let signed = rng.random_bool(0.5);
    let y = (0..rows * entries)
        .map(|_| {
            let y = rng.random_range(-1.6..1.6);
            if signed { y } else { f64::abs(y) }
        })
        .collect();
    Draw { name, options, map, w, n, y, entries }
}

/// The limits of plain and of damped iteration from several starts among the states, as far as there are any.
fn limits(map: &Map, w: &Operator, y: &[f64], positive: bool, rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
    let mut found: Vec<Vec<f64>> = Vec::new();
    for start in 0..6 {
        let low = if positive { 1e-3 } else { -4.0 };
        let mut z: Vec<f64> = (0..w.len()).map(|_| rng.random_range(low..4.0)).collect();
        let step = [1.0, 1.0, 0.5, 0.1][start % 4];
        let mut residual = f64::INFINITY;
        for _ in 0..600 {
            let Ok(f) = map.evaluate(w, None, &z, y) else { break };
            residual =
                f.iter().zip(&z).map(|(f, z)| (f - z).abs()).fold(0.0, |a, b| if b <= a { a } else { b });
            z.iter_mut().zip(&f).for_each(|(z, f)| *z += step * (f - *z));
            if residual < 1e-13 || !residual.is_finite() {
                break;
            }
        }
        let inside = !positive || z.iter().all(|z| *z > 1e-9);
        if residual < 1e-10 && inside {
            found.push(z);
        }
    }
    found
}

fn agree(limits: &[Vec<f64>]) -> bool {
    limits
        .windows(2)
        .all(|pair| pair[0].iter().zip(&pair[1]).all(|(a, b)| (a - b).abs() < 1e-6 * (1.0 + a.abs())))
}

#[test]
fn what_the_program_calls_proven_is_true() {
    let (runs, rows) = (number("SUBDEQ_ATTACK_RUNS", 40), number("SUBDEQ_ATTACK_ROWS", 12) as usize);
    let folder = tempfile::TempDir::new().expect("a folder");
    let folder = folder.path();
    let (mut proven, mut refused, mut uncovered, mut unproven) = (0, 0, 0, 0);
    for index in 0..runs {
        let mut rng = ChaCha8Rng::seed_from_u64(number("SUBDEQ_ATTACK_SEED", 5));
        rng.set_stream(index);
        let draw = draw(&mut rng, rows);
        save(folder, "w.npy", &[draw.n, draw.n], &draw.w);
        save(folder, "y.npy", &[rows, draw.entries], &draw.y);
        let arguments = |command: &str, more: &[&str]| {
            let mut arguments: Vec<String> =
                vec![command.into(), "--json".into(), format!("--map={}", draw.name)];
            arguments.extend(["--weights=w.npy".into(), "--injection=y.npy".into()]);
            arguments.extend(draw.options.iter().cloned());
            arguments.extend(more.iter().map(|text| (*text).to_owned()));
            arguments
        };
        let context = format!("run {index}: {} {:?} w = {:?}", draw.name, draw.options, draw.w);
        let (status, text) = run(folder, &arguments("certify", &[]));
        let Some(map) = draw.map else {
            assert!(status == 2, "{context}: a map that cannot be built got {status}");
            assert!(run(folder, &arguments("solve", &[])).0 == 2, "{context}");
            refused += 1;
            continue;
        };
        if status == 1 || status == 2 {
            // Negative inputs of a positive map, for example: refused with a sentence.
            refused += 1;
            continue;
        }
        let positive_weights = map.weights() == subdeq::subdeq_map::WeightClass::Nonnegative;
        let entries = draw.w.iter().map(|w| if positive_weights { w.abs() } else { *w }).collect();
        let w = Operator::dense(draw.n, entries).expect("weights");
        let certified: Value = serde_json::from_str(&text).expect("JSON");
        for (row, certificate) in
            certified["certificates"].as_array().expect("certificates").iter().enumerate()
        {
            let verdict = &certificate["verdict"];
            if verdict["kind"] != "proven" {
                unproven += 1;
                continue;
            }
            proven += 1;
            let y = &draw.y[row * draw.entries..][..draw.entries];
            let found = limits(&map, &w, y, verdict["states"] == "positive", &mut rng);
            assert!(agree(&found), "{context} y = {y:?}: proven, but {found:?}; {verdict}");
        }
        let (_, text) = run(folder, &arguments("solve", &["--precision=f64", "--max-iterations=400"]));
        let Ok(solved) = serde_json::from_str::<Value>(&text) else { continue };
        for (row, sample) in solved["samples"].as_array().expect("samples").iter().enumerate() {
            let y = &draw.y[row * draw.entries..][..draw.entries];
            let outside = !map.is_monotone() && y.iter().any(|y| *y < 0.0);
            assert_eq!(sample["covered"], !outside, "{context} y = {y:?}: {sample}");
            uncovered += u64::from(outside);
            if solved["all_inputs"] == "proven" && !outside {
                let found = limits(&map, &w, y, !map.is_monotone(), &mut rng);
                assert!(agree(&found), "{context} y = {y:?}: proven, but {found:?}");
            }
        }
    }
    println!("{proven} proven, {unproven} not, {uncovered} outside, {refused} command lines refused");
    assert!(proven > 50 && refused > 2 && unproven > 5, "{proven} {refused} {unproven}");
}
