"""The data folder: the contents and files of each dataset, where they are published, downloading and checking them.

pooch does the downloading. It is imported only when something is fetched.
"""

import gzip
import hashlib
import importlib.util
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from fedntd.errors import FedntdError, require, require_known


class Source(NamedTuple):
    """A published file."""

    file: str
    size: int  # in bytes
    checksum: str  # of the downloaded file, as its publisher states it
    urls: tuple[str, ...]  # tried in turn


MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
CIFAR = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
CINIC = (
    "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
)
GZIP = b"\x1f\x8b"
CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class DatasetSummary(NamedTuple):
    """The size of a dataset, known without reading it: numbers of samples and classes, and a sample's shape."""

    train: int
    test: int
    classes: int
    shape: tuple[int, int, int]


SUMMARIES = {
    "fashion-mini": DatasetSummary(6_000, 2_000, 10, (1, 28, 28)),
    "mnist": DatasetSummary(60_000, 10_000, 10, (1, 28, 28)),
    "fashion-mnist": DatasetSummary(60_000, 10_000, 10, (1, 28, 28)),
    "cifar10": DatasetSummary(50_000, 10_000, 10, (3, 32, 32)),
    "cifar100": DatasetSummary(50_000, 10_000, 100, (3, 32, 32)),
    "cinic10": DatasetSummary(90_000, 90_000, 10, (3, 32, 32)),
}


def source(file: str, size: int, checksum: str, folders: tuple[str, ...]) -> Source:
    """A file that is published under the same name in several folders."""
    return Source(file, size, checksum, tuple(folder + file for folder in folders))


SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        source("train-images-idx3-ubyte.gz", 9_912_422, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873", MNIST),
        source("train-labels-idx1-ubyte.gz", 28_881, "md5:d53e105ee54ea40749a09fcbcd1e9432", MNIST),
        source("t10k-images-idx3-ubyte.gz", 1_648_877, "md5:9fb629c4189551a2d022fa330f9573f3", MNIST),
        source("t10k-labels-idx1-ubyte.gz", 4_542, "md5:ec29112dd5afa0611ce80d1b7f02629c", MNIST),
    ),
    "fashion-mnist": (
        source("train-images-idx3-ubyte.gz", 26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d", FASHION),
        source("train-labels-idx1-ubyte.gz", 29_515, "md5:25c81989df183df01b3e8a0aad5dffbe", FASHION),
        source("t10k-images-idx3-ubyte.gz", 4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79", FASHION),
        source("t10k-labels-idx1-ubyte.gz", 5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310", FASHION),
    ),
    "cifar10": (source("cifar-10-binary.tar.gz", 170_052_171, "md5:c32a1d4ab5d03f1284b67883e8d87530", CIFAR),),
    "cifar100": (source("cifar-100-binary.tar.gz", 168_513_733, "md5:03b5dce01913d631647c71ecec9e9cb8", CIFAR),),
    "cinic10": (Source("CINIC-10.tar.gz", 687_544_992, "md5:6ee4d0c996905fe93221de577967a372", CINIC),),
}


def idx_files(*checksums: str) -> dict[str, dict[str, str]]:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {"": {f"{stem}-ubyte": f"sha256:{c}" for stem, c in zip(stems, checksums, strict=True)}}


# dataset -> folder (the files may also lie one level up) -> file -> checksum. Checksums are of the unpacked bytes,
# because copies of a file may be gzipped differently. Training files come first, the test file last.
FILES: dict[str, dict[str, dict[str, str]]] = {
    "fashion-mini": idx_files(
        "cf313073c7eb485392848071d5c433571d7166043e971e3345b095cc30518084",
        "097b93fbcf9bd5bc648b1a457ddc55c9e4ab49afb33f9ecae8ce068399a75e3a",
        "15a92dd1e9b16ea361928086e77df4dfa890c255c00b5a8c8162c1040ce8eef1",
        "234596aeb6eb48133ec99a62541f90bc0728c9559a681f1e0638037462458f2c",
    ),
    "mnist": idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "cifar10": {
        "cifar-10-batches-bin": {
            "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        "cifar-10-batches-py": {
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        },
    },
    "cifar100": {
        "cifar-100-binary": {
            "train.bin": "sha256:f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
        },
        "cifar-100-python": {
            "train": "md5:16019d7e3df5f24257cddd939b257f8d",
            "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    },
    # CINIC-10 publishes no checksums of its 270,000 files, so the images of each class are counted instead.
    "cinic10": {
        "CINIC-10": {f"{part}/{name}": "images:9000" for part in ("train", "valid", "test") for name in CINIC_CLASSES}
    },
}


def data_folder() -> Path:
    """The folder FEDNTD_DATA, or else the platform's folder for a user's data."""
    if folder := os.environ.get("FEDNTD_DATA"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "fedntd"


def folder_of(name: str) -> Path:
    return Path(str(resources.files("fedntd.data") / "packaged")) if name == "fashion-mini" else data_folder() / name


# --- finding and checking files ---------------------------------------------------------------------------------


def either(folder: Path, name: str) -> Path:
    """The path of a file, or of its gzipped copy if there is one."""
    zipped = folder / f"{name}.gz"
    return zipped if zipped.exists() else folder / name


def present(name: str, root: Path) -> list[tuple[Path, dict[str, str]]]:
    """The folders in or below `root` that hold at least one file of the dataset, with all files expected there."""
    folders = []
    for subfolder, files in FILES[name].items():
        for folder in dict.fromkeys((root / subfolder, root)):
            if any(either(folder, file).exists() for file in files):
                folders.append((folder, files))
                break
    return folders


def check(name: str, root: Path | None = None) -> dict[str, str]:
    """The state of each file of a dataset: "ok", "missing" or "damaged"."""
    require_known(name, FILES, f"dataset '{name}' has no checksums")
    root = root or folder_of(name)
    subfolder, files = next(iter(FILES[name].items()))
    return {
        either(folder, file).relative_to(root).as_posix(): state(either(folder, file), checksum)
        for folder, files in present(name, root) or [(root / subfolder, files)]
        for file, checksum in files.items()
    }


def state(path: Path, checksum: str) -> str:
    if not path.exists():
        return "missing"
    algorithm, _, expected = checksum.partition(":")
    try:
        if algorithm == "images":
            actual = str(sum(1 for file in path.iterdir() if file.suffix == ".png"))
        else:
            with path.open("rb") as file:
                zipped = file.read(2) == GZIP
            with gzip.open(path) if zipped else path.open("rb") as file:
                actual = hashlib.file_digest(file, algorithm).hexdigest()  # pyright: ignore[reportArgumentType]
    except (OSError, EOFError, zlib.error):
        return "damaged"
    return "ok" if actual == expected else "damaged"


# --- downloading ------------------------------------------------------------------------------------------------


def fetch(name: str, say: Callable[[str], None] = print) -> Path:
    """Download the dataset's files into the data folder, except those that are there and intact."""
    require_known(name, SOURCES, f"'{name}' is not a dataset that can be fetched")
    folder = data_folder() / name
    states = check(name)
    if set(states.values()) == {"ok"}:
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for wanted in SOURCES[name]:
            if "ok" not in (states.get(wanted.file), states.get(wanted.file.removesuffix(".gz"))):
                say(f"{name}: {wanted.file}, {max(wanted.size / 1e6, 0.1):.1f} MB")
                install(name, wanted, folder)
    except OSError as error:
        raise FedntdError(f"{folder} cannot be written: {error}; FEDNTD_DATA can name another data folder") from error
    return folder


def install(name: str, wanted: Source, folder: Path) -> None:
    """Download, unpack and check a file in a temporary folder, and only then move its contents into `folder`."""
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as temporary:
        fresh = Path(temporary, "fresh")
        fresh.mkdir()
        archive = download(name, wanted, Path(temporary))
        if wanted.file.endswith(".tar.gz"):
            unpack(archive, fresh)
        else:
            archive.rename(fresh / wanted.file).chmod(0o644)  # only its owner can read a temporary file
        states = check(name, fresh).values()
        require(
            "ok" in states and "damaged" not in states,
            f"{wanted.file} was downloaded completely, but its contents have a wrong checksum; nothing was changed",
        )
        for item in fresh.iterdir():
            target = folder / item.name
            if target.is_dir():  # a folder cannot be replaced in one step; the old one is deleted with `temporary`
                target.rename(Path(temporary, f"old-{item.name}"))
            item.replace(target)


def download(name: str, wanted: Source, folder: Path) -> Path:
    """Try the mirror (FEDNTD_MIRROR), then the publishers, until one sends a file with the right checksum."""
    try:
        import pooch
    except ImportError:
        raise FedntdError("downloading needs a package that is not installed; run: pip install pooch") from None
    pooch.get_logger().setLevel("ERROR")
    bar = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None
    downloader: Any = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**18)
    mirror = os.environ.get("FEDNTD_MIRROR", "").rstrip("/")
    failures = []
    for url in ((f"{mirror}/{name}/{wanted.file}",) if mirror else ()) + wanted.urls:
        try:
            return Path(pooch.retrieve(url, wanted.checksum, wanted.file, folder, downloader=downloader))
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {reason(error)}")
    raise FedntdError(
        f"{wanted.file} could not be downloaded ({'; '.join(failures)}); try again later, or set FEDNTD_MIRROR to the "
        f"address of a folder that has {name}/{wanted.file}"
    )


def reason(error: Exception) -> str:
    """Why a download failed."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answers {response.status_code} {response.reason}"
    if not isinstance(error, OSError):
        return "the file it sends has a wrong checksum"
    return error.strerror or f"no connection, or it was cut ({type(error).__name__})"


def unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(folder, filter="data")  # refuses paths and links that lead out of the folder
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise FedntdError(f"{archive.name} cannot be unpacked: {error}; nothing was changed") from error
