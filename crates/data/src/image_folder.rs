//! Folders of JPEG and PNG files, one folder per class, as Tiny-ImageNet has them; unpacked or in an archive.
//!
//! Understood: `train/CLASS/images/FILE`, `train/CLASS/FILE`, the same under `val` and `test`, `val/images/FILE` with
//! `val/val_annotations.txt`, and plain `CLASS/FILE`. Classes are numbered in the order of `wnids.txt`, or
//! alphabetically. Labelled `test` files are the official test set; without any, the `val` files are (as in the
//! published code). Files without a label (Tiny-ImageNet's `test/images`) are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::archive;
use crate::budget::picture_allowance;
use crate::class_count;
use crate::error::{DataError, Place, Result};
use crate::images::ImageSet;
use crate::picture::{self, Picture};
use crate::source;

/// Official training and test images of a folder, and the names of the classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFolder {
    /// Training images.
    pub train: ImageSet,
    /// Test images; may be empty.
    pub test: ImageSet,
    /// Class names, by label.
    pub class_names: Vec<String>,
}

/// Reads a folder of images.
pub fn read(folder: &Path) -> Result<ImageFolder> {
    let mut collector = Collector::new(&folder.display().to_string());
    let mut files = Vec::new();
    walk(folder, 0, &mut BTreeSet::new(), &mut files)?;
    for path in files {
        let relative = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        if wanted(&relative) {
            let bytes = source::read_whole(&path)?;
            collector.accept(&relative, &bytes)?;
        } else {
            collector.other.get_or_insert(relative);
        }
    }
    collector.finish()
}

/// The PNG and JPEG files below a folder, in the order of their names.
///
/// # Errors
/// A folder that cannot be listed, or that holds none.
pub fn pictures_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    walk(folder, 0, &mut BTreeSet::new(), &mut files)?;
    files.retain(|path| is_image(&path.to_string_lossy()));
    files.sort();
    if files.is_empty() {
        let name = folder.display().to_string();
        let remedy = "files that end in .png, .jpg or .jpeg are looked for";
        return Err(DataError::malformed(&name, Place::Whole, "no pictures", remedy));
    }
    Ok(files)
}

/// Reads the same layout out of an archive.
pub fn read_archive(path: &Path) -> Result<ImageFolder> {
    let mut collector = Collector::new(&path.display().to_string());
    archive::for_each_file(path, wanted, |file, bytes| collector.accept(file, &bytes))?;
    collector.finish()
}

/// The files below a folder, each once: links may lead in circles, and many of them to more places than there are.
fn walk(folder: &Path, depth: usize, seen: &mut BTreeSet<PathBuf>, files: &mut Vec<PathBuf>) -> Result<()> {
    let place = std::fs::canonicalize(folder).map_err(DataError::io("list", folder))?;
    // Deep enough for tiny-imagenet-200/train/CLASS/images.
    if depth > 6 || !seen.insert(place) {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).map_err(DataError::io("list", folder))? {
        let path = entry.map_err(DataError::io("list", folder))?.path();
        if path.is_dir() {
            walk(&path, depth + 1, seen, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn is_image(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    [".jpg", ".jpeg", ".png"].iter().any(|end| lower.ends_with(end))
}

fn wanted(path: &str) -> bool {
    is_image(path) || path.ends_with("wnids.txt") || path.ends_with("val_annotations.txt")
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Train,
    Val,
    Test,
}

/// Part and class that a path says; the class is `None` if the path has none (`val/images/FILE`).
fn place(path: &str) -> Option<(Part, Option<&str>, &str)> {
    let mut folders: Vec<&str> = path.split('/').collect();
    let file = folders.pop()?;
    let part = |name: &&str| match *name {
        "train" => Some(Part::Train),
        "val" => Some(Part::Val),
        "test" => Some(Part::Test),
        _ => None,
    };
    match folders.iter().position(|f| part(f).is_some()) {
        Some(at) => {
            let class = folders.get(at + 1).copied().filter(|&name| name != "images");
            Some((part(&folders[at])?, class, file))
        }
        None => Some((Part::Train, Some(folders.pop()?), file)),
    }
}

/// A decoded image: one byte per pixel if it is grey, else three planes.
struct Decoded {
    file: String,
    class: Option<String>,
    grey: bool,
    pixels: Vec<u8>,
}

struct Collector {
    name: String,
    size: Option<(usize, usize)>,
    /// Bytes of pictures as they came, and as they are in memory.
    encoded: u64,
    decoded: u64,
    /// The text of `wnids.txt`.
    wnids: Option<String>,
    /// The text of `val_annotations.txt`: only the lines of pictures that are there become entries.
    annotations: String,
    parts: BTreeMap<Part, Vec<Decoded>>,
    /// A file that was left out, to be named where nothing else was found.
    other: Option<String>,
}

impl Collector {
    fn new(name: &str) -> Self {
        Collector {
            name: name.to_owned(),
            size: None,
            encoded: 0,
            decoded: 0,
            wnids: None,
            annotations: String::new(),
            parts: BTreeMap::new(),
            other: None,
        }
    }

    fn error(&self, file: &str, problem: String, remedy: &str) -> DataError {
        DataError::malformed(&self.name, Place::Field(file.to_owned()), problem, remedy)
    }

    fn accept(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        if path.ends_with("wnids.txt") {
            self.wnids = Some(String::from_utf8_lossy(bytes).into_owned());
            return Ok(());
        }
        if path.ends_with("val_annotations.txt") {
            self.annotations.push_str(&String::from_utf8_lossy(bytes));
            self.annotations.push('\n');
            return Ok(());
        }
        let Some((part, class, file)) = place(path) else { return Ok(()) };
        if part == Part::Test && class.is_none() {
            return Ok(());
        }
        let decoded = self.decode(path, bytes)?;
        let class = class.map(str::to_owned);
        self.parts.entry(part).or_default().push(Decoded { file: file.to_owned(), class, ..decoded });
        Ok(())
    }

    fn decode(&mut self, path: &str, bytes: &[u8]) -> Result<Decoded> {
        let fault = |fault: picture::Fault| fault.at(&self.name, Place::Field(path.to_owned()));
        let (height, width) = picture::size(bytes).map_err(fault)?;
        self.encoded = self.encoded.saturating_add(bytes.len() as u64);
        self.decoded = self.decoded.saturating_add(3 * u64::from(width) * u64::from(height));
        if self.decoded > picture_allowance(self.encoded) {
            let problem = format!(
                "is {height} x {width}, with the pictures before {} bytes of pixels out of a file or files of {} bytes",
                self.decoded, self.encoded
            );
            return Err(self.error(path, problem, "bring the pictures to the size that is needed first"));
        }
        let Picture { channels, height, width, planes } = picture::decode(bytes).map_err(fault)?;
        let size = (height, width);
        let expected = *self.size.get_or_insert(size);
        if size != expected {
            let problem =
                format!("is {} x {}, the images before are {} x {}", size.0, size.1, expected.0, expected.1);
            return Err(self.error(path, problem, "bring all images to one size first"));
        }
        Ok(Decoded { file: String::new(), class: None, grey: channels == 1, pixels: planes })
    }

    fn finish(mut self) -> Result<ImageFolder> {
        let mut unlabelled: BTreeMap<String, Vec<&mut Decoded>> = BTreeMap::new();
        for image in self.parts.get_mut(&Part::Val).into_iter().flatten().filter(|i| i.class.is_none()) {
            unlabelled.entry(image.file.clone()).or_default().push(image);
        }
        for line in self.annotations.lines() {
            let mut words = line.split_whitespace();
            if let (Some(file), Some(class)) = (words.next(), words.next()) {
                for image in unlabelled.get_mut(file).into_iter().flatten() {
                    image.class = Some(class.to_owned());
                }
            }
        }
        let class_names = self.class_names()?;
        let labels: BTreeMap<&str, u32> = class_names.iter().map(String::as_str).zip(0..).collect();
        let grey = self.parts.values().flatten().all(|image| image.grey);
        let train = self.parts.remove(&Part::Train).unwrap_or_default();
        let val = self.parts.remove(&Part::Val).unwrap_or_default();
        let test = self.parts.remove(&Part::Test).unwrap_or_default();
        // With a labelled test set of its own, the validation part is more training data.
        let (train, test) =
            if test.is_empty() { (train, val) } else { (train.into_iter().chain(val).collect(), test) };
        let train = self.assemble(train, &labels, grey)?;
        let test = self.assemble(test, &labels, grey)?;
        Ok(ImageFolder { train, test, class_names })
    }

    fn class_names(&self) -> Result<Vec<String>> {
        let mut found: Vec<String> =
            self.parts.values().flatten().filter_map(|image| image.class.clone()).collect();
        found.sort_unstable();
        found.dedup();
        let Some(listed) = &self.wnids else {
            if found.is_empty() {
                let remedy = "put JPEG or PNG files into train/CLASS/ and test/CLASS/";
                let other =
                    self.other.as_ref().map_or(String::new(), |file| format!(" (but files such as {file})"));
                let problem = format!("no labelled images{other}");
                return Err(DataError::malformed(&self.name, Place::Whole, problem, remedy));
            }
            return Ok(found);
        };
        let images = self.parts.values().map(Vec::len).sum();
        let most = class_count::limit(images);
        let wnids: Vec<String> = listed.split_whitespace().take(most + 1).map(str::to_owned).collect();
        if wnids.len() > most {
            let problem = format!("lists more than {most} classes for {images} images");
            return Err(self.error("wnids.txt", problem, "leave out the classes that have no images"));
        }
        let known: BTreeSet<&String> = wnids.iter().collect();
        if known.len() < wnids.len() {
            let problem = "lists a class twice".to_owned();
            return Err(self.error("wnids.txt", problem, "every class has one line"));
        }
        match found.iter().find(|class| !known.contains(class)) {
            Some(class) => Err(self.error(
                "wnids.txt",
                format!("does not list the class {class}"),
                "add it or delete the file",
            )),
            None => Ok(wnids),
        }
    }

    fn assemble(&self, images: Vec<Decoded>, labels: &BTreeMap<&str, u32>, grey: bool) -> Result<ImageSet> {
        let mut sorted = Vec::with_capacity(images.len());
        for image in images {
            let Some(&label) = image.class.as_deref().and_then(|class| labels.get(class)) else {
                let remedy = "add it to val_annotations.txt or put it into a folder named after its class";
                return Err(self.error(&image.file, "has no class".to_owned(), remedy));
            };
            sorted.push((label, image));
        }
        // By length first, so that x_10 comes behind x_9.
        sorted.sort_by(|(a, x), (b, y)| (a, x.file.len(), &x.file).cmp(&(b, y.file.len(), &y.file)));
        let (height, width) = self.size.unwrap_or((1, 1));
        let channels = if grey { 1 } else { 3 };
        let (mut pixels, mut all) = (Vec::new(), Vec::with_capacity(sorted.len()));
        for (label, image) in sorted {
            let copies = if image.grey { channels } else { 1 };
            (0..copies).for_each(|_| pixels.extend_from_slice(&image.pixels));
            all.push(label);
        }
        let shape = [channels, height, width];
        ImageSet::new(&self.name, pixels, shape, 255, all, labels.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::DynamicImage;

    use super::*;

    fn png(colours: &[[u8; 3]]) -> Vec<u8> {
        let buffer = image::RgbImage::from_raw(colours.len() as u32, 1, colours.concat()).unwrap();
        encoded(DynamicImage::ImageRgb8(buffer))
    }

    fn grey_png(values: &[u8]) -> Vec<u8> {
        encoded(DynamicImage::ImageLuma8(
            image::GrayImage::from_raw(values.len() as u32, 1, values.to_vec()).unwrap(),
        ))
    }

    fn encoded(image: DynamicImage) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    fn write(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn tiny_imagenet_layout() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "wnids.txt", b"zebra\nant\n");
        write(root, "train/ant/images/ant_10.png", &png(&[[1, 2, 3], [4, 5, 6]]));
        write(root, "train/ant/images/ant_9.png", &grey_png(&[8, 9]));
        write(root, "train/zebra/images/zebra_0.png", &png(&[[7; 3]; 2]));
        write(root, "val/images/val_0.png", &png(&[[0; 3]; 2]));
        write(root, "val/val_annotations.txt", b"val_0.png\tant\t0\t0\t1\t1\n");
        write(root, "test/images/test_0.png", &png(&[[0; 3]; 2]));
        let folder = read(root).unwrap();
        assert_eq!(folder.class_names, ["zebra", "ant"]);
        assert_eq!(folder.train.labels(), [0, 1, 1]);
        assert_eq!(folder.train.image(1), [8, 9, 8, 9, 8, 9]);
        assert_eq!(folder.train.image(2), [1, 4, 2, 5, 3, 6]);
        assert_eq!(folder.test.labels(), [1]);
    }

    #[test]
    fn a_picture_of_another_size_is_named() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a/1.png", &grey_png(&[1, 2]));
        write(dir.path(), "b/2.png", &grey_png(&[1]));
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("one size"), "{error}");
    }

    #[test]
    fn grey_folders_stay_grey_and_empty_ones_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).is_err());
        write(dir.path(), "a/1.png", &grey_png(&[1, 2]));
        assert_eq!(read(dir.path()).unwrap().train.channels(), 1);
    }
}
