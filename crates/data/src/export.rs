//! A data set of images in the forms that one's own may have: to look at, and to do likewise.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use image::{ExtendedColorType, ImageFormat};

use crate::error::{DataError, Result};
use crate::image_dataset::ImageDataset;
use crate::images::ImageSet;
use crate::npy::{NpyArray, NpyData};
use crate::npz::Npz;
use crate::split::SplitRule;

/// Training and test images of a data set, by their places in it.
struct Exported<'a> {
    set: &'a ImageSet,
    class_names: &'a [String],
    train: Vec<u32>,
    test: Vec<u32>,
}

/// The forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `train/CLASS/N.png` and `test/CLASS/N.png`.
    Folder,
    /// One file with `x_train`, `y_train`, `x_test` and `y_test`.
    Npz,
    /// `train.csv` and `test.csv`: label, then the pixels of a square grey image.
    Csv,
    /// MNIST's four files, for grey images.
    Idx,
}

/// Writes a data set to `out`, a folder (for [`Form::Npz`] a file) that is not there yet. Pixels go from 0 to 255. Where the
/// data set has no test images, those that a training would test on become them.
///
/// # Errors
/// Images that the form cannot hold, something that is there already, a disk that is full.
pub fn export(dataset: &ImageDataset, form: Form, out: &Path) -> Result<()> {
    if out.exists() {
        return Err(DataError::request(
            format!("{} is there already", out.display()),
            "choose a place where nothing is",
        ));
    }
    let split = dataset.split(SplitRule::Release, 0)?;
    // Where the validation images are the test images, they are exported once.
    let test: BTreeSet<u32> = split.test.into_iter().collect();
    let mut train = [split.train, split.validation].concat();
    train.retain(|i| !test.contains(i));
    train.sort_unstable();
    let test = test.into_iter().collect();
    let exported = Exported { set: &dataset.images, class_names: &dataset.class_names, train, test };
    match form {
        Form::Folder => exported.folder(out),
        Form::Npz => exported.npz(out),
        Form::Csv => exported.csv(out),
        Form::Idx => exported.idx(out),
    }
}

impl Exported<'_> {
    fn parts(&self) -> [(&'static str, &[u32]); 2] {
        [("train", &self.train), ("test", &self.test)]
    }

    /// Pixels from 0 to 255, row after row, the channels of a pixel beside one another.
    fn pixels(&self, i: u32) -> Vec<u8> {
        let (image, white) = (self.set.image(i as usize), u32::from(self.set.white()));
        let (channels, plane) = (self.set.channels(), self.set.height() * self.set.width());
        let byte = |k: usize| (u32::from(image[k % channels * plane + k / channels]) * 255 / white) as u8;
        (0..image.len()).map(byte).collect()
    }

    fn labels<L: From<u32>>(&self, part: &[u32]) -> Vec<L> {
        part.iter().map(|&i| self.set.labels()[i as usize].into()).collect()
    }

    fn folder(&self, out: &Path) -> Result<()> {
        if let Some(class) =
            self.class_names.iter().find(|name| name.contains(['/', '\\']) || name.starts_with('.'))
        {
            let problem = format!("the class `{class}` cannot be the name of a folder");
            return Err(DataError::request(problem, "choose another form"));
        }
        let (width, height) = (self.set.width() as u32, self.set.height() as u32);
        let colour = if self.set.channels() == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
        for (name, part) in self.parts() {
            for &i in part {
                let class = &self.class_names[self.set.labels()[i as usize] as usize];
                let folder = out.join(name).join(class);
                create(&folder)?;
                let path = folder.join(format!("{i}.png"));
                image::save_buffer_with_format(
                    &path,
                    &self.pixels(i),
                    width,
                    height,
                    colour,
                    ImageFormat::Png,
                )
                .map_err(|why| DataError::Io {
                    file: path.clone(),
                    doing: "write",
                    source: std::io::Error::other(why),
                })?;
            }
        }
        Ok(())
    }

    fn npz(&self, out: &Path) -> Result<()> {
        let mut npz = Npz::new(&out.display().to_string());
        for (name, part) in self.parts() {
            let mut shape = vec![part.len(), self.set.height(), self.set.width()];
            if self.set.channels() > 1 {
                shape.push(self.set.channels());
            }
            let pixels = part.iter().flat_map(|&i| self.pixels(i)).collect();
            npz.insert(&format!("x_{name}"), NpyArray::new(shape, NpyData::U8(pixels))?);
            let labels = self.labels(part);
            npz.insert(&format!("y_{name}"), NpyArray::new(vec![part.len()], NpyData::I64(labels))?);
        }
        npz.write(out)
    }

    fn csv(&self, out: &Path) -> Result<()> {
        if self.set.channels() != 1 || self.set.height() != self.set.width() {
            return Err(DataError::request("a .csv holds square grey images", "choose another form"));
        }
        create(out)?;
        for (name, part) in self.parts() {
            let mut text = String::new();
            for (&i, label) in part.iter().zip(self.labels::<u32>(part)) {
                let _ = write!(text, "{label}");
                self.pixels(i).iter().for_each(|pixel| {
                    let _ = write!(text, ",{pixel}");
                });
                text.push('\n');
            }
            write(&out.join(format!("{name}.csv")), text.as_bytes())?;
        }
        self.classes(out)
    }

    fn idx(&self, out: &Path) -> Result<()> {
        if self.set.channels() != 1 || self.set.classes() > 256 {
            let problem = "these IDX files hold grey images of at most 256 classes";
            return Err(DataError::request(problem, "choose another form"));
        }
        create(out)?;
        for (name, part) in [("train", &self.train), ("t10k", &self.test)] {
            let sizes = [part.len() as u32, self.set.height() as u32, self.set.width() as u32];
            let head = |dimensions: &[u32]| -> Vec<u8> {
                let sizes = dimensions.iter().flat_map(|size| size.to_be_bytes());
                [0, 0, 8, dimensions.len() as u8].into_iter().chain(sizes).collect()
            };
            let images = part.iter().flat_map(|&i| self.pixels(i));
            let images: Vec<u8> = head(&sizes).into_iter().chain(images).collect();
            write(&out.join(format!("{name}-images-idx3-ubyte")), &images)?;
            let labels = self.labels::<u32>(part).into_iter().map(|label| label as u8);
            let labels: Vec<u8> = head(&sizes[..1]).into_iter().chain(labels).collect();
            write(&out.join(format!("{name}-labels-idx1-ubyte")), &labels)?;
        }
        self.classes(out)
    }

    /// The names of the classes, for forms that have numbers for them.
    fn classes(&self, out: &Path) -> Result<()> {
        write(&out.join("classes.txt"), (self.class_names.join("\n") + "\n").as_bytes())
    }
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(DataError::io("create", folder))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(DataError::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the form, the same images come back.
    #[test]
    fn every_form_is_read_back() {
        let digits = ImageDataset::load("digits", None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut sums = Vec::new();
        for (form, name) in
            [(Form::Folder, "pictures"), (Form::Npz, "own.npz"), (Form::Csv, "tables"), (Form::Idx, "idx")]
        {
            let out = dir.path().join(name);
            export(&digits, form, &out).unwrap();
            let back = ImageDataset::load(&out.display().to_string(), None).unwrap();
            assert_eq!(back.class_names, digits.class_names, "{form:?}");
            assert_eq!(back.images.label_counts(), digits.images.label_counts(), "{form:?}");
            assert_eq!((back.official_train, back.images.white()), (1537, 255), "{form:?}");
            sums.push(back.images.images().iter().map(|&p| u64::from(p)).sum::<u64>());
            assert!(export(&digits, form, &out).unwrap_err().to_string().contains("there already"));
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    }
}
