"""Readers of published file formats: idx, CIFAR, CINIC-10, folders of images, .npz. Images become uint8, labels int64.

Whatever is wrong with a file, the user gets one sentence that names it, never an error of gzip, pickle or Pillow.
"""

import gzip
import hashlib
import io
import math
import pickle
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from PIL import Image
from torch import Tensor

from fedntd.data.dataset import Part
from fedntd.data.download import GZIP
from fedntd.errors import KEY, FedntdError, require
from fedntd.support.files import atomic

AGAIN = "get a fresh copy (for the known datasets: fedntd data get NAME)"
IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked if they are gzipped, whatever its name says."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == GZIP else data
    except FileNotFoundError:
        raise FedntdError(f"{path} is missing; {AGAIN}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FedntdError(f"{path} is a damaged gzip file ({error}); {AGAIN}") from error
    except OSError as error:
        raise FedntdError(f"{path} cannot be read: {error.strerror}") from error


# --- idx: MNIST, Fashion-MNIST ----------------------------------------------------------------------------------


def idx(path: Path) -> Tensor:
    """Two zero bytes, 8 for uint8, the number of dimensions, each dimension as a big-endian int32, then the data."""
    data = content(path)
    require(data[:3] == b"\0\0\x08" and len(data) > 3, f"{path} does not begin like an idx file of bytes; {AGAIN}")
    header = 4 + 4 * data[3]
    require(len(data) >= header, f"{path} ends inside its idx header; {AGAIN}")
    shape = np.frombuffer(data, ">u4", data[3], offset=4).tolist()
    found = len(data) - header
    require(math.prod(shape) == found, f"{path} should hold {shape} bytes of data but holds {found}; {AGAIN}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def idx_part(images: Path, labels: Path) -> Part:
    x, y = idx(images), idx(labels)
    require(x.ndim == 3, f"{images} has {x.ndim} dimensions where images have 3; {AGAIN}")
    require(y.ndim == 1, f"{labels} has {y.ndim} dimensions where labels have 1; {AGAIN}")
    require(len(x) == len(y), f"{labels} has {len(y)} labels for the {len(x)} images of {images.name}; {AGAIN}")
    return Part(x[:, None], y.long())


# --- CIFAR ------------------------------------------------------------------------------------------------------


def cifar_binary(path: Path, classes: int) -> Part:
    """Rows of one label byte (CIFAR-100: two, coarse and fine) and 3072 bytes of pixels, channel by channel."""
    data = content(path)
    label_bytes = 1 if classes == 10 else 2
    row = label_bytes + 3072
    require(
        len(data) > 0 and len(data) % row == 0,
        f"{path} has {len(data)} bytes, which is not a whole number of {row}-byte images; {AGAIN}",
    )
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return cifar_part(path, rows[:, label_bytes:], rows[:, label_bytes - 1], classes)


def cifar_part(path: Path, pixels: np.ndarray, labels: np.ndarray, classes: int) -> Part:
    require(
        bool((labels >= 0).all() and (labels < classes).all()),
        f"{path} has labels outside 0..{classes - 1}, so it is no file of CIFAR-{classes}; {AGAIN}",
    )
    x = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
    return Part(x, torch.from_numpy(labels.astype(np.int64)))


def cifar_pickle(path: Path, classes: int) -> Part:
    """A pickled dict with "data" [N, 3072] and "labels" (CIFAR-100: "fine_labels")."""
    data = content(path)
    try:
        table = CifarUnpickler(path, data).load()
        pixels, labels = table["data"], np.array(table["labels" if classes == 10 else "fine_labels"])
        fits = pixels.dtype == np.uint8 and pixels.shape == (len(labels), 3072) and len(labels) > 0
        fits = fits and labels.ndim == 1 and labels.dtype.kind == "i"
    except FedntdError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise FedntdError(f"{path} is not a CIFAR-{classes} batch, or is damaged; {AGAIN}") from error
    require(fits, f"{path} does not hold as many labels as 3072-byte images; {AGAIN}")
    return cifar_part(path, pixels, labels, classes)


class CifarUnpickler(pickle.Unpickler):
    """Builds arrays of bytes and nothing else: a pickle can otherwise name any function, and have it called."""

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")  # as Python 2 strings of bytes must be read
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        # Our own stand-ins, since numpy has moved the one and warns of how old files call the other.
        allowed = {
            "numpy.core.multiarray._reconstruct": lambda *_: np.empty(0, np.uint8),
            "numpy.dtype": byte_dtype,
            "numpy.ndarray": np.ndarray,
        }
        wanted = f"{module}.{name}"
        if wanted not in allowed:
            raise FedntdError(
                f"{self.path} is refused, and nothing of it was run: it asks for {wanted}, "
                f"which no CIFAR file contains; delete it and {AGAIN}"
            )
        return allowed[wanted]


def byte_dtype(kind: str, *_: Any) -> np.dtype:
    if kind != "u1":
        raise ValueError(f"an array of {kind}, not of bytes")
    return np.dtype(np.uint8)


def joined(parts: Sequence[Part]) -> Part:
    return Part(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


# --- images in folders ------------------------------------------------------------------------------------------


def by_name(folder: Path) -> list[Path]:
    """What is in a folder and not hidden, in the same order on every platform."""
    return sorted((f for f in folder.iterdir() if not f.name.startswith(".")), key=lambda f: f.name)


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The images in each class's folder; classes and files in alphabetical order."""
    try:
        folders = [f for f in by_name(folder) if f.is_dir()]
        files = {f.name: [i for i in by_name(f) if i.suffix.lower() in IMAGE_ENDINGS] for f in folders}
    except OSError as error:
        raise FedntdError(f"{folder} cannot be listed: {error.strerror}; it must hold a folder a class") from error
    require(bool(files), f"{folder} has no folders; it must hold a folder of images for each class")
    for name, images in files.items():
        require(bool(images), f"{folder / name} has no images; remove the folder, or put images in it")
    return files


def image_folder(folder: Path) -> tuple[Part, Part, tuple[str, ...]]:
    """DIR/train/<class>/* and DIR/test/<class>/*: grayscale if all images are, else RGB."""
    require(folder.is_dir(), f"{KEY}: there is no folder {folder}", "data.path")
    for part in ("train", "test"):
        require(
            (folder / part).is_dir(),
            f"{folder} has no folder '{part}'; {KEY} must name a folder with train/<class>/ and test/<class>/",
            "data.path",
        )
    train, test = (class_files(folder / part) for part in ("train", "test"))
    if only := sorted(train.keys() ^ test.keys()):
        where = "train" if only[0] in train else "test"
        raise FedntdError(f"{folder}: class '{only[0]}' is only in {where}; train and test need the same classes")
    files = flat(train) + flat(test)
    with ThreadPoolExecutor() as pool:
        sizes, gray = zip(*pool.map(size_and_gray, files), strict=True)
    mode = "L" if all(gray) else "RGB"
    x_train, x_test = (decoded(flat(part), mode, files[0], sizes[0]) for part in (train, test))
    return Part(x_train, class_labels(train)), Part(x_test, class_labels(test)), tuple(train)


def flat(files: dict[str, list[Path]]) -> list[Path]:
    return [file for images in files.values() for file in images]


def class_labels(files: dict[str, list[Path]]) -> Tensor:
    return torch.arange(len(files)).repeat_interleave(torch.tensor([len(images) for images in files.values()]))


def opened(file: Path) -> Image.Image:
    try:
        return Image.open(file)
    except Exception as error:  # Pillow's decoders raise whatever goes wrong inside them
        raise FedntdError(f"{file} is not an image that can be read; replace or remove it") from error


def size_and_gray(file: Path) -> tuple[tuple[int, int], bool]:
    with opened(file) as image:
        # Pillow would clip deeper pixels at 255 without a word
        require(image.mode[0] not in "IF", f"{file} has more than 8 bits a pixel; save it with 8 bits")
        return image.size, image.mode in ("1", "L", "LA")


def decoded(files: list[Path], mode: str, model: Path, size: tuple[int, int]) -> Tensor:
    """All images as [N, C, H, W]; each must have the size that the image `model` has."""
    width, height = size
    pixels = np.empty((len(files), len(mode), height, width), np.uint8)

    def decode(start: int) -> None:
        for i, file in enumerate(files[start : start + 256], start):
            with opened(file) as image:
                if image.size != size:
                    raise FedntdError(
                        f"{file} has {image.width}x{image.height} pixels but {model} has {width}x{height}; "
                        f"all images must have one size"
                    )
                try:
                    values = np.asarray(image.convert(mode))
                except Exception as error:
                    raise FedntdError(f"{file} is a damaged image ({error}); replace or remove it") from error
            pixels[i] = values.reshape(height, width, -1).transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(decode, range(0, len(files), 256)):
            pass
    return torch.from_numpy(pixels)


def cinic(folder: Path, classes: Sequence[str]) -> tuple[Part, Part]:
    """The training and test images of CINIC-10, which is a file an image; kept in one file beside the folder."""
    train, test = (class_files(folder / part) for part in ("train", "test"))
    for part, files in (("train", train), ("test", test)):
        fits = list(files) == list(classes)
        require(fits, f"{folder / part} must hold the folders {', '.join(classes)} and no others; {AGAIN}")
    cache = folder.absolute().with_name(folder.absolute().name + ".npz")
    mark = fingerprint(folder, flat(train) + flat(test))
    images = cached(cache, mark)
    if images is None:
        x_train, x_test = (decoded(flat(part), "RGB", Path("CINIC-10"), (32, 32)) for part in (train, test))
        images = x_train, x_test
        keep(cache, mark, images)
    return Part(images[0], class_labels(train)), Part(images[1], class_labels(test))


def fingerprint(folder: Path, files: list[Path]) -> np.ndarray:
    """Changes when a file is added, removed, renamed or written to."""
    digest = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError as error:
            raise FedntdError(f"{file} cannot be read: {error.strerror}; replace or remove it") from error
        digest.update(f"{file.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return np.frombuffer(digest.digest(), np.uint8)


def cached(cache: Path, wanted: np.ndarray) -> tuple[Tensor, Tensor] | None:
    """The images kept from last time; None if there are none, or if they are not those of the folder as it is now."""
    try:
        with cache.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if np.array_equal(file["fingerprint"], wanted):
                return torch.from_numpy(file["train"]), torch.from_numpy(file["test"])
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        pass  # a damaged copy is no loss: the images are read again, and it is written anew
    return None


def keep(cache: Path, mark: np.ndarray, images: tuple[Tensor, Tensor]) -> None:
    # a folder that cannot be written to is only slower the next time
    with suppress(OSError), atomic(cache) as aside:
        np.savez(aside, fingerprint=mark, train=images[0].numpy(), test=images[1].numpy())


# --- .npz -------------------------------------------------------------------------------------------------------


def npz(path: Path) -> tuple[Part, Part]:
    """x_train, y_train, x_test, y_test: uint8 images as NHW, NHWC or NCHW, or other numbers of any shape."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    told = f"there is no file {path}; {KEY} must name an .npz file with {', '.join(keys)}"
    require(path.is_file(), told, "data.path")
    try:
        require(zipfile.is_zipfile(path), f"{path} is not an .npz file, or is cut off; write it with numpy.savez")
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            assert isinstance(file, NpzFile)
            missing = [key for key in keys if key not in file]
            require(not missing, f"{path} has no {', '.join(missing)}; it must hold {', '.join(keys)}")
            x_train, y_train, x_test, y_test = (file[key] for key in keys)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FedntdError(f"{path} cannot be read ({error}); write it anew with numpy.savez") from error
    return npz_part(path, "train", x_train, y_train), npz_part(path, "test", x_test, y_test)


def npz_part(path: Path, part: str, x: np.ndarray, y: np.ndarray) -> Part:
    for name, array in (("x", x), ("y", y)):
        require(isinstance(array, np.ndarray), f"{path}: {name}_{part} is no array; write the file with numpy.savez")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    where = f"{path}: y_{part}"
    require(y.ndim == 1 and y.dtype.kind in "iu", f"{where} must be one integer a sample, not {y.dtype} {y.shape}")
    require(x.ndim > 0 and len(x) == len(y) > 0, f"{where} has {len(y)} labels for x_{part} of shape {list(x.shape)}")
    require(0 <= y.min() <= y.max() < len(y), f"{where} must count classes from 0, not from {y.min()} to {y.max()}")
    where = f"{path}: x_{part}"
    require(x.dtype.kind in "fiu", f"{where} must be uint8 images, floating-point or integer samples, not {x.dtype}")
    if x.dtype == np.uint8:
        x = channels_second(where, x)
    else:
        with np.errstate(over="ignore"):  # what becomes infinite is told later
            x = x.astype(np.float32 if x.dtype.kind == "f" else np.int64)
    return Part(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))


def channels_second(where: str, x: np.ndarray) -> np.ndarray:
    """NHW or NHWC as NCHW. The channels are the axis with at most four entries."""
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and 1 <= x.shape[axis] <= 4 for axis in (1, -1))
    require(
        first != last,
        f"{where}: uint8 images must be NHW, NHWC or NCHW with 1 to 4 channels, which {list(x.shape)} does not show",
    )
    return x if first else x.transpose(0, 3, 1, 2)
