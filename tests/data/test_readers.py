"""Files are written here byte by byte as their publishers describe them, not with the code under test."""

import gzip
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedntd.data import download, readers
from fedntd.errors import FedntdError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples that hypothesis makes."""
    return tmp_path_factory.mktemp("scratch")


def idx_bytes(shape: tuple[int, ...], data: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + data


# --- idx --------------------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    fill=st.randoms(),
    zipped=st.booleans(),
    lie=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_idx_gives_back_what_was_written(scratch, shape, fill, zipped, lie):
    data = fill.randbytes(int(np.prod(shape)))
    path = scratch / ("file.gz" if zipped != lie else "file")  # the content decides, not the name
    written = idx_bytes(shape, data)
    path.write_bytes(gzip.compress(written) if zipped else written)
    tensor = readers.idx(path)
    assert tensor.dtype == torch.uint8
    assert tuple(tensor.shape) == shape
    assert tensor.numpy().tobytes() == data


def test_idx_part_pairs_images_with_labels(tmp_path):
    (tmp_path / "x").write_bytes(idx_bytes((2, 2, 3), bytes(range(12))))
    (tmp_path / "y").write_bytes(idx_bytes((2,), bytes([7, 200])))
    x, y = readers.idx_part(tmp_path / "x", tmp_path / "y")
    assert x.tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 10, 11]]]]
    assert y.tolist() == [7, 200]
    assert y.dtype == torch.int64


WHOLE = idx_bytes((3, 2, 2), bytes(12))


@given(cut=st.integers(0, len(WHOLE) - 1))
@settings(max_examples=50, deadline=None)
def test_idx_cut_anywhere_is_refused(scratch, cut):
    (scratch / "cut").write_bytes(WHOLE[:cut])
    with pytest.raises(FedntdError, match=r"cut .*get a fresh copy"):
        readers.idx(scratch / "cut")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (WHOLE + b"\0", "holds 13"),
        (b"\0\0\x0d" + WHOLE[3:], "does not begin like an idx file"),  # floats
        (b"<html>not found</html>", "does not begin like an idx file"),
        (gzip.compress(WHOLE)[:-9], "damaged gzip"),
        (gzip.compress(WHOLE)[:-8] + b"\1\1\1\1\1\1\1\1", "damaged gzip"),
        (b"\x1f\x8b\x08\0garbage", "damaged gzip"),
    ],
)
def test_bad_idx_file_is_named_in_one_sentence(tmp_path, data, says):
    (tmp_path / "some-file").write_bytes(data)
    with pytest.raises(FedntdError, match=f"some-file .*{says}.*; get a fresh copy"):
        readers.idx(tmp_path / "some-file")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FedntdError, match=r"nothing is missing; get a fresh copy .*fedntd data get"):
        readers.idx(tmp_path / "nothing")
    with pytest.raises(FedntdError, match="cannot be read: Is a directory"):
        readers.content(tmp_path)


def test_idx_part_refuses_wrong_counts_and_swapped_files(tmp_path):
    x, y = tmp_path / "x", tmp_path / "y"
    x.write_bytes(WHOLE)
    y.write_bytes(idx_bytes((2,), bytes(2)))
    with pytest.raises(FedntdError, match="y has 2 labels for the 3 images of x"):
        readers.idx_part(x, y)
    with pytest.raises(FedntdError, match="y has 1 dimensions where images have 3"):
        readers.idx_part(y, y)
    with pytest.raises(FedntdError, match="x has 3 dimensions where labels have 1"):
        readers.idx_part(x, x)


def test_either_takes_the_gzipped_file_if_there_is_one(tmp_path):
    assert download.either(tmp_path, "a") == tmp_path / "a"
    (tmp_path / "a.gz").touch()
    assert download.either(tmp_path, "a") == tmp_path / "a.gz"


# --- CIFAR ------------------------------------------------------------------------------------------------------


def pixel_rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, 3072)).astype(np.uint8)


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_binary(tmp_path, classes):
    rows, labels = pixel_rows(3), [9, 0, classes - 1]
    coarse = b"" if classes == 10 else b"\x13"  # a coarse label, before the fine one, which is not used
    path = tmp_path / "batch.bin"
    path.write_bytes(b"".join(coarse + bytes([label]) + row.tobytes() for label, row in zip(labels, rows, strict=True)))
    x, y = readers.cifar_binary(path, classes)
    assert x.shape == (3, 3, 32, 32)
    assert y.tolist() == labels
    # "The first 1024 bytes are the red channel values, the next 1024 the green, ... in row-major order"
    assert x[1, 0, 0, 31] == rows[1, 31]
    assert x[1, 1, 2, 3] == rows[1, 1024 + 2 * 32 + 3]
    assert x[2, 2, 31, 30] == rows[2, 3070]


@pytest.mark.parametrize("size", [0, 1, 3072, 3074, 2 * 3073 - 1])
def test_cifar_binary_of_a_wrong_size(tmp_path, size):
    (tmp_path / "batch.bin").write_bytes(bytes(size))
    with pytest.raises(FedntdError, match=rf"batch.bin has {size} bytes.*3073-byte images; get a fresh copy"):
        readers.cifar_binary(tmp_path / "batch.bin", 10)


def test_cifar_binary_of_a_wrong_label(tmp_path):
    (tmp_path / "batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(FedntdError, match=r"batch.bin has labels outside 0\.\.9"):
        readers.cifar_binary(tmp_path / "batch.bin", 10)


def python2_string(data: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(data)) + data


def python2_batch(rows: np.ndarray, labels: list[int], key: bytes, kind: bytes = b"u1") -> bytes:
    """A batch as written by Python 2's cPickle, with protocol 2 and the numpy of that time."""
    count, width = rows.shape
    dtype = (
        b"cnumpy\ndtype\n" + python2_string(kind) + b"K\x00K\x01\x87R"
        b"(K\x03" + python2_string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_string(b"b") + b"\x87R"
        b"(K\x01" + struct.pack("<cici", b"J", count, b"J", width) + b"\x86" + dtype + b"\x89"
        + python2_string(rows.tobytes()) + b"tb"
    )  # fmt: skip
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    name = python2_string(b"batch_label") + python2_string(b"training batch 1 of 5")
    return b"\x80\x02}(" + name + python2_string(key) + listed + python2_string(b"data") + array + b"u."


@pytest.mark.parametrize(("classes", "key"), [(10, b"labels"), (100, b"fine_labels")])
def test_cifar_pickle(tmp_path, classes, key):
    rows, labels = pixel_rows(4), [3, 0, classes - 1, 1]
    rows[0, :256] = np.arange(256)  # every byte survives being read as a string
    (tmp_path / "data_batch_1").write_bytes(python2_batch(rows, labels, key))
    x, y = readers.cifar_pickle(tmp_path / "data_batch_1", classes)
    assert torch.equal(x, torch.from_numpy(rows).reshape(4, 3, 32, 32))
    assert y.tolist() == labels
    assert y.dtype == torch.int64


BATCH = python2_batch(pixel_rows(1), [1], b"labels")


@given(cut=st.integers(0, len(BATCH) - 1))
@settings(max_examples=30, deadline=None)
def test_cifar_pickle_cut_anywhere_is_refused(scratch, cut):
    (scratch / "cut").write_bytes(BATCH[:cut])
    with pytest.raises(FedntdError, match="cut is not a CIFAR-10 batch, or is damaged; get a fresh copy"):
        readers.cifar_pickle(scratch / "cut", 10)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (python2_batch(pixel_rows(2), [1], b"labels"), "as many labels"),
        (python2_batch(pixel_rows(2)[:, :3000], [1, 2], b"labels"), "as many labels"),
        (python2_batch(pixel_rows(1), [1], b"fine_labels"), "not a CIFAR-10 batch"),
        (python2_batch(pixel_rows(1), [10], b"labels"), r"outside 0\.\.9"),
        (python2_batch(pixel_rows(1), [1], b"labels", b"O8"), "not a CIFAR-10 batch"),  # objects, not bytes
        (pickle.dumps([1, 2]), "not a CIFAR-10 batch"),
        (pickle.dumps({"data": 1, "labels": [[1], [1, 2]]}), "not a CIFAR-10 batch"),
        (b"\x80\x02}", "not a CIFAR-10 batch"),
    ],
)
def test_bad_cifar_pickle(tmp_path, data, says):
    (tmp_path / "data_batch_1").write_bytes(data)
    with pytest.raises(FedntdError, match=f"data_batch_1 .*{says}"):
        readers.cifar_pickle(tmp_path / "data_batch_1", 10)


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, getattr, np.load])
def test_malicious_pickle_is_refused_before_it_runs(tmp_path, function, protocol):
    victim = tmp_path / "victim"
    command = f"touch {victim}" if function is os.system else f"open({str(victim)!r}, 'w').close()"
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": Malicious(function, command)}, protocol))
    with pytest.raises(FedntdError, match="data_batch_1 is refused, and nothing of it was run: it asks for"):
        readers.cifar_pickle(tmp_path / "data_batch_1", 10)
    assert not victim.exists()


# --- folders of images ------------------------------------------------------------------------------------------


def save(path: Path, value: int | tuple[int, ...], mode: str = "RGB", size: tuple[int, int] = (4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, value)
    image.putpixel((1, 0), 0 if isinstance(value, int) else (0,) * len(value))
    image.save(path)


def test_image_folder(tmp_path):
    save(tmp_path / "train/cat/2.png", (10, 20, 30))
    save(tmp_path / "train/cat/10.PNG", (40, 50, 60))
    save(tmp_path / "train/ant/1.bmp", (70, 80, 90))
    save(tmp_path / "test/ant/1.png", 100, "L")  # becomes RGB, as the others are
    save(tmp_path / "test/cat/1.png", (1, 2, 3))
    (tmp_path / "train/cat/notes.txt").write_text("ignored")
    (tmp_path / "train/cat/._2.png").write_text("ignored")
    (tmp_path / "train/.hidden").mkdir()
    train, test, classes = readers.image_folder(tmp_path)
    assert classes == ("ant", "cat")
    assert train.x.shape == (3, 3, 3, 4)  # height 3, width 4
    assert train.y.tolist() == [0, 1, 1]
    assert train.x[:, :, 2, 2].tolist() == [[70, 80, 90], [40, 50, 60], [10, 20, 30]]  # "10" sorts before "2"
    assert train.x[0, :, 0, 1].tolist() == [0, 0, 0]
    assert test.x[:, :, 1, 1].tolist() == [[100, 100, 100], [1, 2, 3]]


def test_image_folder_of_gray_images_stays_gray(tmp_path):
    save(tmp_path / "train/a/1.png", 10, "L")
    save(tmp_path / "test/a/1.png", 1, "1")
    train, test, _ = readers.image_folder(tmp_path)
    assert train.x.shape == (1, 1, 3, 4)
    assert train.x[0, 0, 1, 1] == 10
    assert test.x[0, 0, 1, 1] == 255


def test_image_folder_of_two_sizes_names_both_files(tmp_path):
    save(tmp_path / "train/a/1.png", 10, "L")
    save(tmp_path / "test/a/other.png", 10, "L", (5, 3))
    with pytest.raises(
        FedntdError, match=r"other.png has 5x3 pixels but .*1.png has 4x3; all images must have one size"
    ):
        readers.image_folder(tmp_path)


def test_image_folder_with_a_class_in_one_part_only(tmp_path):
    for file in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        save(tmp_path / file, 10, "L")
    with pytest.raises(FedntdError, match="class 'b' is only in train"):
        readers.image_folder(tmp_path)
    save(tmp_path / "test/b/1.png", 10, "L")
    save(tmp_path / "test/c/1.png", 10, "L")
    with pytest.raises(FedntdError, match="class 'c' is only in test"):
        readers.image_folder(tmp_path)


def test_image_folder_that_is_missing_or_empty(tmp_path):
    with pytest.raises(FedntdError, match=r"data\.path: there is no folder .*scan$"):
        readers.image_folder(tmp_path / "scan")
    for part in ("train", "test"):
        with pytest.raises(
            FedntdError, match=f"has no folder '{part}'; data.path must name a folder with train/<class>"
        ):
            readers.image_folder(tmp_path)
        (tmp_path / part).mkdir()
    with pytest.raises(FedntdError, match="train has no folders"):
        readers.image_folder(tmp_path)
    (tmp_path / "train/a").mkdir()
    with pytest.raises(FedntdError, match="a has no images"):
        readers.image_folder(tmp_path)


def test_image_folder_with_bad_images(tmp_path):
    for file in ("train/a/1.png", "test/a/1.png"):
        save(tmp_path / file, 10, "L", (64, 64))
    bad = tmp_path / "train/a/bad.png"
    bad.write_bytes(b"no image")
    with pytest.raises(FedntdError, match=r"bad.png is not an image that can be read"):
        readers.image_folder(tmp_path)
    whole = (tmp_path / "train/a/1.png").read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FedntdError, match=r"bad.png is a damaged image"):
        readers.image_folder(tmp_path)
    save(bad, 1000, "I;16", (64, 64))
    with pytest.raises(FedntdError, match=r"bad.png has more than 8 bits per pixel"):
        readers.image_folder(tmp_path)


# --- CINIC-10 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cinic_folder(tmp_path):
    folder = tmp_path / "cinic10"
    for p, part in enumerate(("train", "valid", "test")):
        for c, name in enumerate(CLASSES):
            for i in range(2):
                value = (100 * p + 10 * c + i) % 256
                gray = value % 7 == 0  # CINIC-10 has some gray images
                image = folder / part / name / f"cifar10-{i}.png"
                save(image, value if gray else (value, c, p), "L" if gray else "RGB", (32, 32))
    return folder


def test_cinic_uses_the_train_and_test_parts(cinic_folder):
    train, test = readers.cinic(cinic_folder, CLASSES)
    assert train.x.shape == test.x.shape == (20, 3, 32, 32)
    assert train.y.tolist() == [c for c in range(10) for _ in range(2)]
    assert train.x[:, 0, 5, 5].tolist() == [10 * c + i for c in range(10) for i in range(2)]
    assert test.x[:, 0, 5, 5].tolist() == [(200 + 10 * c + i) % 256 for c in range(10) for i in range(2)]


def test_cinic_is_decoded_once(cinic_folder, monkeypatch):
    first = readers.cinic(cinic_folder, CLASSES)
    assert sorted(f.name for f in cinic_folder.parent.iterdir()) == ["cinic10", "cinic10.npz"]
    monkeypatch.setattr(readers, "open_image", lambda _: pytest.fail("an image was read again"))
    second = readers.cinic(cinic_folder, CLASSES)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.y, two.y)


def test_cinic_cache_that_no_longer_fits_is_written_anew(cinic_folder):
    readers.cinic(cinic_folder, CLASSES)
    save(cinic_folder / "train/bird/cifar10-0.png", (1, 2, 3), "RGB", (32, 32))
    train, _ = readers.cinic(cinic_folder, CLASSES)
    assert train.x[4, :, 5, 5].tolist() == [1, 2, 3]
    (cinic_folder / "train/bird/cifar10-0.png").unlink()
    train, _ = readers.cinic(cinic_folder, CLASSES)
    assert train.y.bincount().tolist() == [2, 2, 1, 2, 2, 2, 2, 2, 2, 2]


def test_cinic_damaged_cache_is_replaced(cinic_folder):
    expected, _ = readers.cinic(cinic_folder, CLASSES)
    cache = cinic_folder.with_name("cinic10.npz")
    whole = cache.read_bytes()
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for bad in (b"", b"PK", b"no zip at all", array.getvalue(), whole[:-100], whole[:5000] + bytes(100) + whole[5100:]):
        cache.write_bytes(bad)
        train, _ = readers.cinic(cinic_folder, CLASSES)
        assert torch.equal(train.x, expected.x)
        assert cache.stat().st_size == len(whole)


def test_cinic_in_a_folder_that_cannot_be_written(cinic_folder, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    assert len(readers.cinic(cinic_folder, CLASSES)[0].y) == 20


def test_cinic_failed_write_of_the_cache_leaves_nothing(cinic_folder, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(readers.np, "savez", refuse)
    assert len(readers.cinic(cinic_folder, CLASSES)[0].y) == 20
    assert [f.name for f in cinic_folder.parent.iterdir()] == ["cinic10"]


def test_cinic_with_a_link_that_leads_nowhere(cinic_folder):
    (cinic_folder / "train/bird/link.png").symlink_to("nowhere")
    with pytest.raises(FedntdError, match=r"link.png cannot be read: No such file or directory"):
        readers.cinic(cinic_folder, CLASSES)


def test_cinic_with_wrong_folders_or_sizes(cinic_folder):
    save(cinic_folder / "train/bird/big.png", (1, 2, 3), "RGB", (33, 32))
    with pytest.raises(FedntdError, match=r"big.png has 33x32 pixels but CINIC-10 has 32x32"):
        readers.cinic(cinic_folder, CLASSES)
    (cinic_folder / "test/bird").rename(cinic_folder / "test/birds")
    with pytest.raises(FedntdError, match=r"test must hold the folders airplane, .* and no others"):
        readers.cinic(cinic_folder, CLASSES)


# --- .npz -------------------------------------------------------------------------------------------------------


def write_npz(path: Path, x, y=None, **others) -> Path:
    y = np.arange(len(x)) % 2 if y is None else y
    np.savez(path, **{"x_train": x, "y_train": y, "x_test": x, "y_test": y, **others})
    return path


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ("NHW", (4, 1, 5, 6)),
        ("NHWC", (4, 3, 5, 6)),
        ("NCHW", (4, 3, 5, 6)),
        ("NHWC", (4, 1, 5, 6)),
        ("NCHW", (4, 1, 5, 6)),
    ],
)
def test_npz_images_in_any_layout(tmp_path, axes, shape):
    wanted = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    x = {"NHW": wanted[:, 0], "NHWC": wanted.transpose(0, 2, 3, 1), "NCHW": wanted}[axes]
    train, test = readers.npz(write_npz(tmp_path / "d.npz", x, np.array([0, 1, 1, 0], np.uint8)))
    for part in (train, test):
        assert np.array_equal(part.x.numpy(), wanted)
        assert part.y.tolist() == [0, 1, 1, 0]
        assert part.y.dtype == torch.int64


@given(
    shape=st.lists(st.integers(1, 4), max_size=3),
    kind=st.sampled_from(["<f2", ">f4", "<f8"]),
    column=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_npz_float_samples_of_any_shape(scratch, shape, kind, column):
    x = np.arange(3 * np.prod(shape, dtype=int)).reshape(3, *shape).astype(kind)
    y = np.array([[0], [1], [0]]) if column else np.array([0, 1, 0])
    train, _ = readers.npz(write_npz(scratch / "d.npz", x, y))
    assert train.x.dtype == torch.float32
    assert train.x.tolist() == x.tolist()
    assert train.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16])
def test_npz_integer_samples(tmp_path, kind):
    train, _ = readers.npz(write_npz(tmp_path / "d.npz", np.array([[1, 300], [2, 1000]], kind), np.array([0, 1])))
    assert train.x.dtype == torch.int64
    assert train.x.tolist() == [[1, 300], [2, 1000]]


IMAGES = np.zeros((4, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (IMAGES, np.zeros(3, int), "y_train has 3 labels for x_train"),
        (IMAGES[:0], np.zeros(0, int), "y_train has 0 labels"),
        (IMAGES, np.zeros(4), "y_train must be one integer per sample, not float64"),
        (IMAGES, np.eye(4, dtype=int), "y_train must be one integer per sample"),
        (IMAGES, np.array([0, 1, 2, 10**12]), "y_train must count classes from 0, not from 0 to 1000000000000"),
        (IMAGES, np.array([-1, 0, 1, 0]), "y_train must count classes from 0, not from -1"),
        (IMAGES.astype(bool), None, "x_train must be uint8 images, floating-point or integer samples, not bool"),
        (np.zeros((4, 3, 8, 3), np.uint8), None, r"NHW, NHWC or NCHW .*which \[4, 3, 8, 3\] does not show"),
        (np.zeros((4, 8, 8, 8), np.uint8), None, r"which \[4, 8, 8, 8\] does not show"),
        (np.zeros((4, 8), np.uint8), None, r"which \[4, 8\] does not show"),
    ],
)
def test_npz_that_is_no_dataset(tmp_path, x, y, says):
    with pytest.raises(FedntdError, match=f"d.npz.*{says}"):
        readers.npz(write_npz(tmp_path / "d.npz", x, y))


def test_npz_never_unpickles(tmp_path):
    victim = tmp_path / "victim"
    objects = np.array([Malicious(os.system, f"touch {victim}")], dtype=object)
    write_npz(tmp_path / "d.npz", objects)
    with pytest.raises(FedntdError, match=r"d.npz cannot be read \(Object arrays cannot be loaded"):
        readers.npz(tmp_path / "d.npz")
    assert not victim.exists()


def test_npz_that_cannot_be_read(tmp_path):
    path = tmp_path / "d.npz"
    with pytest.raises(FedntdError, match=r"there is no file .*d.npz; data.path must name an .npz file with x_train"):
        readers.npz(path)
    np.savez(path, x_train=IMAGES, y_train=np.zeros(4, int))
    with pytest.raises(FedntdError, match=r"d.npz has no x_test, y_test; it must hold"):
        readers.npz(path)
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(name, "no array")
    with pytest.raises(FedntdError, match=r"d.npz: x_train is no array; write the file with numpy.savez"):
        readers.npz(path)
    whole = write_npz(path, np.random.default_rng(0).random((4, 100))).read_bytes()
    for bad in (b"", b"text", whole[: len(whole) // 2], whole[:300] + bytes(50) + whole[350:]):
        path.write_bytes(bad)
        with pytest.raises(FedntdError, match=r"d.npz (is not an .npz file|cannot be read)"):
            readers.npz(path)
    with path.open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(FedntdError, match=r"d.npz is not an .npz file"):
        readers.npz(path)
