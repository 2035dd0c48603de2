//! Files that lie about what they hold: refused with one sentence, by a process that has 256 MiB of memory.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flate2::{Compress, Compression, FlushCompress};

use crate::datasets::{bytes, floats, ints, npz, write};
use crate::{datasets, limited};

const MEBIBYTES: u64 = 256;
const HUGE: i64 = 4_294_967_295;

fn corpus(file: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(file)).unwrap()
}

/// Loads what `fill` writes, as `kind`, in a process with little memory; returns the sentence it is refused with.
fn refused(kind: &str, fill: impl FnOnce(&Path)) -> String {
    let dir = limited::scratch();
    let folder = dir.path().join(kind);
    fs::create_dir_all(&folder).unwrap();
    fill(&folder);
    let arguments = ["--exact", "lying_files::child", "--ignored", "--nocapture", "--test-threads=1"];
    let output = limited::run(MEBIBYTES, Duration::from_secs(60), &arguments, &folder).expect("no hang");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{error}", output.status);
    let sentence =
        text.lines().find_map(|line| line.split_once("refused: ")).map(|(_, said)| said.to_owned());
    let sentence = sentence.unwrap_or_else(|| panic!("not refused\n{text}\n{error}"));
    assert!(sentence.contains("; ") && sentence.len() < 600, "not a sentence with a remedy: {sentence}");
    println!("{sentence}");
    sentence
}

#[test]
#[ignore = "run by the other tests"]
fn child() {
    let Some(folder) = std::env::var_os("SUBDEQ_FUZZ_FOLDER").map(PathBuf::from) else { return };
    let kind = datasets::Kind::named(&folder.file_name().unwrap().to_string_lossy());
    match datasets::load_and_use(kind, &folder) {
        Ok(()) => println!("\naccepted"),
        Err(sentence) => println!("\nrefused: {sentence}"),
    }
}

/// The sentence says all of these.
fn says(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "'{part}' is not in: {sentence}");
    }
}

/// The deflated form of a beginning and then `count` MiB of the same, made fast: one MiB is compressed once and repeated.
fn deflated(start: &[u8], same: &[u8], count: usize, zlib: bool) -> Vec<u8> {
    let mut compress = Compress::new(Compression::fast(), zlib);
    let mut out = Vec::new();
    let mut add = |data: &[u8]| {
        let mut piece = vec![0; data.len() / 2 + 4096];
        let (read, written) = (compress.total_in(), compress.total_out());
        compress.compress(data, &mut piece, FlushCompress::Full).unwrap();
        assert_eq!(compress.total_in() - read, data.len() as u64);
        piece.truncate((compress.total_out() - written) as usize);
        piece
    };
    out.extend(add(start));
    let block = add(&same.repeat((1 << 20) / same.len()));
    (0..count).for_each(|_| out.extend(&block));
    out
}

/// A gzip file of that, without its end, which is never reached.
fn gzip_bomb(start: &[u8], same: &[u8], count: usize) -> Vec<u8> {
    [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &deflated(start, same, count, false)].concat()
}

/// A zip archive with one deflated member of a beginning and zeros.
fn zip_bomb(names: &[String], start: &[u8], mebibytes: usize) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .compression_level(Some(1));
    for name in names {
        zip.start_file(name.as_str(), options).unwrap();
        zip.write_all(start).unwrap();
        (0..mebibytes).for_each(|_| zip.write_all(&vec![0; 1 << 20]).unwrap());
    }
    zip.finish().unwrap().into_inner()
}

fn npy_header(shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n");
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn image_labels() {
    let file = |train: &[i64], test: &[i64]| {
        npz(&[
            ("x_train", bytes(&[train.len(), 2, 2], &vec![7; 4 * train.len()])),
            ("y_train", ints(&[train.len()], train)),
            ("x_test", bytes(&[test.len(), 2, 2], &vec![7; 4 * test.len()])),
            ("y_test", ints(&[test.len()], test)),
        ])
        .packed()
    };
    for (train, test, place) in [
        (vec![0, HUGE, 1], vec![0], "y_train: label 1 is 4294967295"),
        (vec![0, i64::MAX], vec![0], "y_train: label 1 is 9223372036854775807"),
        (vec![0, 1], vec![0, HUGE], "y_test: label 1 is 4294967295"),
        (vec![0, -1], vec![0], "y_train: element 1 is -1"),
    ] {
        let sentence = refused("images", |folder| write(folder, "own.npz", &file(&train, &test)));
        says(&sentence, &["own.npz", place]);
    }
    let sentence = refused("images", |folder| write(folder, "train.csv", b"0,1,2,3,4\n65535,1,2,3,4\n"));
    says(&sentence, &["train.csv", "label 1 is 65535"]);
}

#[test]
fn graph_arrays() {
    let file = |labels: &[i64], edges: &[i64], columns: i64| {
        npz(&[
            ("labels", ints(&[labels.len()], labels)),
            ("edges", ints(&[edges.len() / 2, 2], edges)),
            ("attr_shape", ints(&[2], &[labels.len() as i64, columns])),
            ("attr_indptr", ints(&[labels.len() + 1], &vec![0; labels.len() + 1])),
            ("attr_indices", ints(&[0], &[])),
            ("attr_data", floats(&[0], &[])),
        ])
        .packed()
    };
    for (labels, edges, columns, parts) in [
        ([0, HUGE, 0], [0, 1], 2, ["graph.npz, labels", "label 1 is 4294967295"]),
        ([0, 1, 0], [0, HUGE], 2, ["graph.npz, edges", "node id 4294967295"]),
        ([0, 1, 0], [0, 1], HUGE, ["graph.npz, shape", "4294967295 columns"]),
        ([0, 1, 0], [0, 1], i64::MAX, ["graph.npz, shape", "9223372036854775807"]),
    ] {
        let sentence = refused("graph", |folder| write(folder, "graph.npz", &file(&labels, &edges, columns)));
        says(&sentence, &parts);
    }
    let sentence = refused("graph", |folder| {
        let file = npz(&[
            ("labels", ints(&[2], &[0, 1])),
            ("adj_shape", ints(&[2], &[2, HUGE])),
            ("adj_indptr", ints(&[3], &[0, 1, 1])),
            ("adj_indices", ints(&[1], &[HUGE - 1])),
            ("adj_data", floats(&[1], &[1.0])),
        ]);
        write(folder, "graph.npz", &file.packed());
    });
    says(&sentence, &["graph.npz", "4294967295"]);
}

#[test]
fn graph_texts() {
    let graph = |labels: &'static str, edges: &'static str| {
        refused("graph", |folder| {
            write(folder, "labels.txt", labels.as_bytes());
            write(folder, "edges.txt", edges.as_bytes());
        })
    };
    says(&graph("0\n16777215\n", "0 1\n"), &["labels.txt, line 2", "class 16777215"]);
    says(&graph("0\n\n4294967295\n", "0 1\n"), &["labels.txt, line 3", "class 4294967295"]);
    says(&graph("0\n1\n", "0 4294967295\n"), &["edges.txt", "edge 0 (0, 4294967295)", "not below 2"]);
    // A clique grows with the square of its nodes: 100 kB of text asked for gigabytes.
    let sentence = refused("graph", |folder| {
        let nodes = 16_000;
        let line: Vec<String> = (1..=nodes).map(|i: usize| i.to_string()).collect();
        write(folder, "hyperedges-own.txt", line.join(",").as_bytes());
        write(folder, "node-labels-own.txt", "1\n".repeat(nodes).as_bytes());
    });
    says(&sentence, &["hyperedges-own.txt", "127992000 pairs", "16000 nodes"]);
    // All nodes that a split does not name test: every split of seven bytes asked for a list of all nodes.
    let sentence = refused("graph", |folder| {
        let splits: Vec<String> = (0..50_000).map(|i| format!("\"{i}\":[]")).collect();
        write(folder, "edges.txt", b"0 1\n");
        write(folder, "labels.txt", "1\n".repeat(3000).as_bytes());
        let text = format!("{{\"num_nodes\":3000,\"train\":{{{}}}}}", splits.join(","));
        write(folder, "splits.json", text.as_bytes());
    });
    says(&sentence, &["splits.json, train", "50000 splits"]);
}

#[test]
fn pickles() {
    let with = |part: &str, bytes: Vec<u8>| {
        refused("planetoid", |folder| {
            for (name, original) in datasets::planetoid_files() {
                let changed = name.ends_with(part);
                write(folder, &name, if changed { &bytes } else { &original });
            }
        })
    };
    let array = |shape: &[i32]| {
        [b"\x80\x02".to_vec(), datasets::pickled_array(shape, "i4", &[]), b".".to_vec()].concat()
    };
    says(&with(".ally", array(&[0, i32::MAX])), &["ind.cora.ally", "2147483647 classes"]);
    let wide = datasets::pickled_csr([2, i32::MAX], &[0, 1, 3], &[0, 1, 2]);
    says(&with(".allx", wide), &["ind.cora.allx", "2147483647 columns"]);
    // Every byte makes a value of forty.
    says(&with(".graph", b"]".repeat(8 << 20)), &["ind.cora.graph", "values"]);
}

#[test]
fn declared_shapes() {
    let sentence = refused("images", |folder| {
        let x = [npy_header("(4294967295, 4294967295)"), vec![0; 16]].concat();
        write(folder, "own.npz", &npz(&[("x_train", x), ("y_train", ints(&[1], &[0]))]).packed());
    });
    says(&sentence, &["x_train.npy", "bytes"]);
    let idx = |count: u32, body: &[u8]| {
        let sizes: Vec<u8> = [count, 1024, 1024].iter().flat_map(|n: &u32| n.to_be_bytes()).collect();
        [&[0, 0, 8, 3][..], &sizes, body].concat()
    };
    // Once with nothing behind it, once with everything that is announced behind it, compressed a thousand times.
    for file in [idx(u32::MAX, &[1; 100]), gzip_bomb(&idx(1024, &[]), &[0], 1024)] {
        let sentence = refused("images", |folder| write(folder, "train-images-idx3-ubyte.gz", &file));
        says(&sentence, &["train-images-idx3-ubyte.gz, byte 16", "the array needs"]);
    }
    for whole in [false, true] {
        let sentence = refused("images", |folder| {
            let mut element = 14u32.to_le_bytes().to_vec();
            element.extend((u32::MAX - 7).to_le_bytes());
            let dims: Vec<u8> = [32, 32, 3, 1 << 18].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
            for (kind, data) in [(6u32, &[9u8, 0, 0, 0, 0, 0, 0, 0][..]), (5, &dims), (1, b"X\0\0\0\0\0\0\0")]
            {
                element.extend(kind.to_le_bytes());
                element.extend((data.len() as u32).to_le_bytes());
                element.extend(data);
            }
            element.extend(2u32.to_le_bytes());
            element.extend((768u32 << 20).to_le_bytes());
            if whole {
                let packed = deflated(&element, &[0], 768, true);
                element = [&15u32.to_le_bytes()[..], &(packed.len() as u32).to_le_bytes(), &packed].concat();
            }
            write(folder, "train_32x32.mat", &[&[b' '; 124][..], b"\x00\x01IM", &element].concat());
        });
        says(&sentence, &["train_32x32.mat", "805306368 bytes"]);
    }
}

#[test]
fn compressed_files() {
    let table = gzip_bomb(b"", b"1,2,3,4,5,6,7,8\n", 1024);
    let sentence = refused("graph", |folder| {
        write(folder, "labels.txt", b"0\n1\n");
        write(folder, "edges.txt", b"0 1\n");
        write(folder, "features.csv", &table);
    });
    says(&sentence, &["features.csv", "at least 3 rows of features but 2 labels"]);
    let sentence = refused("images", |folder| {
        write(folder, "train.csv", &gzip_bomb(b"", b"1,2,3,4,5,6,7,8,9,2\n", 1024))
    });
    says(&sentence, &["train.csv", "unpacks to more than"]);
    for same in [b"5", b","] {
        let table = gzip_bomb(b"label,", same, 1024);
        let sentence = refused("images", |folder| write(folder, "train.csv", &table));
        says(&sentence, &["train.csv, byte 0", "a line of more than 16777216 bytes"]);
    }
    let sentence = refused("images", |folder| write(folder, "train.csv", b",".repeat(4 << 20).as_slice()));
    says(&sentence, &["train.csv, line 1", "more than 1048577 columns"]);
    let sentence = refused("graph", |folder| {
        write(folder, "labels.txt", b"0\n1\n");
        write(folder, "edges.txt", &gzip_bomb(b"", b"0 1\n", 1024));
    });
    says(&sentence, &["edges.txt", "unpacks to more than"]);

    // One array that is as large as it says, and many that are so together.
    let one = zip_bomb(&["x_train.npy".to_owned()], &npy_header("(400, 1024, 1024)"), 400);
    let names: Vec<String> = (0..8).map(|i| format!("{i}.npy")).collect();
    let many = zip_bomb(&names, &npy_header("(50, 1024, 1024)"), 50);
    for file in [one, many] {
        let sentence = refused("images", |folder| write(folder, "own.npz", &file));
        says(&sentence, &["own.npz, member", "unpacks to more than"]);
    }
    let zip = zip_bomb(&["t/train/a/1.png".to_owned()], &[], 400);
    let mut header = tar::Header::new_gnu();
    header.set_path("t/train/a/1.png").unwrap();
    header.set_size(1 << 30);
    header.set_mode(0o644);
    header.set_cksum();
    let tar = gzip_bomb(header.as_bytes(), &[0], 1024);
    header.set_path("t/notes.txt").unwrap();
    header.set_cksum();
    let skipped = gzip_bomb(header.as_bytes(), &[0], 1024);
    for (name, file) in [("a.zip", zip), ("a.tar.gz", tar), ("a.tar.gz", skipped)] {
        let sentence = refused("images", |folder| write(folder, name, &file));
        says(&sentence, &[name, "unpacks to more than"]);
    }
}

/// The end of a large zip archive says how many members there are and where; all of it may be invented.
#[test]
fn ends_of_zip_archives() {
    let end = |start: u64, files: u64, size: u64, offset: u64| {
        let mut zip = vec![7u8; start as usize];
        zip.extend(0x0606_4b50u32.to_le_bytes());
        zip.extend(44u64.to_le_bytes());
        zip.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [files, files, size, offset] {
            zip.extend(number.to_le_bytes());
        }
        zip.extend(0x0706_4b50u32.to_le_bytes());
        zip.extend(0u32.to_le_bytes());
        zip.extend(start.to_le_bytes());
        zip.extend(1u32.to_le_bytes());
        zip.extend(0x0605_4b50u32.to_le_bytes());
        zip.extend([0, 0, 0, 0]);
        zip.extend([0xff; 12]);
        zip.extend([0, 0]);
        zip
    };
    for start in [0, 200] {
        for files in [1 << 24, 1 << 30, u64::MAX] {
            for size in [46, 46 << 24, 46 << 30, u64::MAX] {
                for offset in [0, 1 << 24, 1 << 40, u64::MAX - 1, u64::MAX] {
                    let file = end(start, files, size, offset);
                    let sentence = refused("images", |folder| write(folder, "own.npz", &file));
                    says(&sentence, &["own.npz", "not a readable zip archive"]);
                }
            }
        }
    }
}

/// An xz file may ask for a dictionary of gigabytes before the first byte.
#[test]
fn xz_dictionary() {
    let mut xz = corpus("archive/files.tar.xz");
    // The header of the first block: its size, flags, then the filter 0x21 with one byte of properties.
    assert_eq!((xz[14], xz[15]), (0x21, 1));
    // A dictionary of 384 MiB.
    xz[16] = 33;
    let end = 12 + 4 * usize::from(xz[12]);
    let mut crc = flate2::Crc::new();
    crc.update(&xz[12..end]);
    xz[end..end + 4].copy_from_slice(&crc.sum().to_le_bytes());
    let sentence = refused("images", |folder| write(folder, "a.tar.xz", &xz));
    says(&sentence, &["a.tar.xz", "asks for more than 72 MiB"]);
}

#[test]
fn pictures() {
    let blank = |side: u32| {
        let mut png = Cursor::new(Vec::new());
        let image = image::DynamicImage::ImageLuma8(image::GrayImage::new(side, side));
        image.write_to(&mut png, image::ImageFormat::Png).unwrap();
        png.into_inner()
    };
    let large = blank(4096);
    let sentence = refused("images", |folder| {
        (0..30).for_each(|i| write(folder, &format!("train/a/{i}.png"), &large));
    });
    says(&sentence, &["train/a", "4096 x 4096", "bytes of pixels"]);
    let mut lying = blank(8);
    lying[16..24].copy_from_slice(&[0, 0, 255, 255, 0, 0, 255, 255]);
    let mut crc = flate2::Crc::new();
    crc.update(&lying[12..29]);
    lying[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    let sentence = refused("images", |folder| write(folder, "train/a/1.png", &lying));
    says(&sentence, &["train/a/1.png", "65535"]);
    let sentence = refused("images", |folder| {
        write(folder, "train/a/1.png", &blank(8));
        let classes: Vec<String> = (0..3_000_000).map(|i| format!("{i:x}")).collect();
        write(folder, "wnids.txt", format!("a\n{}", classes.join("\n")).as_bytes());
    });
    says(&sentence, &["wnids.txt", "more than 1024 classes for 1 images"]);
}

/// Ten million labels asked for the memory of ten million images, with one small sheet beside them.
#[test]
fn labels_of_sheets() {
    for (sheet, labels) in [("data_batch_1.jxl", "train_labels.u8"), ("train_0.jxl", "train_labels.u8")] {
        let sentence = refused("images", |folder| {
            write(folder, sheet, &corpus("jxl/sheet.jxl"));
            write(folder, labels, &vec![1; 10 << 20]);
        });
        says(&sentence, &[sheet, "does not hold 10000 images"]);
    }
}

/// A file as long as a disk that holds nothing, a pipe that nobody writes to, a device without end.
#[test]
fn things_that_are_not_files() {
    let sentence = refused("images", |folder| {
        let file = File::create(folder.join("data_batch_1.bin")).unwrap();
        file.set_len(3073 << 24).unwrap();
    });
    says(&sentence, &["data_batch_1.bin", "16777216 records"]);
    let sentence = refused("images", |folder| {
        let made = Command::new("mkfifo").arg(folder.join("train.csv")).status().unwrap();
        assert!(made.success());
    });
    says(&sentence, &["train.csv", "is a pipe or a device"]);
    for name in ["train.csv", "own.npz", "train_32x32.mat", "a.tar.gz", "data_batch_1.bin"] {
        let sentence = refused("images", |folder| {
            std::os::unix::fs::symlink("/dev/zero", folder.join(name)).unwrap();
        });
        says(&sentence, &[name]);
    }
    let error = subdeq_data::checksum::sha256(Path::new("/dev/zero")).unwrap_err().to_string();
    says(&error, &["/dev/zero is a pipe or a device"]);
}

/// Links between folders, thirty at every step: millions of places, of which there are two.
#[test]
fn links_in_circles() {
    let sentence = refused("images", |folder| {
        fs::create_dir(folder.join("train")).unwrap();
        for i in 0..30 {
            std::os::unix::fs::symlink(folder, folder.join(format!("train/{i}"))).unwrap();
            std::os::unix::fs::symlink(folder.join("train"), folder.join(format!("{i}"))).unwrap();
        }
    });
    says(&sentence, &["no labelled images"]);
}

/// `gzip` appends: a file of several members is read to its end.
#[test]
fn gzip_files_of_several_members() {
    let dir = tempfile::tempdir().unwrap();
    let two =
        |whole: &[u8], cut: usize| [datasets::gzip(&whole[..cut]), datasets::gzip(&whole[cut..])].concat();
    let text = b"0,1,2,3,4\n1,5,6,7,8\n";
    write(dir.path(), "train.csv", &two(text, 10));
    let set = subdeq_data::image_dataset::ImageDataset::from_folder(dir.path()).unwrap();
    assert_eq!(set.images.labels(), [0, 1]);
    let idx = [&[0, 0, 8, 1, 0, 0, 0, 5][..], &[1, 2, 3, 4, 5]].concat();
    let array = subdeq_data::idx::from_bytes(&two(&idx, 9), "t").unwrap();
    assert_eq!(array.to_usize().unwrap(), [1, 2, 3, 4, 5]);
    let tar = datasets::tar(&[("a".to_owned(), vec![7; 3000]), ("b".to_owned(), vec![8; 3000])]);
    let mut lengths = Vec::new();
    let visit = |name: &str, bytes: Vec<u8>| {
        lengths.push((name.to_owned(), bytes.len()));
        Ok(())
    };
    subdeq_data::archive::for_each_in(Cursor::new(two(&tar, 2000)), "t.tar.gz", |_| true, visit).unwrap();
    assert_eq!(lengths, [("a".to_owned(), 3000), ("b".to_owned(), 3000)]);
}

/// What is honest is loaded with the same little memory: sets of more classes than a thousand, sparse features, a dense
/// matrix of mostly zeros.
#[test]
fn honest_files_are_believed() {
    let dir = tempfile::tempdir().unwrap();
    let labels: Vec<i64> = (0..3000).collect();
    let file = npz(&[
        ("x_train", bytes(&[3000, 2, 2], &vec![7; 12_000])),
        ("y_train", ints(&[3000], &labels)),
        ("x_test", bytes(&[1, 2, 2], &[7; 4])),
        ("y_test", ints(&[1], &[2999])),
    ]);
    write(dir.path(), "own.npz", &file.packed());
    datasets::load_and_use(datasets::Kind::Images, dir.path()).unwrap();
    // CiteSeer's 3312 x 3703 features, dense and deflated: 49 MB in some 50 kB.
    let mut file = subdeq_data::npz::Npz::new("t");
    let mut dense = vec![0f32; 3312 * 3703];
    dense.iter_mut().step_by(3703).for_each(|x| *x = 1.0);
    let array = |shape: &[usize], data| subdeq_data::npy::NpyArray::new(shape.to_vec(), data).unwrap();
    file.insert("features", array(&[3312, 3703], subdeq_data::npy::NpyData::F32(dense)));
    file.insert("labels", array(&[3312], subdeq_data::npy::NpyData::U8(vec![1; 3312])));
    file.insert("edges", array(&[1, 2], subdeq_data::npy::NpyData::U8(vec![0, 1])));
    let dir = tempfile::tempdir().unwrap();
    file.write(&dir.path().join("graph.npz")).unwrap();
    assert!(fs::metadata(dir.path().join("graph.npz")).unwrap().len() < 200_000);
    datasets::load_and_use(datasets::Kind::Graph, dir.path()).unwrap();
}
