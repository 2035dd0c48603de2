//! Image data sets by name or folder, with their official training and test part, splits and constants.

use std::path::{Path, PathBuf};

use crate::archive;
use crate::cache::{self, Loaded};
use crate::cifar;
use crate::class_count;
use crate::csv::for_each_row;
use crate::data_dir;
use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::graph::GRAPH_NAMES;
use crate::idx;
use crate::image_folder;
use crate::images::ImageSet;
use crate::jxl_sheet::Sheet;
use crate::matlab;
use crate::npy::{NpyArray, NpyData};
use crate::npz::Npz;
use crate::source::{self, element_count};
use crate::split::{Split, SplitRule};
use crate::standardise::Standardisation;

/// Images of a sheet that is full.
const SHEET_IMAGES: usize = 10_000;

/// What the paper and its published code fix about a data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Protocol {
    /// Name on the command line and of the folder.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// Official training and test images, if the set is complete.
    pub official: [usize; 2],
    /// Training and validation images in the published code; the official test images are the test set.
    /// `None`: the official test images serve as validation set too.
    pub release_counts: Option<[usize; 2]>,
    /// Training and validation share of all images in the paper's table (the rest is the test set), if it is there.
    pub paper_shares: Option<[f64; 2]>,
    /// Mean and deviation per channel in the published code.
    pub release_constants: Option<(&'static [f32], &'static [f32])>,
}

/// The data sets known by name. Digits and Fashion-MNIST are in neither the paper nor the release: they take MNIST's
/// shares.
pub const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "digits",
        about: "UCI optical digits, 8x8, inside the program",
        shape: [1, 8, 8],
        official: [1797, 0],
        release_counts: None,
        paper_shares: Some([0.71, 0.145]),
        release_constants: None,
    },
    Protocol {
        name: "mnist",
        about: "handwritten digits, 28x28",
        shape: [1, 28, 28],
        official: [60_000, 10_000],
        release_counts: Some([50_000, 10_000]),
        paper_shares: Some([0.71, 0.145]),
        release_constants: Some((&[0.1307], &[0.3081])),
    },
    Protocol {
        name: "fashion-mnist",
        about: "clothes, 28x28",
        shape: [1, 28, 28],
        official: [60_000, 10_000],
        release_counts: Some([50_000, 10_000]),
        paper_shares: Some([0.71, 0.145]),
        release_constants: None,
    },
    Protocol {
        name: "cifar10",
        about: "ten kinds of objects, 32x32 colour",
        shape: [3, 32, 32],
        official: [50_000, 10_000],
        release_counts: Some([42_000, 8_000]),
        paper_shares: Some([0.70, 0.15]),
        release_constants: Some((&[0.4250, 0.4152, 0.3842], &[0.2827, 0.2777, 0.2843])),
    },
    Protocol {
        name: "svhn",
        about: "street view house numbers, 32x32 colour",
        shape: [3, 32, 32],
        official: [73_257, 26_032],
        release_counts: Some([50_000, 23_257]),
        paper_shares: Some([0.503_58, 0.234_235]),
        release_constants: Some((&[0.4371, 0.4433, 0.4726], &[0.1971, 0.2001, 0.1962])),
    },
    Protocol {
        name: "tiny-imagenet",
        about: "objects of up to 200 classes, 64x64 colour",
        shape: [3, 64, 64],
        official: [100_000, 10_000],
        release_counts: None,
        paper_shares: None,
        release_constants: Some((&[0.4820, 0.4479, 0.3965], &[0.2623, 0.2539, 0.2671])),
    },
];

/// A data set: all images, the official training images first.
///
/// ```
/// use subdeq_data::{image_dataset::ImageDataset, split::SplitRule};
/// let digits = ImageDataset::load("digits", None).unwrap();
/// assert_eq!((digits.images.len(), digits.images.classes()), (1797, 10));
/// let split = digits.split(SplitRule::Release, 1).unwrap();
/// assert_eq!(split.train.len() + split.validation.len() + split.test.len(), 1797);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ImageDataset {
    /// The name asked for, or the folder.
    pub name: String,
    /// Where it came from.
    pub origin: String,
    /// All images: official training images, then official test images.
    pub images: ImageSet,
    /// How many of them are official training images.
    pub official_train: usize,
    /// Class names, by label (their numbers if no names are known).
    pub class_names: Vec<String>,
}

impl ImageDataset {
    /// Loads a data set by name (see [`PROTOCOLS`]), from a folder, or from a file (.npz, .csv, or an archive of an image
    /// folder). `data_dir` is the user's `--data-dir`.
    pub fn load(name: &str, data_dir: Option<&Path>) -> Result<Self> {
        if name == "digits" {
            return digits();
        }
        if protocol(name).is_some() {
            let folder = data_dir::find(name, data_dir)?;
            let dataset = Self::from_folder(&folder)?;
            return dataset.named(name);
        }
        let path = Path::new(name);
        if path.is_dir() {
            return Self::from_folder(path);
        }
        if path.exists() {
            return Self::read(&Layout::of_file(path)?, path);
        }
        let names: Vec<&str> = PROTOCOLS.iter().map(|p| p.name).collect();
        Err(DataError::request(
            format!("'{name}' is neither a known data set nor a folder nor a file"),
            format!(
                "use one of {} or the path of a folder or .npz file (graphs are {})",
                names.join(", "),
                GRAPH_NAMES.join(", ")
            ),
        ))
    }

    /// Loads whatever image data a folder holds; the formats are listed in the error for a folder that holds none.
    ///
    /// Where a format has numbers for its classes, a `classes.txt` with a name per line gives them names.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        Self::read(&Layout::detect(folder)?, folder)
    }

    fn read(layout: &Layout, path: &Path) -> Result<Self> {
        let (train, test, names) = layout.load(path)?;
        let official_train = train.len();
        let mut images = train;
        images.append(&test)?;
        let name = path.display().to_string();
        if images.is_empty() {
            return Err(DataError::malformed(&name, Place::Whole, "has no images", GET_AGAIN));
        }
        let class_names = match names {
            Some(names) => names,
            None => {
                let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
                named_classes(&folder.join("classes.txt"), images.classes())?
            }
        };
        Ok(ImageDataset { origin: name.clone(), name, images, official_train, class_names })
    }

    /// Renames, after checking that the images are of the kind the name promises.
    fn named(mut self, name: &str) -> Result<Self> {
        let found = [self.images.channels(), self.images.height(), self.images.width()];
        if let Some(protocol) = protocol(name).filter(|p| p.shape != found) {
            let problem =
                format!("images of {found:?} (channels, height, width), {name} has {:?}", protocol.shape);
            return Err(DataError::malformed(&self.origin, Place::Whole, problem, GET_AGAIN));
        }
        self.name = name.to_owned();
        Ok(self)
    }

    /// How many official test images there are.
    pub fn official_test(&self) -> usize {
        self.images.len() - self.official_train
    }

    /// A split by the given rule. Where a data set is a subset, the release's counts become shares of what is there.
    /// Data of one's own is divided like MNIST (5/6 of the training images train) if it has a test set, else
    /// 70/15/15.
    pub fn split(&self, rule: SplitRule, seed: u64) -> Result<Split> {
        let total = self.images.len();
        let protocol = protocol(&self.name);
        match rule {
            SplitRule::Counts { train, validation } => {
                Split::by_counts(rule, seed, [train, validation], self.official_train, total)
            }
            SplitRule::Paper => {
                let shares = protocol.and_then(|p| p.paper_shares).ok_or_else(|| {
                    DataError::request(
                        format!("the paper gives no split for '{}'", self.name),
                        "use the release's split",
                    )
                })?;
                Split::by_shares(rule, seed, shares, total)
            }
            SplitRule::Release => self.release_split(protocol, seed),
        }
    }

    fn release_split(&self, protocol: Option<&Protocol>, seed: u64) -> Result<Split> {
        let (rule, total, official) = (SplitRule::Release, self.images.len(), self.official_train);
        if official == total {
            let shares = protocol.and_then(|p| p.paper_shares).unwrap_or([0.70, 0.15]);
            return Split::by_shares(rule, seed, shares, total);
        }
        let counts = match protocol {
            // Tiny-ImageNet in the release: the official validation images are validation and test set in one.
            Some(Protocol { release_counts: None, .. }) => {
                let mut split = Split::by_counts(rule, seed, [official, 0], official, total)?;
                split.validation = split.test.clone();
                return Ok(split);
            }
            Some(Protocol { release_counts: Some(counts), official: [full, _], .. }) if *full == official => {
                *counts
            }
            Some(Protocol { release_counts: Some([train, _]), official: [full, _], .. }) => {
                let train = (official as f64 * *train as f64 / *full as f64).round() as usize;
                [train, official - train]
            }
            None => [official - official / 6, official / 6],
        };
        Split::by_counts(rule, seed, counts, official, total)
    }

    /// The published code's constants, or for a set it does not have, those measured on `train`.
    pub fn release_standardisation(&self, train: &[u32]) -> Result<Standardisation> {
        match protocol(&self.name).and_then(|p| p.release_constants) {
            Some((mean, deviation)) => Ok(Standardisation::constants(mean, deviation)),
            None => Standardisation::measured(&self.images, train),
        }
    }
}

/// What is fixed about the data set of that name.
pub fn protocol(name: &str) -> Option<&'static Protocol> {
    PROTOCOLS.iter().find(|p| p.name == name)
}

fn digits() -> Result<ImageDataset> {
    let images =
        idx::from_bytes(include_bytes!("../embedded/digits-images-idx3-ubyte.gz"), "embedded digit images")?;
    let labels =
        idx::from_bytes(include_bytes!("../embedded/digits-labels-idx1-ubyte.gz"), "embedded digit labels")?;
    let labels = class_count::below("embedded digits", "labels", 10, &labels.to_usize()?)?;
    let images = image_set("embedded digits", images, labels, 16, 10)?;
    Ok(ImageDataset {
        name: "digits".to_owned(),
        origin: "inside the program".to_owned(),
        official_train: images.len(),
        class_names: (0..10).map(|c| c.to_string()).collect(),
        images,
    })
}

/// The forms image data may have in a folder.
enum Layout {
    Idx,
    CifarBinary(PathBuf),
    CifarArchive(PathBuf),
    CifarSheets,
    SvhnMatlab,
    SvhnSheets,
    Npz(PathBuf),
    /// Training images, and test images if there are any.
    Csv(PathBuf, Option<PathBuf>),
    Folder(PathBuf),
    Archive(PathBuf),
}

impl Layout {
    /// What a single file holds, by its ending.
    fn of_file(path: &Path) -> Result<Self> {
        let name = path.to_string_lossy().to_lowercase();
        if name.ends_with(".npz") {
            Ok(Layout::Npz(path.to_path_buf()))
        } else if name.ends_with(".csv") {
            Ok(Layout::Csv(path.to_path_buf(), None))
        } else if archive::is_archive(&name) {
            Ok(Layout::Archive(path.to_path_buf()))
        } else {
            let remedy = "a single file of images is an .npz, a .csv, or an archive of a folder with train/CLASS/*.png|jpg";
            Err(DataError::malformed(
                &path.display().to_string(),
                Place::Whole,
                "no data set of images",
                remedy,
            ))
        }
    }

    fn detect(folder: &Path) -> Result<Self> {
        let has = |name: &str| folder.join(name).exists();
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(DataError::io("list", folder))? {
            entries.push(entry.map_err(DataError::io("list", folder))?.path());
        }
        entries.sort();
        let ending = |end: &str| entries.iter().find(|p| p.to_string_lossy().ends_with(end)).cloned();
        let binary = folder.join("cifar-10-batches-bin");
        if idx_file(folder, "train-images", 3).is_some() {
            return Ok(Layout::Idx);
        } else if has("data_batch_1.bin") {
            return Ok(Layout::CifarBinary(folder.to_path_buf()));
        } else if binary.is_dir() {
            return Ok(Layout::CifarBinary(binary));
        } else if has("cifar-10-binary.tar.gz") {
            return Ok(Layout::CifarArchive(folder.join("cifar-10-binary.tar.gz")));
        } else if has("data_batch_1.jxl") {
            return Ok(Layout::CifarSheets);
        } else if has("train_32x32.mat") {
            return Ok(Layout::SvhnMatlab);
        } else if has("train_0.jxl") {
            return Ok(Layout::SvhnSheets);
        } else if has("train.csv") {
            let test = folder.join("test.csv");
            return Ok(Layout::Csv(folder.join("train.csv"), test.exists().then_some(test)));
        } else if let Some(path) = ending(".npz") {
            return Ok(Layout::Npz(path));
        } else if let Some(path) = entries.iter().find(|p| archive::is_archive(&p.to_string_lossy())) {
            return Ok(match entries.iter().find(|p| p.is_dir()) {
                Some(unpacked) => Layout::Folder(unpacked.clone()),
                None => Layout::Archive(path.clone()),
            });
        } else if entries.iter().any(|p| p.is_dir()) {
            return Ok(Layout::Folder(folder.to_path_buf()));
        }
        Err(DataError::Missing {
            what: "image data".to_owned(),
            searched: vec![folder.to_path_buf()],
            remedy: "the folder should hold one of: IDX files (train-images-idx3-ubyte[.gz], ..), data_batch_1.bin .., \
                     cifar-10-binary.tar.gz, data_batch_1.jxl .., train_32x32.mat .., train_0.jxl .., train.csv (label \
                     first), an .npz with x_train, y_train (and x_test, y_test), or train/CLASS/*.png|jpg (or an archive \
                     of that)"
                .to_owned(),
        })
    }

    fn load(&self, folder: &Path) -> Result<Loaded> {
        match self {
            Layout::Idx => idx(folder),
            Layout::CifarBinary(folder) => cifar_binary(folder),
            Layout::CifarArchive(path) => cifar_archive(path),
            Layout::CifarSheets => cache::decoded(&sheet_files(folder)?, || cifar_sheets(folder)),
            Layout::SvhnMatlab => Ok((svhn_matlab(folder, "train")?, svhn_matlab(folder, "test")?, None)),
            Layout::SvhnSheets => cache::decoded(&sheet_files(folder)?, || {
                Ok((svhn_sheets(folder, "train")?, svhn_sheets(folder, "test")?, None))
            }),
            Layout::Npz(path) => npz(path),
            Layout::Csv(train, test) => csv(train, test.as_deref()),
            Layout::Folder(path) => image_folder::read(path).map(|f| (f.train, f.test, Some(f.class_names))),
            Layout::Archive(path) => cache::decoded(std::slice::from_ref(path), || {
                image_folder::read_archive(path).map(|f| (f.train, f.test, Some(f.class_names)))
            }),
        }
    }
}

/// Images and labels given as arrays: (N, H, W) or (N, H, W, C) bytes, and N labels.
fn image_set(name: &str, images: NpyArray, labels: Vec<u32>, white: u8, classes: usize) -> Result<ImageSet> {
    let wrong = |problem: String| {
        DataError::malformed(name, Place::Whole, problem, "images must be bytes, N x H x W [x C]")
    };
    let shape = images.shape().to_vec();
    let NpyData::U8(pixels) = images.into_data() else {
        return Err(wrong("the images are not bytes".to_owned()));
    };
    match shape[..] {
        [_, height, width] => ImageSet::new(name, pixels, [1, height, width], white, labels, classes),
        [_, height, width, channels @ (1 | 3)] => {
            let size = element_count(&[height, width, channels], name)?;
            let mut planar = Vec::with_capacity(pixels.len());
            for image in pixels.chunks_exact(size.max(1)) {
                (0..channels).for_each(|c| planar.extend(image.iter().skip(c).step_by(channels)));
            }
            ImageSet::new(name, planar, [channels, height, width], white, labels, classes)
        }
        _ => Err(wrong(format!("the images have the shape {shape:?}"))),
    }
}

/// MNIST's file names vary in one character and in the compression.
fn idx_file(folder: &Path, start: &str, dims: usize) -> Option<PathBuf> {
    let names = ["-", "."].map(|dash| format!("{start}{dash}idx{dims}-ubyte"));
    let candidates = names.iter().flat_map(|name| [format!("{name}.gz"), name.clone()]);
    candidates.map(|name| folder.join(name)).find(|path| path.exists())
}

/// `train-images`, `train-labels`, `t10k-images` and `t10k-labels`, as MNIST has them.
fn idx(folder: &Path) -> Result<Loaded> {
    let file = |start: &str, dims| {
        idx_file(folder, start, dims)
            .ok_or_else(|| missing(&folder.join(format!("{start}-idx{dims}-ubyte[.gz]"))))
    };
    let labels = |start: &str| -> Result<(String, Vec<usize>)> {
        let path = file(start, 1)?;
        let name = path.display().to_string();
        let labels = idx::read(&path)?.indices(&name, "labels")?;
        Ok((name, labels))
    };
    let images = |start: &str| idx::read(&file(start, 3)?);
    let name = folder.display().to_string();
    let train = images("train-images")?;
    let (label_name, train_labels) = labels("train-labels")?;
    let (train_labels, classes) = class_count::checked(&label_name, "labels", train_labels.into_iter())?;
    let train = image_set(&name, train, train_labels, 255, classes)?;
    let test = images("t10k-images")?;
    let (label_name, test_labels) = labels("t10k-labels")?;
    let test_labels = class_count::below(&label_name, "labels", classes, &test_labels)?;
    Ok((train, image_set(&name, test, test_labels, 255, classes)?, None))
}

fn missing(path: &Path) -> DataError {
    DataError::Missing {
        what: "file that belongs to the data set".to_owned(),
        searched: vec![path.to_path_buf()],
        remedy: "the data set is incomplete: get it again".to_owned(),
    }
}

fn cifar_batches() -> impl Iterator<Item = (String, bool)> {
    (1..=5).map(|i| (format!("data_batch_{i}"), true)).chain([("test_batch".to_owned(), false)])
}

fn cifar_names(text: Option<&[u8]>) -> Option<Vec<String>> {
    // One more than there should be tells a file that has too many.
    let text = String::from_utf8_lossy(text?);
    let names: Vec<String> = text.split_whitespace().map(str::to_owned).take(cifar::CLASSES + 1).collect();
    (names.len() == cifar::CLASSES).then_some(names)
}

fn cifar_set(name: &str, batches: Vec<cifar::Batch>) -> Result<ImageSet> {
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for batch in batches {
        images.extend(batch.images);
        labels.extend(batch.labels);
    }
    ImageSet::new(name, images, [3, cifar::SIDE, cifar::SIDE], 255, labels, cifar::CLASSES)
}

fn cifar_binary(folder: &Path) -> Result<Loaded> {
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (name, is_train) in cifar_batches() {
        let batch = cifar::read(&folder.join(format!("{name}.bin")))?;
        if is_train { train.push(batch) } else { test.push(batch) }
    }
    let names = cifar_names(source::read_whole(&folder.join("batches.meta.txt")).ok().as_deref());
    let name = folder.display().to_string();
    Ok((cifar_set(&name, train)?, cifar_set(&name, test)?, names))
}

fn cifar_archive(path: &Path) -> Result<Loaded> {
    let name = path.display().to_string();
    let mut files = std::collections::BTreeMap::new();
    let wanted = |file: &str| file.ends_with(".bin") || file.ends_with("batches.meta.txt");
    archive::for_each_file(path, wanted, |file, bytes| {
        files.insert(file.rsplit('/').next().unwrap_or(file).to_owned(), bytes);
        Ok(())
    })?;
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (batch, is_train) in cifar_batches() {
        let file = format!("{batch}.bin");
        let bytes = files.get(&file).ok_or_else(|| missing(&path.join(&file)))?;
        let batch = cifar::from_bytes(bytes, &format!("{name}, {file}"))?;
        if is_train { train.push(batch) } else { test.push(batch) }
    }
    let names = cifar_names(files.get("batches.meta.txt").map(Vec::as_slice));
    Ok((cifar_set(&name, train)?, cifar_set(&name, test)?, names))
}

/// One byte per image.
fn label_bytes(path: &Path) -> Result<Vec<u8>> {
    source::read_whole(path)
}

/// Decodes sheets until every label has its image.
fn sheets(folder: &Path, names: impl Iterator<Item = String>, labels: Vec<u32>) -> Result<ImageSet> {
    // Grows with the sheets that are there: the labels alone justify nothing.
    let mut images = Vec::new();
    let mut left = labels.len();
    for name in names {
        let path = folder.join(name);
        let count = left.min(SHEET_IMAGES);
        Sheet::read(&path)?.cut(cifar::SIDE, count, &path.display().to_string(), &mut images)?;
        left -= count;
    }
    let shape = [3, cifar::SIDE, cifar::SIDE];
    ImageSet::new(&folder.display().to_string(), images, shape, 255, labels, cifar::CLASSES)
}

/// Everything that decoded sheets depend on: the sheets, their labels and the class names.
fn sheet_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io("list", folder))? {
        let path = entry.map_err(DataError::io("list", folder))?.path();
        let name = path.to_string_lossy();
        if [".jxl", "_labels.u8", "batches.meta.txt"].iter().any(|end| name.ends_with(end)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn cifar_sheets(folder: &Path) -> Result<Loaded> {
    let part = |is_train: bool, labels: &str| {
        let labels = label_bytes(&folder.join(labels))?.into_iter().map(u32::from).collect();
        let names =
            cifar_batches().filter(|batch| batch.1 == is_train).map(|(name, _)| format!("{name}.jxl"));
        sheets(folder, names, labels)
    };
    let names = cifar_names(source::read_whole(&folder.join("batches.meta.txt")).ok().as_deref());
    Ok((part(true, "train_labels.u8")?, part(false, "test_labels.u8")?, names))
}

/// SVHN counts from 1 and writes 10 for the digit 0.
fn svhn_labels(labels: impl Iterator<Item = usize>, name: &str) -> Result<Vec<u32>> {
    let digit = |(i, label): (usize, usize)| match label {
        1..=9 => Ok(label as u32),
        10 => Ok(0),
        _ => {
            let problem = format!("label {label} of image {i} is not 1 to 10");
            Err(DataError::malformed(name, Place::Whole, problem, GET_AGAIN))
        }
    };
    labels.enumerate().map(digit).collect()
}

fn svhn_sheets(folder: &Path, part: &str) -> Result<ImageSet> {
    let path = folder.join(format!("{part}_labels.u8"));
    let labels = svhn_labels(label_bytes(&path)?.into_iter().map(usize::from), &path.display().to_string())?;
    let count = labels.len().div_ceil(SHEET_IMAGES);
    sheets(folder, (0..count).map(|i| format!("{part}_{i}.jxl")), labels)
}

fn svhn_matlab(folder: &Path, part: &str) -> Result<ImageSet> {
    let path = folder.join(format!("{part}_32x32.mat"));
    let name = path.display().to_string();
    let wrong = |problem: String| DataError::malformed(&name, Place::Whole, problem, GET_AGAIN);
    let (mut x, mut y) = (None, None);
    for array in matlab::read(&path)? {
        match array.name.as_str() {
            "X" => x = Some(array),
            "y" => y = Some(array),
            _ => {}
        }
    }
    let (Some(x), Some(y)) = (x, y) else { return Err(wrong("has no variables X and y".to_owned())) };
    let (&[height, width, 3, _], NpyData::U8(pixels)) = (&x.dims[..], &x.data) else {
        return Err(wrong(format!("X has the size {:?}, bytes of 32 x 32 x 3 x N expected", x.dims)));
    };
    let mut images = Vec::with_capacity(pixels.len());
    // MATLAB has the rows fastest, we the columns.
    let plane = element_count(&[height, width], &name)?;
    for plane in pixels.chunks_exact(plane.max(1)) {
        (0..height).for_each(|row| images.extend(plane.iter().skip(row).step_by(height)));
    }
    let labels = NpyArray::new(y.dims, y.data)?.indices(&name, "y")?;
    let labels = svhn_labels(labels.into_iter(), &name)?;
    ImageSet::new(&name, images, [3, height, width], 255, labels, 10)
}

/// `x_train` and `y_train`, and perhaps `x_test` and `y_test`.
fn npz(path: &Path) -> Result<Loaded> {
    let mut file = Npz::read(path)?;
    let name = path.display().to_string();
    let labels = |file: &Npz, array: &str| file.get(array)?.indices(&name, array);
    let (train_labels, classes) =
        class_count::checked(&name, "y_train", labels(&file, "y_train")?.into_iter())?;
    let train = image_set(&name, file.take("x_train")?, train_labels, 255, classes)?;
    let test = if file.contains("x_test") || file.contains("y_test") {
        let labels = class_count::below(&name, "y_test", classes, &labels(&file, "y_test")?)?;
        image_set(&name, file.take("x_test")?, labels, 255, classes)?
    } else {
        let shape = [train.channels(), train.height(), train.width()];
        ImageSet::new(&name, Vec::new(), shape, 255, Vec::new(), classes)?
    };
    Ok((train, test, None))
}

/// Training images and perhaps test images: label, then the pixels (0 to 255) of a square grey image.
fn csv(train: &Path, test: Option<&Path>) -> Result<Loaded> {
    let (side, train_pixels, train_labels) = csv_part(train)?;
    let name = train.display().to_string();
    let (train_labels, classes) = class_count::checked(&name, "first column", train_labels.into_iter())?;
    let train_set = ImageSet::new(&name, train_pixels, [1, side, side], 255, train_labels, classes)?;
    let (name, pixels, labels) = match test {
        Some(test) => {
            let (_, pixels, labels) = csv_part(test)?;
            (test.display().to_string(), pixels, labels)
        }
        None => (name, Vec::new(), Vec::new()),
    };
    let test_set = ImageSet::new(&name, pixels, [1, side, side], 255, labels, classes)?;
    Ok((train_set, test_set, None))
}

/// The names in a `classes.txt`, one per line, or numbers where there is no such file.
fn named_classes(path: &Path, classes: usize) -> Result<Vec<String>> {
    if !path.is_file() {
        return Ok((0..classes).map(|class| class.to_string()).collect());
    }
    let bytes = source::read_whole(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    // One more than there should be tells a file that has too many.
    let names: Vec<String> = lines.take(classes + 1).map(str::to_owned).collect();
    let distinct = names.iter().collect::<std::collections::BTreeSet<_>>().len();
    if names.len() != classes || distinct != classes {
        let problem = format!("does not have {classes} different names, one per line");
        let remedy = format!("the labels go from 0 to {}: name each of them", classes.saturating_sub(1));
        return Err(DataError::malformed(&path.display().to_string(), Place::Whole, problem, remedy));
    }
    Ok(names)
}

fn csv_part(path: &Path) -> Result<(usize, Vec<u8>, Vec<u32>)> {
    let name = path.display().to_string();
    let remedy = "every line is: label, then the pixels (0 to 255) of a square grey image";
    let square = |columns: usize| {
        let side = columns.saturating_sub(1).isqrt();
        if side == 0 || side * side + 1 != columns {
            let problem = format!("{columns} columns are not a label and a square image");
            return Err(DataError::malformed(&name, Place::Whole, problem, remedy));
        }
        Ok(side)
    };
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let columns = for_each_row(path, |i, row| {
        square(row.len())?;
        let whole = |value: f64, limit: f64| {
            (value.fract() == 0.0 && (0.0..=limit).contains(&value)).then_some(value)
        };
        for (column, &value) in row.iter().enumerate() {
            let limit = if column == 0 { 65_535.0 } else { 255.0 };
            let Some(value) = whole(value, limit) else {
                let place = Place::Field(format!("row {}, column {}", i + 1, column + 1));
                return Err(DataError::malformed(&name, place, format!("is {value}"), remedy));
            };
            if column == 0 { labels.push(value as u32) } else { pixels.push(value as u8) }
        }
        Ok(())
    })?;
    let side = square(columns)?;
    Ok((side, pixels, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_digits_are_the_known_ones() {
        let digits = ImageDataset::load("digits", None).unwrap();
        assert_eq!(digits.images.label_counts(), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let sum: u64 = digits.images.images().iter().map(|&p| u64::from(p)).sum();
        assert_eq!(sum, 561_718);
        // The first image of the published file is a zero whose first row reads 0 0 5 13 9 1 0 0.
        assert_eq!(
            (&digits.images.image(0)[..8], digits.images.labels()[0]),
            (&[0, 0, 5, 13, 9, 1, 0, 0][..], 0)
        );
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = ImageDataset::load("mnits", None).unwrap_err().to_string();
        assert!(error.contains("mnits") && error.contains("fashion-mnist"), "{error}");
    }

    #[test]
    fn csv_and_npz_folders() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("train.csv"), "label,a,b,c,d\n1,0,1,2,255\n0,4,5,6,7\n").unwrap();
        let set = ImageDataset::from_folder(dir.path()).unwrap();
        assert_eq!((set.images.image(0), set.images.labels()), (&[0, 1, 2, 255][..], &[1, 0][..]));
        std::fs::write(dir.path().join("train.csv"), "1,0,1,2,256\n").unwrap();
        let error = ImageDataset::from_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains("row 1, column 5: is 256"), "{error}");

        let dir = tempfile::tempdir().unwrap();
        let mut npz = Npz::new("t");
        let images = |n| NpyArray::new(vec![n, 1, 2, 3], NpyData::U8((0..n as u8 * 6).collect())).unwrap();
        npz.insert("x_train", images(2));
        npz.insert("y_train", NpyArray::new(vec![2, 1], NpyData::I64(vec![0, 1])).unwrap());
        npz.insert("x_test", images(1));
        npz.insert("y_test", NpyArray::new(vec![1], NpyData::I64(vec![1])).unwrap());
        let file = dir.path().join("own.npz");
        npz.write(&file).unwrap();
        let set = ImageDataset::from_folder(dir.path()).unwrap();
        assert_eq!((set.official_train, set.official_test()), (2, 1));
        assert_eq!(set.images.image(0), [0, 3, 1, 4, 2, 5]);
        // The file by its path is the same set; names of classes come from beside it.
        let by_path = ImageDataset::load(&file.display().to_string(), None).unwrap();
        assert_eq!((by_path.images, by_path.class_names), (set.images, vec!["0".to_owned(), "1".to_owned()]));
        std::fs::write(dir.path().join("classes.txt"), "cat\ndog\n").unwrap();
        assert_eq!(ImageDataset::from_folder(dir.path()).unwrap().class_names, ["cat", "dog"]);
        std::fs::write(dir.path().join("classes.txt"), "cat\n").unwrap();
        let error = ImageDataset::from_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains("does not have 2 different names"), "{error}");
    }

    #[test]
    fn without_test_images_an_npz_is_divided() {
        let dir = tempfile::tempdir().unwrap();
        let mut npz = Npz::new("t");
        npz.insert("x_train", NpyArray::new(vec![20, 1, 2], NpyData::U8(vec![3; 40])).unwrap());
        npz.insert("y_train", NpyArray::new(vec![20], NpyData::U8(vec![0, 1].repeat(10))).unwrap());
        npz.write(&dir.path().join("own.npz")).unwrap();
        let split = ImageDataset::from_folder(dir.path()).unwrap().split(SplitRule::Release, 0).unwrap();
        assert_eq!([split.train.len(), split.validation.len(), split.test.len()], [14, 3, 3]);
    }

    #[test]
    fn a_file_that_is_no_data_set_is_told_what_would_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.bmp");
        std::fs::write(&path, b"BM").unwrap();
        let error = ImageDataset::load(&path.display().to_string(), None).unwrap_err().to_string();
        assert!(error.contains(".npz"), "{error}");
    }

    #[test]
    fn an_empty_folder_is_told_what_it_could_hold() {
        let dir = tempfile::tempdir().unwrap();
        let error = ImageDataset::from_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains("train_32x32.mat"), "{error}");
    }
}
