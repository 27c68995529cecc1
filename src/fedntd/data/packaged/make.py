"""Make the packaged subset from a folder with Fashion-MNIST's four files: python -m fedntd.data.packaged.make FOLDER"""

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedntd.data.download import either
from fedntd.data.readers import idx

PER_CLASS = {"train": 600, "t10k": 200}


def first_of_each_class(labels: Tensor, count: int) -> Tensor:
    """Positions of the first `count` samples of every class, in their original order."""
    return torch.cat([torch.nonzero(labels == c)[:count, 0] for c in labels.unique()]).sort().values


def idx_bytes(values: Tensor) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.numpy().tobytes()


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:  # no name, no date
        file.write(data)
    return buffer.getvalue()


def make(source: Path, target: Path) -> None:
    for part, count in PER_CLASS.items():
        images, labels = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        chosen = first_of_each_class(idx(either(source, labels)), count)
        for name in (images, labels):
            (target / f"{name}.gz").write_bytes(zipped(idx_bytes(idx(either(source, name))[chosen])))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    make(Path(sys.argv[1]), Path(__file__).parent)
