//! Fuzzing of whole data sets: folders of every layout, one file of them mutated, loaded and used as the program does.
//!
//! What is compressed or in an archive is mutated inside and packed again, so that no checksum hides what is behind it.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use subdeq_data::graph::{GraphDataset, GraphSplitRule, planetoid};
use subdeq_data::image_dataset::ImageDataset;
use subdeq_data::npy::{NpyArray, NpyData};
use subdeq_data::split::SplitRule;
use subdeq_data::standardise::Standardisation;

use super::mutate::Mutator;

/// What a folder is loaded as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Images,
    Graph,
    Planetoid,
}

#[allow(dead_code)]
impl Kind {
    pub fn named(name: &str) -> Kind {
        match name {
            "images" => Kind::Images,
            "graph" => Kind::Graph,
            "planetoid" => Kind::Planetoid,
            other => panic!("no kind '{other}'"),
        }
    }
}

/// Loads a folder and makes of it what the program makes: counts, splits, constants, matrices. `Err` is the sentence that
/// it was refused with.
pub fn load_and_use(kind: Kind, folder: &Path) -> Result<(), String> {
    let sentence = |e: subdeq_data::DataError| e.to_string();
    let graph = match kind {
        Kind::Images => return use_images(&ImageDataset::from_folder(folder).map_err(sentence)?),
        Kind::Graph => GraphDataset::load(&folder.to_string_lossy(), None).map_err(sentence)?,
        Kind::Planetoid => planetoid::load(folder, "cora").map_err(sentence)?,
    };
    let mut counts = vec![0usize; graph.classes];
    graph.labels.iter().for_each(|&label| counts[label as usize] += 1);
    let propagation = graph.propagation().map_err(sentence)?;
    assert_eq!(propagation.rows(), graph.nodes());
    // One row of weights for every feature and a few units.
    let weights = vec![0f32; 4 * graph.features.columns()];
    assert_eq!(graph.features.transpose().rows() * 4, weights.len());
    // Splits may be impossible for what was loaded; that is said, not more.
    let _ = graph.split(GraphSplitRule::Share { labelled: 0.5 }, 1);
    for index in 0..graph.given_splits.len() {
        graph.split(GraphSplitRule::Given { index }, 1).map_err(sentence)?;
    }
    Ok(())
}

fn use_images(data: &ImageDataset) -> Result<(), String> {
    let counts = data.images.label_counts();
    assert_eq!(counts.len(), data.class_names.len());
    for &label in data.images.labels() {
        assert!(!data.class_names[label as usize].contains('\0') || counts[label as usize] > 0);
    }
    for rule in [SplitRule::Release, SplitRule::Paper, SplitRule::Counts { train: 1, validation: 0 }] {
        let Ok(split) = data.split(rule, 1) else { continue };
        let measured = Standardisation::measured(&data.images, &split.train).map_err(|e| e.to_string())?;
        let table = measured.table(&data.images).map_err(|e| e.to_string())?;
        for &i in split.train.iter().chain(&split.validation).chain(&split.test).take(4) {
            let pixels = data.images.image(i as usize);
            table.apply(pixels, &mut vec![0.0; pixels.len()]);
        }
    }
    Ok(())
}

/// Bytes, or something packed.
#[derive(Clone)]
pub enum Content {
    Plain(Vec<u8>),
    Gzip(Vec<u8>),
    /// Members that are stored uncompressed, as NumPy's `savez` does.
    Zip(Vec<(String, Vec<u8>)>),
    TarGz(Vec<(String, Vec<u8>)>),
}

impl Content {
    pub fn packed(&self) -> Vec<u8> {
        match self {
            Content::Plain(bytes) => bytes.clone(),
            Content::Gzip(bytes) => gzip(bytes),
            Content::Zip(members) => {
                let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
                let options = zip::write::SimpleFileOptions::default()
                    .compression_method(zip::CompressionMethod::Stored);
                for (name, bytes) in members {
                    zip.start_file(name.as_str(), options).expect("writing to memory");
                    zip.write_all(bytes).expect("writing to memory");
                }
                zip.finish().expect("writing to memory").into_inner()
            }
            Content::TarGz(members) => gzip(&tar(members)),
        }
    }

    fn pieces(&mut self) -> Vec<&mut Vec<u8>> {
        match self {
            Content::Plain(bytes) | Content::Gzip(bytes) => vec![bytes],
            Content::Zip(members) | Content::TarGz(members) => members.iter_mut().map(|m| &mut m.1).collect(),
        }
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("writing to memory");
    encoder.finish().expect("writing to memory")
}

pub fn tar(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes.as_slice()).expect("writing to memory");
    }
    tar.into_inner().expect("writing to memory")
}

/// A data set to begin with.
pub struct Seed {
    pub name: &'static str,
    pub kind: Kind,
    pub files: Vec<(String, Content)>,
}

impl Seed {
    /// Writes all files.
    pub fn write(&self, folder: &Path) {
        for (name, content) in &self.files {
            write(folder, name, &content.packed());
        }
    }
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
}

/// A `.npy` of 64-bit integers.
pub fn ints(shape: &[usize], values: &[i64]) -> Vec<u8> {
    NpyArray::new(shape.to_vec(), NpyData::I64(values.to_vec())).expect("a shape that fits").to_bytes()
}

pub fn floats(shape: &[usize], values: &[f32]) -> Vec<u8> {
    NpyArray::new(shape.to_vec(), NpyData::F32(values.to_vec())).expect("a shape that fits").to_bytes()
}

pub fn bytes(shape: &[usize], values: &[u8]) -> Vec<u8> {
    NpyArray::new(shape.to_vec(), NpyData::U8(values.to_vec())).expect("a shape that fits").to_bytes()
}

/// Members of an `.npz`.
pub fn npz(arrays: &[(&str, Vec<u8>)]) -> Content {
    Content::Zip(arrays.iter().map(|(name, npy)| (format!("{name}.npy"), npy.clone())).collect())
}

/// An array as Python 2 pickles it.
pub fn pickled_array(shape: &[i32], dtype: &str, data: &[u8]) -> Vec<u8> {
    let text = |s: &[u8]| [&[b'T'][..], &(s.len() as u32).to_le_bytes(), s].concat();
    let shape: Vec<u8> = shape.iter().flat_map(|n| [&b"J"[..], &n.to_le_bytes()].concat()).collect();
    [
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01(",
        shape.as_slice(),
        b"tcnumpy\ndtype\n",
        &text(dtype.as_bytes()),
        b"K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
        &text(data),
        b"tb",
    ]
    .concat()
}

/// A CSR matrix as Python 2 pickles it.
pub fn pickled_csr(shape: [i32; 2], indptr: &[i32], indices: &[i32]) -> Vec<u8> {
    let text = |s: &str| [&[b'U', s.len() as u8][..], s.as_bytes()].concat();
    let words = |v: &[i32]| {
        let data: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        pickled_array(&[v.len() as i32], "i4", &data)
    };
    let ones: Vec<u8> = indices.iter().flat_map(|_| 1f32.to_le_bytes()).collect();
    let sizes: Vec<u8> = shape.iter().flat_map(|n| [&b"J"[..], &n.to_le_bytes()].concat()).collect();
    [
        b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81}(".to_vec(),
        [text("_shape"), sizes, b"\x86".to_vec()].concat(),
        [text("indptr"), words(indptr)].concat(),
        [text("indices"), words(indices)].concat(),
        [text("data"), pickled_array(&[indices.len() as i32], "f4", &ones)].concat(),
        b"ub.".to_vec(),
    ]
    .concat()
}

/// The files of a Planetoid graph of four nodes.
pub fn planetoid_files() -> Vec<(String, Vec<u8>)> {
    let classes = |rows: &[[i32; 2]]| {
        let data: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        [b"\x80\x02".to_vec(), pickled_array(&[rows.len() as i32, 2], "i4", &data), b".".to_vec()].concat()
    };
    let graph = b"\x80\x02ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(K\x00](K\x01K\x02eK\x01](K\x00eK\x02](K\x03eK\x03](K\x02eu.";
    let part = |name: &str, bytes: Vec<u8>| (format!("ind.cora.{name}"), bytes);
    vec![
        part("x", pickled_csr([1, 3], &[0, 1], &[0])),
        part("y", classes(&[[1, 0]])),
        part("tx", pickled_csr([2, 3], &[0, 1, 2], &[1, 2])),
        part("ty", classes(&[[0, 1], [1, 0]])),
        part("allx", pickled_csr([2, 3], &[0, 1, 3], &[0, 1, 2])),
        part("ally", classes(&[[1, 0], [0, 1]])),
        part("graph", graph.to_vec()),
        part("test.index", b"2\n3\n".to_vec()),
    ]
}

fn idx3(count: u32) -> Vec<u8> {
    let mut file = vec![0, 0, 8, 3];
    for size in [count, 2, 2] {
        file.extend(size.to_be_bytes());
    }
    file.extend((0..count * 4).map(|i| i as u8));
    file
}

fn idx1(labels: &[u8]) -> Vec<u8> {
    [&[0, 0, 8, 1][..], &(labels.len() as u32).to_be_bytes(), labels].concat()
}

/// A data set of every layout; `corpus` is the folder of seed files.
pub fn seeds(corpus: &Path) -> Vec<Seed> {
    let from = |file: &str| fs::read(corpus.join(file)).expect("seed file");
    let plain = |name: &str, bytes: &[u8]| (name.to_owned(), Content::Plain(bytes.to_vec()));
    let batches = || (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".to_owned()]);
    let pictures = |prefix: &str| -> Vec<(String, Vec<u8>)> {
        vec![
            (format!("{prefix}wnids.txt"), b"ant\nbee\n".to_vec()),
            (format!("{prefix}train/ant/images/ant_0.png"), from("picture/rgb.png")),
            (format!("{prefix}train/bee/images/bee_0.jpg"), from("picture/grey.jpg")),
            (format!("{prefix}val/images/val_0.jpg"), from("picture/rgb.jpg")),
            (format!("{prefix}val/val_annotations.txt"), b"val_0.jpg\tbee\t0\t0\t1\t1\n".to_vec()),
        ]
    };
    let seed = |name, kind, files| Seed { name, kind, files };
    vec![
        seed(
            "npz",
            Kind::Images,
            vec![(
                "own.npz".to_owned(),
                npz(&[
                    ("x_train", bytes(&[3, 2, 2], &(0..12).collect::<Vec<u8>>())),
                    ("y_train", ints(&[3], &[0, 1, 2])),
                    ("x_test", bytes(&[1, 2, 2], &[9; 4])),
                    ("y_test", ints(&[1, 1], &[1])),
                ]),
            )],
        ),
        seed(
            "idx",
            Kind::Images,
            vec![
                ("train-images-idx3-ubyte.gz".to_owned(), Content::Gzip(idx3(3))),
                plain("train-labels-idx1-ubyte", &idx1(&[3, 9, 0])),
                plain("t10k-images-idx3-ubyte", &idx3(1)),
                ("t10k-labels-idx1-ubyte.gz".to_owned(), Content::Gzip(idx1(&[4]))),
            ],
        ),
        seed("csv", Kind::Images, {
            let text = b"label,a,b,c,d\n1,0,1,2,255\n0,4,5,6,7\n2,8,8,8,8\n";
            vec![plain("train.csv", text), ("test.csv".to_owned(), Content::Gzip(b"1,9,9,9,9\n".to_vec()))]
        }),
        seed(
            "cifar",
            Kind::Images,
            batches().map(|name| (name, Content::Plain(from("cifar/one.bin")))).collect(),
        ),
        seed(
            "cifar-archive",
            Kind::Images,
            vec![(
                "cifar-10-binary.tar.gz".to_owned(),
                Content::TarGz(batches().map(|n| (format!("b/{n}"), from("cifar/one.bin"))).collect()),
            )],
        ),
        seed(
            "matlab",
            Kind::Images,
            vec![
                plain("train_32x32.mat", &from("matlab/plain.mat")),
                plain("test_32x32.mat", &from("matlab/compressed.mat")),
            ],
        ),
        seed(
            "pictures",
            Kind::Images,
            pictures("").into_iter().map(|(name, bytes)| (name, Content::Plain(bytes))).collect(),
        ),
        seed("picture-tar", Kind::Images, vec![("tiny.tar.gz".to_owned(), Content::TarGz(pictures("t/")))]),
        seed("picture-zip", Kind::Images, vec![("tiny.zip".to_owned(), Content::Zip(pictures("t/")))]),
        seed(
            "graph-npz",
            Kind::Graph,
            vec![(
                "graph.npz".to_owned(),
                npz(&[
                    ("labels", ints(&[4], &[0, 1, 0, 2])),
                    ("edges", ints(&[3, 2], &[0, 1, 2, 1, 3, 0])),
                    ("features", floats(&[4, 2], &[0., 1., 2., 0., 0., 0., 1., 1.])),
                ]),
            )],
        ),
        seed(
            "graph-npz-csr",
            Kind::Graph,
            vec![(
                "graph.npz".to_owned(),
                npz(&[
                    ("labels", ints(&[3], &[0, 1, 0])),
                    ("adj_shape", ints(&[2], &[3, 3])),
                    ("adj_indptr", ints(&[4], &[0, 1, 3, 4])),
                    ("adj_indices", ints(&[4], &[1, 0, 2, 1])),
                    ("adj_data", floats(&[4], &[1.; 4])),
                    ("attr_shape", ints(&[2], &[3, 5])),
                    ("attr_indptr", ints(&[4], &[0, 1, 1, 2])),
                    ("attr_indices", ints(&[2], &[4, 0])),
                    ("attr_data", floats(&[2], &[0.5, 2.])),
                ]),
            )],
        ),
        seed(
            "edge-list",
            Kind::Graph,
            vec![
                plain("edges.txt", b"0 1\n1 0\n1 2\n2 2\n"),
                plain("labels.txt", b"0\n1\n1\n0\n"),
                plain("features.csv", b"0,1.5\n2,0\n0,0\n1,1\n"),
                plain("splits.json", br#"{"num_nodes": 4, "train": {"1": [0, 2], "2": [3]}}"#),
            ],
        ),
        seed(
            "hypergraph",
            Kind::Graph,
            vec![
                plain("hyperedges-own.txt", b"1, 2, 3\n2, 3\n4\n"),
                ("node-labels-own.txt".to_owned(), Content::Gzip(b"1\n2\n2\n1\n".to_vec())),
                (
                    "features.npz".to_owned(),
                    npz(&[
                        ("shape", ints(&[2], &[4, 3])),
                        ("indptr", ints(&[5], &[0, 1, 2, 2, 3])),
                        ("indices", ints(&[3], &[2, 0, 1])),
                        ("data", floats(&[3], &[1., 2., 3.])),
                    ]),
                ),
                plain("splits.json", br#"{"num_nodes": 4, "index_base": 1, "train": {"1": [1, 3]}}"#),
            ],
        ),
        seed(
            "planetoid",
            Kind::Planetoid,
            planetoid_files().into_iter().map(|(name, bytes)| (name, Content::Plain(bytes))).collect(),
        ),
        seed(
            "planetoid-archive",
            Kind::Planetoid,
            vec![("raw.tar.gz".to_owned(), Content::TarGz(planetoid_files()))],
        ),
    ]
}

/// A folder that holds a seed, and mutants of it one after the other.
pub struct Fuzzer<'a> {
    seed: &'a Seed,
    folder: &'a Path,
    mutator: Mutator,
}

impl<'a> Fuzzer<'a> {
    pub fn new(seed: &'a Seed, folder: &'a Path, number: u64) -> Self {
        seed.write(folder);
        let mut pool: Vec<Vec<u8>> = Vec::new();
        for (_, content) in &seed.files {
            pool.extend(content.clone().pieces().into_iter().map(|piece| piece.clone()));
        }
        Fuzzer { seed, folder, mutator: Mutator::new(number, pool) }
    }

    /// Mutates one file, loads, puts the file back; whether it was accepted. The mutant stays if this ends early.
    pub fn case(&mut self) -> bool {
        let (name, content) = &self.seed.files[self.mutator.below(self.seed.files.len())];
        let path = self.folder.join(name);
        let mutant = match self.mutator.below(40) {
            // The file itself, compressed as it is, or no file at all.
            0 => None,
            1 | 2 => {
                let mut packed = content.packed();
                self.mutator.mutate(&mut packed);
                Some(packed)
            }
            _ => {
                let mut content = content.clone();
                let mut pieces = content.pieces();
                let piece = self.mutator.below(pieces.len());
                for _ in 0..1 + self.mutator.below(3) {
                    self.mutator.mutate(pieces[piece]);
                }
                Some(content.packed())
            }
        };
        match mutant {
            Some(bytes) => fs::write(&path, bytes).expect("a file"),
            None => fs::remove_file(&path).expect("a file"),
        }
        let accepted = load_and_use(self.seed.kind, self.folder).is_ok();
        fs::write(&path, content.packed()).expect("a file");
        accepted
    }
}
