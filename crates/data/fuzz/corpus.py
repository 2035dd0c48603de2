"""Writes the small seed files of the fuzzer with the programs people use: NumPy, SciPy, Pillow, tar, gzip, zip.

    python3 corpus.py OUTDIR        (needs numpy, scipy, pillow, pillow-jxl-plugin)
"""
import gzip, io, json, os, struct, sys, tarfile, zipfile
import numpy as np, scipy.io, scipy.sparse
from PIL import Image
import pillow_jxl  # noqa: F401  (registers the encoder)

out = sys.argv[1]


def put(reader, name, data):
    os.makedirs(f"{out}/{reader}", exist_ok=True)
    with open(f"{out}/{reader}/{name}", "wb") as f:
        f.write(data)


def npy(array, **options):
    b = io.BytesIO()
    np.lib.format.write_array(b, np.asarray(array), **options)
    return b.getvalue()


ramp = np.arange(6).reshape(2, 3)
put("npy", "c_f4.npy", npy(ramp.astype("<f4")))
put("npy", "fortran_f8.npy", npy(np.asfortranarray(ramp.astype("<f8"))))
put("npy", "big_i2_v2.npy", npy(ramp.astype(">i2"), version=(2, 0)))
put("npy", "bool_v3.npy", npy(ramp % 2 == 0, version=(3, 0)))
put("npy", "scalar_bytes.npy", npy(np.array(b"csr")))

matrix = scipy.sparse.csr_matrix(np.array([[0, 2, 0], [1, 0, 0.5]], dtype="<f4"))
for name, compressed in (("stored.npz", False), ("deflated.npz", True)):
    b = io.BytesIO()
    scipy.sparse.save_npz(b, matrix, compressed=compressed)
    put("npz", name, b.getvalue())

idx = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 2, 2) + bytes(range(8))
put("idx", "images.idx", idx)
put("idx", "images.idx.gz", gzip.compress(idx, mtime=0))
put("idx", "doubles.idx", struct.pack(">BBBBIdd", 0, 0, 14, 1, 2, 0.5, -1.0))
put("cifar", "one.bin", bytes([3]) + bytes(i % 251 for i in range(3072)))

for name, compressed in (("plain.mat", False), ("compressed.mat", True)):
    b = io.BytesIO()
    x = np.arange(2 * 2 * 3 * 2, dtype=np.uint8).reshape(2, 2, 3, 2)
    scipy.io.savemat(b, {"X": x, "y": np.array([[1], [10]], dtype=np.uint8), "note": "text"}, do_compression=compressed)
    # The header holds the date: write a fixed one.
    put("matlab", name, b"MATLAB 5.0 MAT-file".ljust(116) + b.getvalue()[116:])

put("csv", "header.csv", b"label,a,b,c,d\n1,0,1,2,255\n0,4,5,6,7\n")
put("csv", "blanks.txt", b"1 2.5e-3 -inf\n\n3\t4 nan\n")

rng = np.random.default_rng(0)
picture = Image.fromarray(rng.integers(0, 256, (8, 16, 3), dtype=np.uint8))
for reader, name, options in (
    ("jxl", "sheet.jxl", {"lossless": True}),
    ("picture", "rgb.png", {}),
    ("picture", "rgb.jpg", {"quality": 80}),
):
    b = io.BytesIO()
    picture.save(b, format={"jxl": "JXL", "png": "PNG", "jpg": "JPEG"}[name[-3:]], **options)
    put(reader, name, b.getvalue())
b = io.BytesIO()
picture.convert("L").save(b, format="JPEG")
put("picture", "grey.jpg", b.getvalue())

for kind in ("", "gz", "xz"):
    b = io.BytesIO()
    with tarfile.open(fileobj=b, mode=f"w:{kind}" if kind else "w", format=tarfile.GNU_FORMAT) as t:
        for name, data in (("d/a.txt", b"alpha"), ("d/" + "long" * 30 + ".txt", b"beta")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    put("archive", "files.tar" + (f".{kind}" if kind else ""), b.getvalue())
b = io.BytesIO()
with zipfile.ZipFile(b, "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr(zipfile.ZipInfo("d/a.txt"), b"alpha" * 10)
put("archive", "files.zip", b.getvalue())


# Python 2's protocol 2, as in the Planetoid files, spelled out: Python 3 writes byte strings differently.
def text(s):
    s = s.encode() if isinstance(s, str) else s
    return b"U" + bytes([len(s)]) + s


def pickled_array(a, dtype):
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R(K\x01("
        + b"".join(b"K" + bytes([n]) for n in a.shape) + b"tcnumpy\ndtype\n" + text(dtype) + b"K\x00K\x01\x87R(K\x03"
        + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(a.tobytes()) + b"tb"
    )


put("pickle", "array.pickle", b"\x80\x02" + pickled_array(np.array([[1, 0], [0, 1]], "<i4"), "i4") + b".")
put("pickle", "csr.pickle",
    b"\x80\x02cscipy.sparse.csr\ncsr_matrix\nq\x01)\x81q\x02}q\x03(" + text("format") + text("csr")
    + text("_shape") + b"K\x02K\x03\x86" + text("indptr") + pickled_array(matrix.indptr.astype("<i4"), "i4")
    + text("indices") + pickled_array(matrix.indices.astype("<i4"), "i4")
    + text("data") + pickled_array(matrix.data, "f4") + b"ub.")
put("pickle", "lists.pickle",
    b"\x80\x02ccollections\ndefaultdict\nq\x01c__builtin__\nlist\nq\x02\x85Rq\x03(K\x00]q\x04(K\x01M\x02\x00eK\x01]q\x05K\x00aK\x02j\x04\x00\x00\x00u.")

put("hypergraph", "small.txt", b"1, 2,3\n2,4\n\n5\n3 1\n")
put("edge_list", "small.txt", b"source,target\n0,1\n2 3 0.5\n# comment\n4\t5\n")
put("splits", "splits.json", json.dumps({"num_nodes": 5, "index_base": 0, "train": {"1": [0, 3], "2": [4]}}).encode())
