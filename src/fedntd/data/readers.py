"""Readers of published file formats: idx, CIFAR, CINIC-10, folders of images, .npz. Images become uint8, labels int64.

A file that cannot be read raises a FedntdError that names it, never an error of gzip, pickle or Pillow.
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

FRESH_COPY = "get a fresh copy (for the known datasets: fedntd data get NAME)"
IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def content(path: Path) -> bytes:
    """The bytes of a file. They are unpacked if they are gzipped, whatever the file's name."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == GZIP else data
    except FileNotFoundError:
        raise FedntdError(f"{path} is missing; {FRESH_COPY}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FedntdError(f"{path} is a damaged gzip file ({error}); {FRESH_COPY}") from error
    except OSError as error:
        raise FedntdError(f"{path} cannot be read: {error.strerror}") from error


# --- idx: MNIST, Fashion-MNIST ----------------------------------------------------------------------------------


def idx(path: Path) -> Tensor:
    """The array in an idx file of bytes.

    Format: two zero bytes, 8 for uint8, the number of dimensions, each dimension as a big-endian int32, then the data.
    """
    data = content(path)
    require(data[:3] == b"\0\0\x08" and len(data) > 3, f"{path} does not begin like an idx file of bytes; {FRESH_COPY}")
    header = 4 + 4 * data[3]
    require(len(data) >= header, f"{path} ends inside its idx header; {FRESH_COPY}")
    shape = np.frombuffer(data, ">u4", data[3], offset=4).tolist()
    size = len(data) - header
    require(math.prod(shape) == size, f"{path} should hold {shape} bytes of data but holds {size}; {FRESH_COPY}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def idx_part(images: Path, labels: Path) -> Part:
    x, y = idx(images), idx(labels)
    require(x.ndim == 3, f"{images} has {x.ndim} dimensions where images have 3; {FRESH_COPY}")
    require(y.ndim == 1, f"{labels} has {y.ndim} dimensions where labels have 1; {FRESH_COPY}")
    require(len(x) == len(y), f"{labels} has {len(y)} labels for the {len(x)} images of {images.name}; {FRESH_COPY}")
    return Part(x[:, None], y.long())


# --- CIFAR ------------------------------------------------------------------------------------------------------


def cifar_binary(path: Path, classes: int) -> Part:
    """Read rows of one label byte (CIFAR-100: two, coarse and fine) and 3072 bytes of pixels, channel by channel."""
    data = content(path)
    label_bytes = 1 if classes == 10 else 2
    row = label_bytes + 3072
    require(
        len(data) > 0 and len(data) % row == 0,
        f"{path} has {len(data)} bytes, which is not a whole number of {row}-byte images; {FRESH_COPY}",
    )
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return cifar_part(path, rows[:, label_bytes:], rows[:, label_bytes - 1], classes)


def cifar_part(path: Path, pixels: np.ndarray, labels: np.ndarray, classes: int) -> Part:
    require(
        bool((labels >= 0).all() and (labels < classes).all()),
        f"{path} has labels outside 0..{classes - 1}, so it is no file of CIFAR-{classes}; {FRESH_COPY}",
    )
    x = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
    return Part(x, torch.from_numpy(labels.astype(np.int64)))


def cifar_pickle(path: Path, classes: int) -> Part:
    """Read a pickled dict with "data" [N, 3072] and "labels" (CIFAR-100: "fine_labels")."""
    data = content(path)
    try:
        table = CifarUnpickler(path, data).load()
        pixels, labels = table["data"], np.array(table["labels" if classes == 10 else "fine_labels"])
        fits = pixels.dtype == np.uint8 and pixels.shape == (len(labels), 3072) and len(labels) > 0
        fits = fits and labels.ndim == 1 and labels.dtype.kind == "i"
    except FedntdError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise FedntdError(f"{path} is not a CIFAR-{classes} batch, or is damaged; {FRESH_COPY}") from error
    require(fits, f"{path} does not hold as many labels as 3072-byte images; {FRESH_COPY}")
    return cifar_part(path, pixels, labels, classes)


class CifarUnpickler(pickle.Unpickler):
    """Builds arrays of bytes and nothing else, because a pickle can otherwise call any function."""

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")  # the files hold Python 2 byte strings
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        # Our own replacements: numpy has moved `_reconstruct`, and warns about the way old files call `dtype`.
        allowed = {
            "numpy.core.multiarray._reconstruct": lambda *_: np.empty(0, np.uint8),
            "numpy.dtype": byte_dtype,
            "numpy.ndarray": np.ndarray,
        }
        wanted = f"{module}.{name}"
        if wanted not in allowed:
            raise FedntdError(
                f"{self.path} is refused, and nothing of it was run: it asks for {wanted}, "
                f"which no CIFAR file contains; delete it and {FRESH_COPY}"
            )
        return allowed[wanted]


def byte_dtype(kind: str, *_: Any) -> np.dtype:
    if kind != "u1":
        raise ValueError(f"an array of {kind}, not of bytes")
    return np.dtype(np.uint8)


def concatenate(parts: Sequence[Part]) -> Part:
    return Part(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


# --- images in folders ------------------------------------------------------------------------------------------


def visible_entries(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, in the same order on every platform."""
    return sorted((f for f in folder.iterdir() if not f.name.startswith(".")), key=lambda f: f.name)


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The images in each class's folder; classes and files in alphabetical order."""
    try:
        folders = [f for f in visible_entries(folder) if f.is_dir()]
        files = {f.name: [i for i in visible_entries(f) if i.suffix.lower() in IMAGE_ENDINGS] for f in folders}
    except OSError as error:
        raise FedntdError(f"{folder} cannot be listed: {error.strerror}; it must hold one folder per class") from error
    require(bool(files), f"{folder} has no folders; it must hold a folder of images for each class")
    for name, images in files.items():
        require(bool(images), f"{folder / name} has no images; remove the folder, or put images in it")
    return files


def image_folder(folder: Path) -> tuple[Part, Part, tuple[str, ...]]:
    """The training part, the test part and the class names of folder/train/<class>/* and folder/test/<class>/*.

    Images are read as grayscale if all of them are, else as RGB.
    """
    require(folder.is_dir(), f"{KEY}: there is no folder {folder}", "data.path")
    for part in ("train", "test"):
        require(
            (folder / part).is_dir(),
            f"{folder} has no folder '{part}'; {KEY} must name a folder with train/<class>/ and test/<class>/",
            "data.path",
        )
    train, test = (class_files(folder / part) for part in ("train", "test"))
    if unmatched := sorted(train.keys() ^ test.keys()):
        where = "train" if unmatched[0] in train else "test"
        raise FedntdError(f"{folder}: class '{unmatched[0]}' is only in {where}; train and test need the same classes")
    files = flat(train) + flat(test)
    with ThreadPoolExecutor() as pool:
        sizes, gray = zip(*pool.map(size_and_gray, files), strict=True)
    mode = "L" if all(gray) else "RGB"
    x_train, x_test = (decode_images(flat(part), mode, files[0], sizes[0]) for part in (train, test))
    return Part(x_train, class_labels(train)), Part(x_test, class_labels(test)), tuple(train)


def flat(files: dict[str, list[Path]]) -> list[Path]:
    return [file for images in files.values() for file in images]


def class_labels(files: dict[str, list[Path]]) -> Tensor:
    return torch.arange(len(files)).repeat_interleave(torch.tensor([len(images) for images in files.values()]))


def open_image(file: Path) -> Image.Image:
    try:
        return Image.open(file)
    except Exception as error:  # Pillow's decoders may raise anything
        raise FedntdError(f"{file} is not an image that can be read; replace or remove it") from error


def size_and_gray(file: Path) -> tuple[tuple[int, int], bool]:
    with open_image(file) as image:
        # Pillow would silently clip deeper pixels at 255.
        require(image.mode[0] not in "IF", f"{file} has more than 8 bits per pixel; save it with 8 bits")
        return image.size, image.mode in ("1", "L", "LA")


def decode_images(files: list[Path], mode: str, model: Path, size: tuple[int, int]) -> Tensor:
    """All images as [N, C, H, W]. Each must have `size` (width, height), which is that of the image `model`."""
    width, height = size
    pixels = np.empty((len(files), len(mode), height, width), np.uint8)

    def decode(start: int) -> None:
        for i, file in enumerate(files[start : start + 256], start):
            with open_image(file) as image:
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
    """The training and test images of CINIC-10, one file per image. They are cached in one file beside the folder."""
    train, test = (class_files(folder / part) for part in ("train", "test"))
    for part, files in (("train", train), ("test", test)):
        complete = list(files) == list(classes)
        require(complete, f"{folder / part} must hold the folders {', '.join(classes)} and no others; {FRESH_COPY}")
    cache = folder.absolute().with_name(folder.absolute().name + ".npz")
    fingerprint_now = fingerprint(folder, flat(train) + flat(test))
    images = read_cache(cache, fingerprint_now)
    if images is None:
        x_train, x_test = (decode_images(flat(part), "RGB", Path("CINIC-10"), (32, 32)) for part in (train, test))
        images = x_train, x_test
        write_cache(cache, fingerprint_now, images)
    return Part(images[0], class_labels(train)), Part(images[1], class_labels(test))


def fingerprint(folder: Path, files: list[Path]) -> np.ndarray:
    """A hash that changes when a file is added, removed, renamed or written to."""
    digest = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError as error:
            raise FedntdError(f"{file} cannot be read: {error.strerror}; replace or remove it") from error
        digest.update(f"{file.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return np.frombuffer(digest.digest(), np.uint8)


def read_cache(cache: Path, fingerprint_now: np.ndarray) -> tuple[Tensor, Tensor] | None:
    """The cached images; None if there are none, or if the folder has changed since."""
    try:
        with cache.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if np.array_equal(file["fingerprint"], fingerprint_now):
                return torch.from_numpy(file["train"]), torch.from_numpy(file["test"])
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        pass  # a damaged cache is harmless: the images are read again, and the cache is rewritten
    return None


def write_cache(cache: Path, fingerprint_now: np.ndarray, images: tuple[Tensor, Tensor]) -> None:
    # Without a cache, for example in a read-only folder, the next start is only slower.
    with suppress(OSError), atomic(cache) as temporary:
        np.savez(temporary, fingerprint=fingerprint_now, train=images[0].numpy(), test=images[1].numpy())


# --- .npz -------------------------------------------------------------------------------------------------------


def npz(path: Path) -> tuple[Part, Part]:
    """Read x_train, y_train, x_test and y_test: uint8 images as NHW, NHWC or NCHW, or other numbers of any shape."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    message = f"there is no file {path}; {KEY} must name an .npz file with {', '.join(keys)}"
    require(path.is_file(), message, "data.path")
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
    require(y.ndim == 1 and y.dtype.kind in "iu", f"{where} must be one integer per sample, not {y.dtype} {y.shape}")
    require(x.ndim > 0 and len(x) == len(y) > 0, f"{where} has {len(y)} labels for x_{part} of shape {list(x.shape)}")
    require(0 <= y.min() <= y.max() < len(y), f"{where} must count classes from 0, not from {y.min()} to {y.max()}")
    where = f"{path}: x_{part}"
    require(x.dtype.kind in "fiu", f"{where} must be uint8 images, floating-point or integer samples, not {x.dtype}")
    if x.dtype == np.uint8:
        x = channels_second(where, x)
    else:
        with np.errstate(over="ignore"):  # `check_part` reports values that become infinite
            x = x.astype(np.float32 if x.dtype.kind == "f" else np.int64)
    return Part(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))


def channels_second(where: str, x: np.ndarray) -> np.ndarray:
    """NHW, NHWC or NCHW images as NCHW. The channel axis is the one with at most four entries."""
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and 1 <= x.shape[axis] <= 4 for axis in (1, -1))
    require(
        first != last,
        f"{where}: uint8 images must be NHW, NHWC or NCHW with 1 to 4 channels, which {list(x.shape)} does not show",
    )
    return x if first else x.transpose(0, 3, 1, 2)
