"""What a site or the coordinator of a real federation says about itself: its number, its settings, its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fedntd.config.build import deal, load_dataset
from fedntd.config.schema import Config
from fedntd.data.augment import Augment
from fedntd.data.dataset import Part, check_kinds, check_part
from fedntd.errors import FedntdError, require
from fedntd.rng import generator


class Site(NamedTuple):
    """One site, as its own process sees it."""

    number: int  # from 0 to federation.clients - 1: decides its batches, and when it is asked to train
    node: Mapping[str, str | int | float | bool]  # what its flower-supernode was given as --node-config
    config: Config

    @property
    def name(self) -> str:
        return str(self.node.get("name", f"site {self.number}"))


@dataclass(frozen=True)
class Samples:
    """Labelled samples, and how a model sees them, which must be the same at all sites."""

    part: Part  # at a site: what it trains on; at the coordinator: what the global model is tested on
    classes: tuple[str, ...]  # of the whole federation; a site need not have samples of all
    mean: tuple[float, ...] = ()  # of the pixels scaled to 0..1, one a channel; for uint8 images only
    std: tuple[float, ...] = ()
    augment: Augment | None = None
    test: Part | None = None  # a site's held-out samples, used where the coordinator has no test set

    def __post_init__(self) -> None:
        for where, part in (("the samples", self.part), ("the held-out samples", self.test)):
            if part is not None:
                check_part(where, part, self.classes, self.mean, self.std)
        check_kinds("the samples", self.part.x, (self.test or self.part).x, self.augment)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.part.x.shape[1:])

    @property
    def counts(self) -> list[int]:
        """Of each class."""
        return torch.bincount(self.part.y, minlength=len(self.classes)).tolist()


def site_number(node: Mapping[str, object], clients: int) -> int:
    """Flower's simulation numbers its nodes by itself; a real site is told its number when it is started."""
    number = node.get("partition-id")
    if number is None:
        raise FedntdError("the site has no number; start flower-supernode with --node-config 'partition-id=0'")
    if not isinstance(number, int) or isinstance(number, bool):
        raise FedntdError(f"partition-id = {number!r} in --node-config must be a whole number")
    require(
        0 <= number < clients, f"partition-id = {number} is not a site of this federation, which has 0..{clients - 1}"
    )
    return number


def dealt(site: Site) -> Samples:
    """This site's share of the dataset that the settings name, dealt as `fedntd run` does: for trying things out."""
    dataset = load_dataset(site.config)
    owned = torch.from_numpy(deal(site.config, dataset.train.y.numpy())[site.number])
    part = Part(dataset.train.x[owned], dataset.train.y[owned])
    return Samples(part, dataset.classes, dataset.mean, dataset.std, dataset.augment)


def held_out(config: Config) -> Samples:
    """The test part of the dataset that the settings name, in the order in which `fedntd run` tests."""
    dataset = load_dataset(config)
    order = torch.from_numpy(generator(0, "test order").permutation(len(dataset.test.y)))
    part = Part(dataset.test.x[order], dataset.test.y[order])
    return Samples(part, dataset.classes, dataset.mean, dataset.std)
