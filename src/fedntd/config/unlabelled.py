"""Unlabelled samples that belong to no client, for methods whose server learns from them."""

import torch
from torch import Tensor

from fedntd.config.registry import target
from fedntd.config.schema import Config
from fedntd.data.dataset import Dataset, Part, kind_of
from fedntd.data.datasets import load
from fedntd.errors import FedntdError, require


def unlabelled(config: Config, owned: Tensor, given: Dataset | Tensor | None = None) -> Part:
    """The samples that the section `auxiliary` names, or those `given` in Python. Their labels are discarded.

    The last samples of the dataset's training part are used, so that the clients can own the first ones
    (`data.train_size`). `owned` are the clients' samples.
    """
    wanted = config.auxiliary
    require(
        given is not None or wanted.name != "",
        f"algorithm '{config.algorithm.name}' learns from samples that belong to no client; "
        f"name their dataset in auxiliary.name",
    )
    x = given if isinstance(given, Tensor) else (given or load_auxiliary(config)).train.x
    count = wanted.samples or len(x)
    require(0 < count <= len(x), f"= {count}, but there are only {len(x)} of them", "auxiliary.samples")
    used = len(owned)
    require(
        given is not None
        or (wanted.name, wanted.path) != (config.data.name, config.data.path)
        or used + count <= len(x),
        f"auxiliary.name = '{wanted.name}' is the clients' own dataset: they have the first {used} of its {len(x)} "
        f"training samples, so {count} cannot be auxiliary; lower data.train_size or auxiliary.samples",
    )
    require(
        x.shape[1:] == owned.shape[1:] and kind_of(x) == kind_of(owned),
        f"auxiliary samples are {list(x.shape[1:])} of {x.dtype}, but the clients' are {list(owned.shape[1:])} "
        f"of {owned.dtype}",
    )
    return Part(x[-count:], torch.zeros(count, dtype=torch.int64))


def load_auxiliary(config: Config) -> Dataset:
    try:
        return load(target("auxiliary", config.auxiliary.name), config.auxiliary.path, augment=False, train_size=0)
    except FedntdError as error:  # a loader's errors name the section "data"
        raise error.in_section("auxiliary") from None
