//! Where the public data sets are, how large they are, and their checksums.
//!
//! Addresses are the authors' (for MNIST, whose own page is often down, the mirror PyTorch uses). MD5s are the published
//! ones; the SHA-256s of the Planetoid files were computed from a copy of them. The five hypergraphs are not listed: what
//! is published are Python pickles, the folder layout read here is a conversion.

use std::path::{Path, PathBuf};

use crate::checksum::Checksum;
use crate::error::{DataError, Result};
use crate::fetch::{Download, Fetched, Progress, fetch};

/// A file of a data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemoteFile {
    /// Name in the data set's folder.
    pub name: &'static str,
    /// Address, size and checksum.
    pub download: Download<'static>,
}

/// A data set that can be downloaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemoteDataset {
    /// Name, also of its folder.
    pub name: &'static str,
    /// Terms of use, as stated by the authors or commonly.
    pub licence: &'static str,
    /// Its files.
    pub files: &'static [RemoteFile],
}

const fn md5(name: &'static str, url: &'static str, size: Option<u64>, sum: &'static str) -> RemoteFile {
    RemoteFile { name, download: Download { url, size, checksum: Some(Checksum::Md5(sum)) } }
}

const fn planetoid(name: &'static str, url: &'static str, size: u64, sum: &'static str) -> RemoteFile {
    RemoteFile { name, download: Download { url, size: Some(size), checksum: Some(Checksum::Sha256(sum)) } }
}

const MNIST: &[RemoteFile] = &[
    md5(
        "train-images-idx3-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz",
        Some(9912422),
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    md5(
        "train-labels-idx1-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz",
        Some(28881),
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    md5(
        "t10k-images-idx3-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz",
        Some(1648877),
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    md5(
        "t10k-labels-idx1-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz",
        Some(4542),
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
];

const FASHION_MNIST: &[RemoteFile] = &[
    md5(
        "train-images-idx3-ubyte.gz",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
        None,
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    md5(
        "train-labels-idx1-ubyte.gz",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-labels-idx1-ubyte.gz",
        None,
        "25c81989df183df01b3e8a0aad5dffbe",
    ),
    md5(
        "t10k-images-idx3-ubyte.gz",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-images-idx3-ubyte.gz",
        None,
        "bef4ecab320f06d8554ea6380940ec79",
    ),
    md5(
        "t10k-labels-idx1-ubyte.gz",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
        None,
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
];

const CIFAR10: &[RemoteFile] = &[md5(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    Some(170_052_171),
    "c32a1d4ab5d03f1284b67883e8d87530",
)];

const SVHN: &[RemoteFile] = &[
    md5(
        "train_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        None,
        "e26dedcc434d2e4c54c9b2d4a06d8373",
    ),
    md5(
        "test_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
        Some(64_275_384),
        "eb5a983be6a315427106f1b164d9cef3",
    ),
];

const TINY_IMAGENET: &[RemoteFile] = &[md5(
    "tiny-imagenet-200.zip",
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    Some(248_100_043),
    "90528d7ca1a48142e341f4ef8d21d0de",
)];

const PLANETOID: &[RemoteFile] = &[
    planetoid(
        "ind.citeseer.allx",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.allx",
        595021,
        "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    ),
    planetoid(
        "ind.citeseer.ally",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.ally",
        55623,
        "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    ),
    planetoid(
        "ind.citeseer.graph",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.graph",
        61987,
        "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    ),
    planetoid(
        "ind.citeseer.test.index",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.test.index",
        5000,
        "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    ),
    planetoid(
        "ind.citeseer.tx",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.tx",
        260321,
        "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    ),
    planetoid(
        "ind.citeseer.ty",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.ty",
        24135,
        "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    ),
    planetoid(
        "ind.citeseer.x",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.x",
        31087,
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    ),
    planetoid(
        "ind.citeseer.y",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.citeseer.y",
        3014,
        "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    ),
    planetoid(
        "ind.cora.allx",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.allx",
        257305,
        "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    ),
    planetoid(
        "ind.cora.ally",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.ally",
        47959,
        "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    ),
    planetoid(
        "ind.cora.graph",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.graph",
        59847,
        "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    ),
    planetoid(
        "ind.cora.test.index",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.test.index",
        5000,
        "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    ),
    planetoid(
        "ind.cora.tx",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.tx",
        148025,
        "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    ),
    planetoid(
        "ind.cora.ty",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.ty",
        28135,
        "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    ),
    planetoid(
        "ind.cora.x",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.x",
        22119,
        "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    ),
    planetoid(
        "ind.cora.y",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.cora.y",
        4054,
        "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    ),
    planetoid(
        "ind.pubmed.allx",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.allx",
        7578385,
        "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    ),
    planetoid(
        "ind.pubmed.ally",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.ally",
        224739,
        "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    ),
    planetoid(
        "ind.pubmed.graph",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.graph",
        471808,
        "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    ),
    planetoid(
        "ind.pubmed.test.index",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.test.index",
        6000,
        "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    ),
    planetoid(
        "ind.pubmed.tx",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.tx",
        405505,
        "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    ),
    planetoid(
        "ind.pubmed.ty",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.ty",
        12135,
        "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    ),
    planetoid(
        "ind.pubmed.x",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.x",
        23172,
        "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    ),
    planetoid(
        "ind.pubmed.y",
        "https://raw.githubusercontent.com/tkipf/gcn/master/gcn/data/ind.pubmed.y",
        854,
        "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    ),
];

/// All data sets that can be downloaded.
pub const REGISTRY: &[RemoteDataset] = &[
    RemoteDataset { name: "mnist", licence: "CC BY-SA 3.0, as usually stated", files: MNIST },
    RemoteDataset { name: "fashion-mnist", licence: "MIT", files: FASHION_MNIST },
    RemoteDataset { name: "cifar10", licence: "none stated; cite Krizhevsky (2009)", files: CIFAR10 },
    RemoteDataset { name: "svhn", licence: "non-commercial use only", files: SVHN },
    RemoteDataset {
        name: "tiny-imagenet",
        licence: "ImageNet terms: non-commercial research and education",
        files: TINY_IMAGENET,
    },
    RemoteDataset { name: "planetoid", licence: "MIT, as in T. Kipf's gcn", files: PLANETOID },
];

/// The data set of that name.
pub fn remote(name: &str) -> Result<&'static RemoteDataset> {
    // The three Planetoid graphs share one folder.
    let folder = if name.starts_with("planetoid-") { "planetoid" } else { name };
    REGISTRY.iter().find(|dataset| dataset.name == folder).ok_or_else(|| {
        let names: Vec<&str> = REGISTRY.iter().map(|d| d.name).collect();
        DataError::request(
            format!("'{name}' cannot be downloaded"),
            format!("these can: {}", names.join(", ")),
        )
    })
}

/// Downloads a data set into its folder under `root`; `progress` gets the file and how far it is.
pub fn fetch_dataset(
    name: &str,
    root: &Path,
    progress: &mut dyn FnMut(&RemoteFile, Progress),
) -> Result<Vec<(PathBuf, Fetched)>> {
    let dataset = remote(name)?;
    let mut fetched = Vec::new();
    for file in dataset.files {
        let target = root.join(dataset.name).join(file.name);
        let how = fetch(&file.download, &target, &mut |p| progress(file, p))?;
        fetched.push((target, how));
    }
    Ok(fetched)
}

/// Checks the files of a data set that are there; `None` for one that is not.
pub fn check_dataset(name: &str, root: &Path) -> Result<Vec<(PathBuf, Option<Result<()>>)>> {
    let dataset = remote(name)?;
    let check = |file: &RemoteFile| {
        let path = root.join(dataset.name).join(file.name);
        let state = path.exists().then(|| file.download.checksum.map_or(Ok(()), |sum| sum.check(&path)));
        (path, state)
    };
    Ok(dataset.files.iter().map(check).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_well_formed() {
        for file in REGISTRY.iter().flat_map(|dataset| dataset.files) {
            assert!(
                file.download.url.starts_with("http") && file.download.url.ends_with(file.name),
                "{}",
                file.name
            );
            let (sum, length) = match file.download.checksum {
                Some(Checksum::Md5(sum)) => (sum, 32),
                Some(Checksum::Sha256(sum)) => (sum, 64),
                None => continue,
            };
            assert!(sum.len() == length && sum.bytes().all(|b| b.is_ascii_hexdigit()), "{}", file.name);
        }
        assert!(remote("planetoid-cora").is_ok());
        assert!(remote("dblp").unwrap_err().to_string().contains("mnist"));
    }
}
