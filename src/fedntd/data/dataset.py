"""A dataset in memory: a training and a test part, class names, normalisation and augmentation."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedntd.data.augment import Augment
from fedntd.errors import FedntdError, require


class Part(NamedTuple):
    """Samples and their labels: the training or the test part of a dataset."""

    x: Tensor  # uint8 images [N, channel, height, width]; or float or int64 samples of any shape, not normalised
    y: Tensor  # int64 [N]


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with labels, class names, normalisation and augmentation."""

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()  # of the pixels scaled to 0..1, one per channel; for uint8 images only
    std: tuple[float, ...] = ()
    augment: Augment | None = None

    def __post_init__(self) -> None:
        check_kinds(f"dataset '{self.name}'", self.train.x, self.test.x, self.augment)
        for name, part in (("training", self.train), ("test", self.test)):
            where = f"dataset '{self.name}', {name} part"
            check_part(where, part, self.classes, self.mean, self.std)
            counts = torch.bincount(part.y, minlength=len(self.classes))
            if not counts.all():
                empty = int(counts.argmin())
                raise FedntdError(
                    f"{where}: class {empty} ('{self.classes[empty]}') has no samples; labels must count the classes "
                    f"from 0, and each class needs samples in both parts"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])


def kind_of(x: Tensor) -> str:
    return "images" if x.dtype == torch.uint8 else "numbers" if x.is_floating_point() else "integers"


def check_kinds(where: str, train: Tensor, test: Tensor, augment: Augment | None) -> None:
    """Check that both parts hold samples of one kind, and that these can be augmented if `augment` is given."""
    require(
        train.shape[1:] == test.shape[1:] and kind_of(train) == kind_of(test),
        f"{where}: training samples are {list(train.shape[1:])} of {train.dtype}, test samples "
        f"{list(test.shape[1:])} of {test.dtype}; they must be of one kind",
    )
    require(
        augment is None or train.dtype == torch.uint8,
        f"{where}: only uint8 images can be augmented, not samples of {train.dtype}",
    )


def check_part(
    where: str, part: Part, classes: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """Check that samples and labels can be used. Errors begin with `where`."""
    x, y = part
    require(len(x) == len(y), f"{where}: {len(x)} samples but {len(y)} labels")
    require(len(x) > 0, f"{where}: there are no samples")
    require(y.ndim == 1, f"{where}: labels must be one number per sample, not {list(y.shape[1:])}")
    require(y.dtype == torch.int64, f"{where}: labels must be int64, not {y.dtype}; y.long() makes them so")
    require(
        x.dtype in (torch.uint8, torch.int64) or x.is_floating_point(),
        f"{where}: samples must be uint8 images, floating-point or int64, not {x.dtype}",
    )
    non_text = [c for c in classes if not isinstance(c, str)]
    require(
        not non_text, f"{where}: classes are named by text, not by {non_text[:1]}; map(str, ...) makes names of them"
    )
    require(
        bool(y.min() >= 0) and int(y.max()) < len(classes),
        f"{where}: labels run from {int(y.min())} to {int(y.max())}, but must lie in "
        f"0..{len(classes) - 1} for {len(classes)} classes",
    )
    if x.is_floating_point():
        finite = x.isfinite().reshape(len(x), -1).all(1)
        require(
            bool(finite.all()),
            f"{where}: sample {int(finite.int().argmin())} is not finite (NaN or infinite); "
            f"fill in or leave out such values",
        )
    if x.dtype != torch.uint8:
        return
    require(x.ndim == 4, f"{where}: uint8 images must be [N, channel, height, width], not {list(x.shape)}")
    channels = x.shape[1]
    require(
        not channels > 4 >= x.shape[3],
        f"{where}: images of shape {list(x.shape[1:])} seem to have their channels last; "
        f"they must be [N, channel, height, width], as x.permute(0, 3, 1, 2) makes them",
    )
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
    """A dataset from tensors in memory: `train` and `test` are pairs of samples and labels.

    Mean and std of uint8 images are measured on the training part. Classes are named "0", "1", ... by default.
    """
    for part, pair in (("training", train), ("test", test)):
        for noun, values in zip(("samples", "labels"), pair, strict=True):
            require(
                isinstance(values, Tensor),
                f"dataset '{name}', {part} part: {noun} must be a tensor, not {type(values).__name__}; "
                f"torch.as_tensor makes one",
            )
    mean = std = ()
    x = train[0]
    if x.dtype == torch.uint8 and x.ndim == 4:
        # Integer sums are exact, and avoid a float copy of the whole dataset.
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
    """The same dataset with only the first `count` training samples."""
    available = len(dataset.train.y)
    require(
        count <= available,
        f"data.train_size = {count} is more than the {available} training samples of '{dataset.name}'",
    )
    try:
        return replace(dataset, train=Part(dataset.train.x[:count], dataset.train.y[:count]))
    except FedntdError as error:  # the first samples may lack a class
        raise FedntdError(f"data.train_size = {count}: {error}") from error
