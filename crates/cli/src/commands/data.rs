//! `subdeq data`.

mod graphs;

use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use subdeq_data::data_dir::{candidates, download_folder};
use subdeq_data::export::{Form, export};
use subdeq_data::fetch::Fetched;
use subdeq_data::image_dataset::{ImageDataset, PROTOCOLS};
use subdeq_data::registry::{REGISTRY, check_dataset, fetch_dataset, remote};

use crate::dataset;
use crate::failure::Failure;
use crate::graph::is_graph;
use crate::options::{DataDir, Output, Telling};
use crate::waiting::Waiting;

/// List, download, check and look at data sets.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Say which data sets are known and where they were found.
    List {
        #[command(flatten)]
        data_dir: DataDir,
        #[command(flatten)]
        output: Output,
    },
    /// Download data sets from their authors' places; continues where a download broke off, checks every file.
    Fetch {
        /// Names, as `subdeq data list` shows them.
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        data_dir: DataDir,
        #[command(flatten)]
        output: Output,
    },
    /// Compare the files that are there with the published checksums, and read the data.
    Check {
        /// Names, as `subdeq data list` shows them.
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        data_dir: DataDir,
        #[command(flatten)]
        output: Output,
    },
    /// Show what is in a data set: sizes, classes, one image in characters (of a graph: nodes, edges, features).
    Show {
        /// A name or a folder.
        name: String,
        /// Which image.
        #[arg(long, default_value_t = 0)]
        image: usize,
        #[command(flatten)]
        data_dir: DataDir,
        #[command(flatten)]
        output: Output,
    },
    /// Write a data set in one of the forms that your own may have, to look at and do likewise.
    Export {
        /// A name or a folder.
        name: String,
        /// Where to: a folder that is not there yet (npz: a file).
        out: PathBuf,
        /// The form.
        #[arg(long = "as", value_enum, default_value_t = ExportForm::Folder)]
        form: ExportForm,
        #[command(flatten)]
        data_dir: DataDir,
    },
    /// Cut a graph into shards, of which each process of a training reads its own (mpirun -n 4 subdeq train --data OUT ..).
    Shard(graphs::ShardArgs),
}

/// The forms of [`Form`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ExportForm {
    /// train/CLASS/N.png and test/CLASS/N.png.
    Folder,
    /// One file with x_train, y_train, x_test and y_test.
    Npz,
    /// train.csv and test.csv: label, then the pixels of a square grey image.
    Csv,
    /// MNIST's four files.
    Idx,
}

impl From<ExportForm> for Form {
    fn from(form: ExportForm) -> Form {
        match form {
            ExportForm::Folder => Form::Folder,
            ExportForm::Npz => Form::Npz,
            ExportForm::Csv => Form::Csv,
            ExportForm::Idx => Form::Idx,
        }
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.what {
        What::List { data_dir, output } => list(data_dir, *output),
        What::Fetch { names, data_dir, output } => fetch(names, data_dir, *output),
        What::Check { names, data_dir, output } => check(names, data_dir, *output),
        What::Show { name, image, data_dir, output } => show(name, *image, data_dir, *output),
        What::Export { name, out, form, data_dir } => {
            let data = dataset::read(name, data_dir.path())?;
            export(&data, (*form).into(), out).map_err(Failure::other)?;
            println!("{}: {} images", out.display(), data.images.len());
            Ok(ExitCode::SUCCESS)
        }
        What::Shard(args) => graphs::shard(args),
    }
}

/// The folder of a data set, if it is in one of the usual places.
fn found(name: &str, data_dir: &DataDir) -> Option<PathBuf> {
    candidates(data_dir.path()).into_iter().map(|root| root.join(name)).find(|path| path.is_dir())
}

fn list(data_dir: &DataDir, output: Output) -> Result<ExitCode, Failure> {
    for protocol in PROTOCOLS {
        let embedded = protocol.name == "digits";
        let place = found(protocol.name, data_dir);
        let download = REGISTRY.iter().find(|remote| remote.name == protocol.name);
        if output.json() {
            println!(
                "{}",
                json!({
                    "name": protocol.name, "about": protocol.about, "shape": protocol.shape,
                    "train": protocol.official[0], "test": protocol.official[1],
                    "available": embedded || place.is_some(),
                    "path": place, "licence": download.map(|remote| remote.licence),
                })
            );
            continue;
        }
        let state = match (&place, download) {
            _ if embedded => "inside the program".to_owned(),
            (Some(path), _) => path.display().to_string(),
            (None, Some(_)) => format!("not here; get it with `subdeq data fetch {}`", protocol.name),
            (None, None) => "not here".to_owned(),
        };
        println!("{:14} {:44} {state}", protocol.name, protocol.about);
    }
    graphs::list(data_dir, output);
    Ok(ExitCode::SUCCESS)
}

fn fetch(names: &[String], data_dir: &DataDir, output: Output) -> Result<ExitCode, Failure> {
    // Names first: a slip in the last should not cost the download of the first.
    for name in names {
        remote(name).map_err(Failure::usage)?;
    }
    let root = download_folder(data_dir.path()).map_err(Failure::other)?;
    for name in names {
        let dataset = remote(name).map_err(Failure::usage)?;
        if output.progress() != Telling::Nothing {
            eprintln!("{name}: terms of use: {}", dataset.licence);
        }
        let bar = (output.progress() == Telling::Bar).then(|| {
            let bar = ProgressBar::no_length();
            let style = ProgressStyle::with_template(
                "{msg:30} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let fetched = fetch_dataset(name, &root, &mut |file, progress| {
            if let Some(bar) = &bar {
                bar.set_message(file.name);
                bar.set_position(progress.received);
                progress.total.into_iter().for_each(|total| bar.set_length(total));
            }
        });
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        for (path, how) in fetched.map_err(Failure::other)? {
            let (word, resumed) = match how {
                Fetched::AlreadyThere => ("there already", None),
                Fetched::Downloaded { resumed_from: 0 } => ("downloaded", None),
                Fetched::Downloaded { resumed_from } => ("continued", Some(resumed_from)),
            };
            if output.json() {
                println!("{}", json!({ "file": path, "how": word, "resumed_from": resumed }));
            } else {
                println!("{}: {word}", path.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(names: &[String], data_dir: &DataDir, output: Output) -> Result<ExitCode, Failure> {
    let mut faults = 0;
    for name in names {
        let waiting = Waiting::begin(output.progress(), "reading the files");
        let mut lines: Vec<(String, Result<String, String>)> = Vec::new();
        if let (Ok(dataset), Some(folder)) = (remote(name), found(name, data_dir)) {
            let root = folder.parent().map(PathBuf::from).unwrap_or_default();
            for (path, state) in check_dataset(dataset.name, &root).map_err(Failure::other)? {
                match state {
                    Some(Ok(())) => lines.push((path.display().to_string(), Ok("as published".into()))),
                    Some(Err(why)) => lines.push((path.display().to_string(), Err(why.to_string()))),
                    // Packed sheets and archives of other kinds have no published checksum; reading them tells.
                    None => {}
                }
            }
        }
        let read = if is_graph(name) {
            graphs::read(name, data_dir)
        } else {
            ImageDataset::load(name, data_dir.path())
                .map(|set| format!("{} + {} images read", set.official_train, set.official_test()))
        };
        lines.push((name.clone(), read.map_err(|why| why.to_string())));
        drop(waiting);
        for (what, state) in lines {
            faults += usize::from(state.is_err());
            if output.json() {
                println!(
                    "{}",
                    json!({ "what": what, "ok": state.is_ok(), "state": state.unwrap_or_else(|why| why) })
                );
            } else {
                println!("{what}: {}", state.unwrap_or_else(|why| why));
            }
        }
    }
    match faults {
        0 => Ok(ExitCode::SUCCESS),
        1 => Err(Failure::other("one fault was found")),
        _ => Err(Failure::other(format!("{faults} faults were found"))),
    }
}

fn show(name: &str, image: usize, data_dir: &DataDir, output: Output) -> Result<ExitCode, Failure> {
    if is_graph(name) {
        return graphs::show(name, data_dir, output).map(|()| ExitCode::SUCCESS);
    }
    let waiting = Waiting::begin(output.progress(), "reading the data");
    let data = dataset::read(name, data_dir.path())?;
    drop(waiting);
    let set = &data.images;
    if image >= set.len() {
        return Err(Failure::usage(format!("--image {image}: there are {} images, from 0", set.len())));
    }
    let counts = set.label_counts();
    if output.json() {
        let pixels = set.image(image);
        println!(
            "{}",
            json!({
                "name": data.name, "origin": data.origin, "train": data.official_train, "test": data.official_test(),
                "channels": set.channels(), "height": set.height(), "width": set.width(), "white": set.white(),
                "classes": data.class_names, "counts": counts,
                "image": image, "label": set.labels()[image], "pixels": pixels,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}: {} + {} images of {}x{}, {}, from {}",
        data.name,
        data.official_train,
        data.official_test(),
        set.height(),
        set.width(),
        if set.channels() == 1 { "grey" } else { "colour" },
        data.origin
    );
    for (class, count) in data.class_names.iter().zip(counts) {
        println!("  {count:>6}  {class}");
    }
    println!("image {image}, class {}:", data.class_names[set.labels()[image] as usize]);
    let (height, width) = (set.height(), set.width());
    for row in 0..height {
        let line: String = (0..width).map(|column| character(set, image, row * width + column)).collect();
        println!("  {line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Two characters per pixel, so that it is about as wide as high.
fn character(set: &subdeq_data::images::ImageSet, image: usize, pixel: usize) -> &'static str {
    const SHADES: [&str; 5] = ["  ", "░░", "▒▒", "▓▓", "██"];
    let plane = set.height() * set.width();
    let sum: usize = (0..set.channels()).map(|c| usize::from(set.image(image)[c * plane + pixel])).sum();
    SHADES[sum * (SHADES.len() - 1) / (set.channels() * usize::from(set.white())).max(1)]
}
