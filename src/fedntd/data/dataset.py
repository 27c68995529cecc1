"""A dataset in memory: samples and labels of a training and a test part, and how they are shown to a model."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedntd.data.augment import Augment
from fedntd.errors import FedntdError, require


class Part(NamedTuple):
    x: Tensor  # uint8 images [N, channel, height, width], or float samples of any shape, used as they are
    y: Tensor  # int64 [N]


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Part
    test: Part
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()  # of the pixels scaled to 0..1, one a channel; for uint8 images only
    std: tuple[float, ...] = ()
    augment: Augment | None = None

    def __post_init__(self) -> None:
        for name, part in (("training", self.train), ("test", self.test)):
            where = f"dataset '{self.name}', {name} part"
            check_part(where, part, self.classes, self.mean, self.std)
            counts = torch.bincount(part.y, minlength=len(self.classes))
            if not counts.all():
                empty = int(counts.argmin())
                raise FedntdError(
                    f"{where}: class {empty} ('{self.classes[empty]}') has no samples; remove the class or add samples"
                )
        check_kinds(f"dataset '{self.name}'", self.train.x, self.test.x, self.augment)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.train.x.shape[1:])


def check_kinds(where: str, train: Tensor, test: Tensor, augment: Augment | None) -> None:
    """Both parts have samples of one kind, and one that can be augmented as is asked for."""
    require(
        train.shape[1:] == test.shape[1:] and (train.dtype == torch.uint8) == (test.dtype == torch.uint8),
        f"{where}: training samples are {list(train.shape[1:])} of {train.dtype}, test samples "
        f"{list(test.shape[1:])} of {test.dtype}; they must be of one kind",
    )
    shape = list(train.shape[1:])
    require(augment is None or len(shape) == 3, f"{where}: only images can be augmented, not samples of shape {shape}")


def check_part(
    where: str, part: Part, classes: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """One sentence about samples that cannot be used, with `where` at its head."""
    x, y = part
    require(len(x) == len(y), f"{where}: {len(x)} samples but {len(y)} labels")
    require(len(x) > 0, f"{where}: there are no samples")
    require(y.ndim == 1, f"{where}: labels must be one number a sample, not {list(y.shape[1:])}")
    require(y.dtype == torch.int64, f"{where}: labels must be int64, not {y.dtype}")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise FedntdError(f"{where}: samples must be uint8 images or floating-point, not {x.dtype}")
    require(
        bool(y.min() >= 0) and int(y.max()) < len(classes),
        f"{where}: labels run from {int(y.min())} to {int(y.max())}, but must lie in "
        f"0..{len(classes) - 1} for {len(classes)} classes",
    )
    if x.is_floating_point():
        require(bool(x.isfinite().all()), f"{where}: some samples are not finite (NaN or infinite)")
        return
    require(x.ndim == 4, f"{where}: uint8 images must be [N, channel, height, width], not {list(x.shape)}")
    channels = x.shape[1]
    require(
        len(mean) == len(std) == channels,
        f"{where}: images have {channels} channels, but there are {len(mean)} means and {len(std)} standard deviations",
    )


def from_tensors(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: tuple[str, ...] | None = None,
    augment: Augment | None = None,
) -> Dataset:
    """A dataset from tensors in memory. Mean and std of uint8 images are measured on the training part."""
    mean = std = ()
    x = train[0]
    if x.dtype == torch.uint8 and x.ndim == 4:
        # integer sums are exact, and no float copy of the whole set is made
        count = x.numel() / x.shape[1]
        first = x.sum((0, 2, 3), dtype=torch.int64).double() / count
        second = torch.stack([(x[:, c].int() ** 2).sum(dtype=torch.int64) for c in range(x.shape[1])]).double() / count
        mean = tuple((first / 255).tolist())
        std = tuple(((second - first**2).clamp(min=1).sqrt() / 255).tolist())
    for part, (_, y) in (("training", train), ("test", test)):
        require(y.numel() > 0, f"dataset '{name}', {part} part: there are no samples")
    if classes is None:
        classes = tuple(str(c) for c in range(int(max(train[1].max(), test[1].max())) + 1))
    return Dataset(name, Part(*train), Part(*test), classes, mean, std, augment)


def first_samples(dataset: Dataset, count: int) -> Dataset:
    """The dataset with only the first `count` training samples."""
    available = len(dataset.train.y)
    require(
        count <= available,
        f"data.train_size = {count} is more than the {available} training samples of '{dataset.name}'",
    )
    return replace(dataset, train=Part(dataset.train.x[:count], dataset.train.y[:count]))
