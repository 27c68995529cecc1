"""A site of a real federation, and the samples of a site or of the coordinator."""

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

    number: int  # from 0 to federation.clients - 1: determines its batches and the rounds in which it trains
    node: Mapping[str, str | int | float | bool]  # the --node-config of its flower-supernode
    config: Config

    @property
    def name(self) -> str:
        return str(self.node.get("name", f"site {self.number}"))


@dataclass(frozen=True)
class Samples:
    """Labelled samples with their classes, normalisation and augmentation, which must be the same at all sites."""

    part: Part  # at a site: training samples; at the coordinator: test samples
    classes: tuple[str, ...]  # of the whole federation; a site need not have samples of all
    mean: tuple[float, ...] = ()  # of the pixels scaled to 0..1, one per channel; for uint8 images only
    std: tuple[float, ...] = ()
    augment: Augment | None = None
    test: Part | None = None  # a site's held-out samples, used if the coordinator has no test set

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
        """Number of samples of each class."""
        return torch.bincount(self.part.y, minlength=len(self.classes)).tolist()


def site_number(node: Mapping[str, object], clients: int) -> int:
    """The site's number from its --node-config. Flower's simulation engine numbers its nodes by itself."""
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
    """This site's share of the configured dataset, dealt as `fedntd run` does. For trying things out."""
    dataset = load_dataset(site.config)
    owned = torch.from_numpy(deal(site.config, dataset.train.y.numpy())[site.number])
    part = Part(dataset.train.x[owned], dataset.train.y[owned])
    return Samples(part, dataset.classes, dataset.mean, dataset.std, dataset.augment)


def held_out(config: Config) -> Samples:
    """The test part of the configured dataset, in the order in which `fedntd run` tests."""
    dataset = load_dataset(config)
    order = torch.from_numpy(generator(0, "test order").permutation(len(dataset.test.y)))
    part = Part(dataset.test.x[order], dataset.test.y[order])
    return Samples(part, dataset.classes, dataset.mean, dataset.std)
