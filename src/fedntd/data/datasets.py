"""The datasets by name. A loader takes the path of the files ("" for the data folder) and never downloads."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedntd.data import readers
from fedntd.data.augment import Augment
from fedntd.data.dataset import Dataset, Part, first_samples, from_tensors
from fedntd.data.download import CINIC_CLASSES, either, folder_of, present
from fedntd.errors import KEY, FedntdError, reason, require

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10_CLASSES = CINIC_CLASSES
CIFAR100_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
    shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
    television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)
CROP_FLIP_CUTOUT = Augment(pad=4, flip=True, cutout=16)


def find(name: str, path: str) -> tuple[Path, list[str]]:
    """The folder that holds the dataset's files, and the names of these files."""
    root = Path(path).expanduser() if path else folder_of(name)
    for folder, files in present(name, root):
        return folder, list(files)
    if path:
        raise FedntdError(
            f"= '{path}' has no files of '{name}'; it must name the folder they are in", "data.path", path
        )
    raise FedntdError(
        f"dataset '{name}' is not in {root}; run: fedntd data get {name}, "
        f"or set {KEY} to the folder of its files, or FEDNTD_DATA to a folder that has {name}/",
        "data.path",
    )


def mnist(path: str) -> Dataset:
    return idx_dataset("mnist", path, DIGITS, 0.1307, 0.3081)


def fashion_mnist(path: str) -> Dataset:
    return idx_dataset("fashion-mnist", path, CLOTHES, 0.2860, 0.3530)


def fashion_mini(path: str) -> Dataset:
    return idx_dataset("fashion-mini", path, CLOTHES, 0.2860, 0.3530)


def idx_dataset(name: str, path: str, classes: tuple[str, ...], mean: float, std: float) -> Dataset:
    folder, files = find(name, path)
    train_x, train_y, test_x, test_y = (either(folder, file) for file in files)
    train, test = readers.idx_part(train_x, train_y), readers.idx_part(test_x, test_y)
    return Dataset(name, train, test, classes, (mean,), (std,), CROP_FLIP_CUTOUT)


def cifar10(path: str) -> Dataset:
    mean, std = (0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)
    return Dataset("cifar10", *cifar("cifar10", path, 10), CIFAR10_CLASSES, mean, std, CROP_FLIP_CUTOUT)


def cifar100(path: str) -> Dataset:
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return Dataset("cifar100", *cifar("cifar100", path, 100), CIFAR100_CLASSES, mean, std, CROP_FLIP_CUTOUT)


def cifar(name: str, path: str, classes: int) -> tuple[Part, Part]:
    folder, files = find(name, path)
    read = readers.cifar_binary if files[0].endswith(".bin") else readers.cifar_pickle
    *train, test = (read(either(folder, file), classes) for file in files)
    return readers.concatenate(train), test


def cinic10(path: str) -> Dataset:
    """The 90,000 training and the 90,000 test images; the validation images are not used."""
    folder, _ = find("cinic10", path)
    mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
    train, test = readers.cinic(folder, CINIC_CLASSES)
    return Dataset("cinic10", train, test, CINIC_CLASSES, mean, std, Augment(pad=4, reflect=True, flip=True))


def folder(path: str) -> Dataset:
    message = f"dataset 'folder' needs {KEY}: a folder with images in train/<class>/ and test/<class>/"
    require(path != "", message, "data.path")
    train, test, classes = readers.image_folder(Path(path).expanduser())
    return from_tensors("folder", train, test, classes)


def npz(path: str) -> Dataset:
    message = f"dataset 'npz' needs {KEY}: an .npz file with x_train, y_train, x_test, y_test"
    require(path != "", message, "data.path")
    return from_tensors("npz", *readers.npz(Path(path).expanduser()))


DATASETS: dict[str, Callable[[str], Dataset]] = {
    "fashion-mini": fashion_mini,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cinic10": cinic10,
    "folder": folder,
    "npz": npz,
}


def load(loader: Callable[..., Any], path: str, augment: bool, train_size: int) -> Dataset:
    """Call `loader`, one of the above or the user's own; check its dataset, and apply `augment` and `train_size`."""
    name = getattr(loader, "__name__", str(loader))
    parameters = list(inspect.signature(loader).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    require(bool(positional or not path), f"= '{path}' is of no use: the loader '{name}' takes no path", "data.path")
    # An empty path must not replace the loader's own default.
    wants_path = bool(positional) and (path != "" or positional[0].default is inspect.Parameter.empty)
    try:
        dataset = loader(path) if wants_path else loader()
    except FedntdError:
        raise
    except Exception as error:  # a user's loader may raise anything
        raise FedntdError(f"the data loader '{name}' failed: {reason(error)}") from error
    if not isinstance(dataset, Dataset):
        raise FedntdError(
            f"the data loader '{name}' returned {type(dataset).__name__}, not a Dataset; "
            f"fedntd.data.dataset.from_tensors makes one from tensors"
        )
    return as_asked(dataset, augment, train_size)


def as_asked(dataset: Dataset, augment: bool, train_size: int) -> Dataset:
    """The dataset without augmentation unless `augment`, cut to the first `train_size` training samples (0: all)."""
    if not augment:
        dataset = replace(dataset, augment=None)
    return first_samples(dataset, train_size) if train_size else dataset
