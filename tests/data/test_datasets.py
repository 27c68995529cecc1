"""The datasets by name: the packaged one, tiny ones in the published layouts, and the real ones where they are."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fedntd.cli.data import app
from fedntd.data import download
from fedntd.data.augment import Augment
from fedntd.data.dataset import Dataset, from_tensors
from fedntd.data.datasets import CIFAR100_CLASSES, DATASETS, load
from fedntd.data.download import SUMMARIES
from fedntd.data.packaged import make
from fedntd.errors import FedntdError

REAL = {name: download.folder_of(name) for name in SUMMARIES}  # as FEDNTD_DATA was when the tests began


def real(name: str):
    missing = not download.present(name, REAL[name])
    return pytest.mark.skipif(missing, reason=f"{name} is not in the data folder (FEDNTD_DATA)")


X, Y = torch.rand(4, 6), torch.tensor([0, 1, 0, 1])
IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("train", "test", "augment", "sentence"),
    [
        ((X, Y[:, None]), (X, Y), None, r"training part: labels must be one number per sample, not \[1\]"),
        ((X[:0], Y[:0]), (X, Y), None, "training part: there are no samples"),
        ((X, Y), (X[:0], Y[:0]), None, "test part: there are no samples"),
        (
            (IMAGES, Y),
            (IMAGES / 255, Y),
            None,
            "training samples are .* of torch.uint8, test samples .*float32",
        ),
        ((IMAGES / 255, Y), (IMAGES, Y), None, "training samples are .*float32, test samples .* of torch.uint8"),
        ((X, Y), (X, Y), Augment(flip=True), "only uint8 images can be augmented, not samples of torch.float32"),
        ((X.numpy(), Y), (X, Y), None, "training part: samples must be a tensor, not ndarray; torch.as_tensor makes"),
        ((X, Y), (X, Y.tolist()), None, "test part: labels must be a tensor, not list"),
        ((X, Y.float()), (X, Y), None, "labels must be int64, not torch.float32; y.long"),
        ((X, Y + 1), (X, Y + 1), None, "class 0 .'0'. has no samples; labels must count the classes from 0"),
        (
            (X.short(), Y),
            (X.short(), Y),
            None,
            "samples must be uint8 images, floating-point or int64, not torch.int16",
        ),
        ((X.where(Y[:, None] < 1, torch.nan), Y), (X, Y), None, "sample 1 is not finite .*; fill in or leave out"),
        ((IMAGES.expand(4, 9, 2, 2), Y), (IMAGES.expand(4, 9, 2, 2), Y), None, "seem to have their channels last"),
    ],
)
def test_tensors_that_make_no_dataset(train, test, augment, sentence):
    with pytest.raises(FedntdError, match=f"dataset 'mine'.*{sentence}"):
        from_tensors("mine", train, test, augment=augment)


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDNTD_DATA", str(tmp_path))
    return tmp_path


def idx_bytes(shape: tuple[int, ...], values) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(values)


def write_idx(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes((20, 28, 28), np.zeros(20 * 784, np.uint8)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes((20,), list(range(10)) * 2))


def cifar_rows(classes: int, start: int) -> bytes:
    """Each class once; the first pixel of a row tells which row of the dataset it is."""
    extra = b"" if classes == 10 else b"\0"
    return b"".join(extra + bytes([c, (start + c) % 256]) + bytes(3071) for c in range(classes))


# --- packaged ---------------------------------------------------------------------------------------------------


def test_packaged_set_is_small_balanced_and_whole():
    folder = download.folder_of("fashion-mini")
    assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) < 4e6
    assert set(download.check("fashion-mini").values()) == {"ok"}
    dataset = load(DATASETS["fashion-mini"], "", True, 0)
    assert dataset.shape == (1, 28, 28)
    assert dataset.train.y.bincount().tolist() == [600] * 10
    assert dataset.test.y.bincount().tolist() == [200] * 10
    assert dataset.train.y[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]  # Fashion-MNIST's first ten
    assert dataset.classes[9] == "ankle boot"
    mean = dataset.train.x.double().mean() / 255
    assert abs(mean - 0.2860) < 0.005
    assert "Zalando SE" in (folder / "LICENSE-fashion-mnist.txt").read_text(encoding="utf-8")


def test_packaged_set_takes_the_first_of_each_class(tmp_path, monkeypatch):
    labels = [1, 0, 1, 1, 0, 2, 2, 0]
    assert make.first_of_each_class(torch.tensor(labels), 2).tolist() == [0, 1, 2, 4, 5, 6]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for part in ("train", "t10k"):
        (source / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes((8, 1, 1), range(8)))
        (source / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes((8,), labels))
    monkeypatch.setattr(make, "PER_CLASS", {"train": 2, "t10k": 1})
    make.make(source, target)
    assert make.idx(target / "train-images-idx3-ubyte.gz").flatten().tolist() == [0, 1, 2, 4, 5, 6]
    assert make.idx(target / "t10k-labels-idx1-ubyte.gz").tolist() == [1, 0, 2]


@real("fashion-mnist")
def test_packaged_set_can_be_made_again(tmp_path):
    make.make(REAL["fashion-mnist"], tmp_path)
    assert set(download.check("fashion-mini", tmp_path).values()) == {"ok"}


# --- in the published layouts -----------------------------------------------------------------------------------

MNIST_LIKE = Augment(pad=4, flip=True, cutout=16)


@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_idx_datasets(data, name, mean, std):
    write_idx(data / name)
    for path in ("", str(data / name)):
        dataset = load(DATASETS[name], path, True, 0)
        assert (dataset.name, dataset.shape, dataset.mean, dataset.std) == (name, (1, 28, 28), (mean,), (std,))
        assert dataset.augment == MNIST_LIKE


@pytest.mark.parametrize(
    ("name", "classes", "inner", "train", "test"),
    [
        ("cifar10", 10, "cifar-10-batches-bin", [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"),
        ("cifar100", 100, "cifar-100-binary", ["train.bin"], "test.bin"),
    ],
)
def test_cifar_is_found_in_the_data_folder_and_by_path(data, name, classes, inner, train, test):
    folder = data / name / inner
    folder.mkdir(parents=True)
    for i, file in enumerate(train):
        (folder / file).write_bytes(cifar_rows(classes, 10 * i))
    (folder / test).write_bytes(cifar_rows(classes, 200))
    for path in ("", str(data / name), str(folder)):
        dataset = load(DATASETS[name], path, True, 0)
        assert dataset.train.x[:, 0, 0, 0].tolist() == list(range(len(train) * classes))  # the batches in order
        assert dataset.test.x[0, 0, 0, 0] == 200
        assert len(dataset.classes) == classes
        assert dataset.augment == MNIST_LIKE
    (folder / train[-1]).rename(folder / "elsewhere")
    with pytest.raises(FedntdError, match=f"{train[-1]} is missing"):
        load(DATASETS[name], "", True, 0)


def test_python_form_of_cifar_is_found_too(data):
    folder = data / "cifar10/cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "data_batch_1").write_bytes(b"not a pickle")
    for path in ("", str(folder)):
        with pytest.raises(FedntdError, match="data_batch_1 is not a CIFAR-10 batch"):
            load(DATASETS["cifar10"], path, True, 0)


def test_class_names():
    assert len(CIFAR100_CLASSES) == len(set(CIFAR100_CLASSES)) == 100
    assert (CIFAR100_CLASSES[0], CIFAR100_CLASSES[19], CIFAR100_CLASSES[99]) == ("apple", "cattle", "worm")


def test_cinic(data):
    for part in ("train", "test"):
        for name in download.CINIC_CLASSES:
            (data / "cinic10" / part / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (5, 6, 7)).save(data / "cinic10" / part / name / "1.png")
    dataset = load(DATASETS["cinic10"], "", True, 0)
    assert dataset.train.y.tolist() == list(range(10))
    assert dataset.augment == Augment(pad=4, reflect=True, flip=True)
    assert dataset.mean == (0.47889522, 0.47227842, 0.43047404)


def test_folder_and_npz_measure_mean_and_std(tmp_path):
    for part in ("train", "test"):
        for name, value in (("b", 255), ("a", 0)):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("L", (2, 2), value).save(tmp_path / part / name / "1.png")
    dataset = load(DATASETS["folder"], str(tmp_path), True, 0)
    assert dataset.classes == ("a", "b")
    assert (dataset.mean, dataset.std, dataset.augment) == ((0.5,), (0.5,), None)
    x = np.array([[[0, 0]], [[255, 255]]], np.uint8)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=[0, 1], x_test=x, y_test=[0, 1])
    dataset = load(DATASETS["npz"], str(tmp_path / "d.npz"), True, 0)
    assert (dataset.mean, dataset.std, dataset.classes) == ((0.5,), (0.5,), ("0", "1"))


@pytest.mark.parametrize("name", [name for name in SUMMARIES if name != "fashion-mini"])
def test_dataset_that_is_not_there(data, name):
    with pytest.raises(
        FedntdError, match=rf"'{name}' is not in .*{name}; run: fedntd data get {name}, or set data.path"
    ):
        load(DATASETS[name], "", True, 0)
    with pytest.raises(FedntdError, match=rf"data.path = '.*' has no files of '{name}'"):
        load(DATASETS[name], str(data), True, 0)
    assert list(data.iterdir()) == []  # loading fetches nothing


@pytest.mark.parametrize("name", ["folder", "npz"])
def test_own_data_needs_a_path(name):
    with pytest.raises(FedntdError, match=f"dataset '{name}' needs data.path"):
        load(DATASETS[name], "", True, 0)


# --- load -------------------------------------------------------------------------------------------------------


def own(path: str = "default") -> Dataset:
    part = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1), torch.tensor([0, 1, 0, 1])
    return from_tensors(f"own {path}", part, part, augment=Augment(pad=1))


def test_load_of_the_users_own_loader():
    assert load(own, "", True, 0).name == "own default"
    assert load(own, "here", True, 0).name == "own here"
    assert load(lambda path: own(path), "", True, 0).name == "own "
    assert load(lambda: own("none"), "", True, 0).name == "own none"
    with pytest.raises(FedntdError, match=r"data.path = 'here' is of no use: the loader '<lambda>' takes no path"):
        load(lambda: own("none"), "here", True, 0)
    with pytest.raises(FedntdError, match="the data loader 'list' returned list, not a Dataset"):
        load(list, "", True, 0)


def test_load_drops_augmentation_and_cuts():
    assert load(own, "", True, 0).augment == Augment(pad=1)
    assert load(own, "", False, 0).augment is None
    assert load(own, "", True, 2).train.x.flatten().tolist() == [0, 1]
    assert len(load(own, "", True, 2).test.y) == 4
    with pytest.raises(FedntdError, match=r"data.train_size = 5 is more than the 4 training samples"):
        load(own, "", True, 5)
    with pytest.raises(FedntdError, match=r"data.train_size = 1: .*class 1 .* has no samples"):
        load(own, "", True, 1)


# --- the command line -------------------------------------------------------------------------------------------


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_list(data):
    write_idx(data / "mnist")
    (data / "cifar100/cifar-100-binary").mkdir(parents=True)
    (data / "cifar100/cifar-100-binary/test.bin").touch()
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert rows.keys() == SUMMARIES.keys()
    assert rows["mnist"] == {
        "name": "mnist",
        "train": 60000,
        "test": 10000,
        "classes": 10,
        "shape": [1, 28, 28],
        "present": True,
        "where": str(data / "mnist"),
    }
    assert rows["fashion-mini"]["present"]
    assert not rows["cifar100"]["present"]  # only in part
    assert rows["cinic10"]["where"] is None
    text = run("list").stdout
    assert "60,000 + 10,000" in text
    assert "in part" in text
    assert "npz" in text


def test_get(data, monkeypatch):
    assert "nothing to get" in run("get", "fashion-mini").stdout
    assert isinstance(run("get", "npz").exception, FedntdError)
    assert "did you mean 'mnist'" in str(run("get", "mnits").exception)
    monkeypatch.setattr(download, "fetch", lambda name: data / name)
    assert f"mnist is in {data / 'mnist'}" in run("get", "mnist").stdout.replace("\n", "")


def test_check(data):
    assert json.loads(run("check", "--json").stdout).keys() == {"fashion-mini"}
    assert run("check").exit_code == 0
    write_idx(data / "mnist")
    result = run("check", "mnist", "--json")
    assert set(json.loads(result.stdout)["mnist"].values()) == {"damaged"}
    assert isinstance(result.exception, FedntdError)
    assert str(result.exception) == "files of mnist are missing or damaged; run: fedntd data get mnist"
    assert isinstance(run("check", "cifar10").exception, FedntdError)
    assert "did you mean 'mnist'" in str(run("check", "mnits").exception)


# --- the real files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(name, marks=real(name)) for name in SUMMARIES])
def test_real_files(name):
    assert set(download.check(name, REAL[name]).values()) == {"ok"}
    dataset = load(DATASETS[name], str(REAL[name]), True, 0)
    known = SUMMARIES[name]
    assert (len(dataset.train.y), len(dataset.test.y), len(dataset.classes), dataset.shape) == known
    if name != "mnist":  # MNIST's classes differ in size
        assert dataset.train.y.bincount().tolist() == [known.train // known.classes] * known.classes
    first = {
        "mnist": ([5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
        "fashion-mnist": ([9, 0, 0, 3, 0, 2, 7, 2, 5, 5], [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]),
        "cifar10": ([6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]),
        "cifar100": ([19, 29, 0, 11, 1, 86, 90, 28, 23, 31], [49, 33, 72, 51, 71, 92, 15, 14, 23, 0]),
    }
    if name in first:
        assert (dataset.train.y[:10].tolist(), dataset.test.y[:10].tolist()) == first[name]
    if name != "fashion-mini":  # which is shown to a model with the mean of the whole
        mean = dataset.train.x.sum((0, 2, 3)) / (255 * dataset.train.x[:, 0].numel())
        assert mean.tolist() == pytest.approx(dataset.mean, abs=6e-5)
