"""The messages between the coordinator and the sites, and the checks of what arrives.

The coordinator asks and a site answers. Questions and answers are Flower messages of named records:

    question       its records                                      records of the answer
    query.hello    -                                                who: the site's `Hello`
    train          weights, shared (the broadcast), what (`Order`)  up (the method's upload), report
    evaluate       weights                                          counts: right answers and samples of each class

Trees of tensors travel as Flower's ArrayRecords with flattened names: plain arrays, no pickle.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict, UserConfig
from torch import Tensor

from fedntd import __version__, tree
from fedntd.config.schema import Config, with_own_code
from fedntd.config.toml import build, from_table
from fedntd.data.dataset import kind_of
from fedntd.engine.testing import Counts
from fedntd.errors import FedntdError, require
from fedntd.flower.privacy import CLIP_RANGE, NOISE_RANGE
from fedntd.flower.site import Samples, Site
from fedntd.tree import Tree, Weights

HELLO, TRAIN, EVALUATE = "query.hello", "train", "evaluate"


@dataclass(frozen=True)
class Settings:
    """The section [tool.flwr.app.config.flower] of an app; all other sections are those of `fedntd run`."""

    out: str = "runs/federation"  # the run folder, at the coordinator; an unfinished run in it is resumed
    min_share: float = 0.5  # share of the round's cohort that must return a valid update
    time_limit: float = 600.0  # seconds that a round waits for answers, and the first round for sites to connect
    failures: int = 3  # a site is left out after this many refused updates in succession
    max_samples: int = 10_000_000  # a site that claims more is refused
    clip: float = 0.0  # longer updates are scaled down to this Euclidean norm; 0: never
    clip_quantile: float = 0.0  # clip follows this quantile of the updates' norms, starting at `clip`; 0: it stays
    noise: float = 0.0  # differential privacy: standard deviation of the noise on the sum of updates, over clip
    delta: float = 1e-5  # differential privacy: the probability for which epsilon need not hold

    def __post_init__(self) -> None:
        require(0 < self.min_share <= 1, f"flower.min_share must be above 0 and at most 1, not {self.min_share}")
        require(self.time_limit > 0, f"flower.time_limit must be above 0 seconds, not {self.time_limit}")
        require(self.failures >= 1, f"flower.failures must be at least 1, not {self.failures}")
        require(self.max_samples >= 1, f"flower.max_samples must be at least 1, not {self.max_samples}")
        for name, value, (low, high) in (("clip", self.clip, CLIP_RANGE), ("noise", self.noise, NOISE_RANGE)):
            fits = value == 0 or low <= value <= high
            require(fits, f"flower.{name} must be 0, or from {low:g} to {high:g}, not {value}")
        require(
            0 <= self.clip_quantile < 1, f"flower.clip_quantile must be from 0 to below 1, not {self.clip_quantile}"
        )
        for name, value in (("noise", self.noise), ("clip_quantile", self.clip_quantile)):
            require(self.clip > 0 or value == 0, f"flower.{name} = {value:g} needs flower.clip: set it above 0")
        require(0 < self.delta < 1, f"flower.delta must lie between 0 and 1, not {self.delta}")


def read_settings(run_config: UserConfig) -> tuple[Config, Settings]:
    """The config and the section `flower` of an app. Flower joins the names of nested settings with dots."""
    table: dict[str, Any] = {}
    for name, value in run_config.items():
        section, dot, key = name.partition(".")
        if dot:
            table.setdefault(section, {})[key] = value
        else:
            table[section] = value
    config = from_table({k: v for k, v in table.items() if k != "flower"})
    return with_own_code(config), build(Settings, table.get("flower", {}), "flower.")


# --- trees as records -------------------------------------------------------------------------------------------


def to_record(branches: Tree) -> ArrayRecord:
    return ArrayRecord({name: leaf.detach().cpu().contiguous() for name, leaf in tree.flatten(branches).items()})


def to_tensors(record: ArrayRecord, device: torch.device) -> Weights:
    # a copy, since Flower returns a read-only view of bytes
    return {name: torch.from_numpy(array.numpy().copy()).to(device) for name, array in record.items()}


def to_tree(record: ArrayRecord, device: torch.device) -> dict[str, Any]:
    return tree.unflatten(to_tensors(record, device))


def refusal(sentence: str) -> RecordDict:
    """A site's answer if it cannot do what the coordinator asked for."""
    return RecordDict({"refusal": ConfigRecord({"sentence": sentence})})


def content(message: Message) -> RecordDict:
    """The records of an answer. Raises the site's error if it sent one instead."""
    if message.has_error():
        raise FedntdError(f"it failed: {message.error.reason}")
    if "refusal" in message.content:
        reason = message.content.config_records.get("refusal", ConfigRecord())
        raise FedntdError(str(reason.get("sentence", "it refused without a reason")))
    return message.content


# --- the first exchange -----------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """A site's description of itself, sent before it takes part."""

    number: int
    name: str
    version: str
    counts: list[int]  # samples of each class that it trains on
    classes: list[str]
    shape: list[int]  # of one sample
    weights: str  # names, shapes and types of the model's weights
    tests: bool  # whether it has held-out samples
    integers: bool  # whether its samples are integers, such as tokens

    def record(self) -> ConfigRecord:
        return ConfigRecord(self._asdict())


def hello(site: Site, samples: Samples, w: Weights) -> Hello:
    about = (samples.counts, list(samples.classes), list(samples.shape), describe(w), samples.test is not None)
    return Hello(site.number, site.name, __version__, *about, kind_of(samples.part.x) == "integers")


def describe(w: Weights) -> str:
    return json.dumps({name: [list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for name, leaf in w.items()})


def read_hello(record: ConfigRecord) -> Hello:
    try:
        received = Hello(**{name: record[name] for name in Hello._fields})  # pyright: ignore[reportArgumentType]
    except KeyError as missing:
        raise FedntdError(
            f"its first message says nothing about {missing}; is its fedntd of another version?"
        ) from None
    types = (int, str, str, list, list, list, str, bool, bool)
    fits = all(type(value) is expected for value, expected in zip(received, types, strict=True))
    if not fits or {*map(type, received.classes)} - {str} or {*map(type, received.shape)} - {int}:
        raise FedntdError("its first message cannot be read; is its fedntd of another version?")
    return received


def check_hello(found: Hello, wanted: Hello, clients: int, max_samples: int) -> None:
    """Refuse a site that would train something else. `wanted` describes the coordinator."""
    require(
        found.version == wanted.version,
        f"it runs fedntd {found.version}, the coordinator {wanted.version}; install one version at all sites",
    )
    require(0 <= found.number < clients, f"its number {found.number} is not one of 0..{clients - 1}")
    require(
        found.classes == wanted.classes,
        f"it has the classes {', '.join(found.classes)}; the federation has {', '.join(wanted.classes)}",
    )
    require(found.shape == wanted.shape, f"its samples are of shape {found.shape}, not {wanted.shape}")
    check_model(found.weights, wanted.weights)
    numbers = [n for n in found.counts if type(n) is int and n >= 0]
    require(
        len(numbers) == len(found.counts) == len(wanted.classes) and 1 <= sum(numbers) <= max_samples,
        f"its sample counts {found.counts} are not believable (at least 1 and at most {max_samples} in all)",
    )


def check_model(found: str, wanted: str) -> None:
    try:
        theirs, ours = json.loads(found), json.loads(wanted)
        first = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))[:1]
        kinds = [f"{m[name][0]} ({m[name][1]})" if name in m else "missing" for name in first for m in (theirs, ours)]
    except Exception:  # a malformed description can fail in any way
        raise FedntdError("its description of the model cannot be read") from None
    if first:
        raise FedntdError(f"it has another model: '{first[0]}' is {kinds[0]} there, {kinds[1]} at the coordinator")


# --- a round ----------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """The run and round to train, sent to a site with the weights."""

    run: str  # a site keeps a separate state for each run
    round: int
    last: int  # the last round in which an update of this site was used; its state dates from then. 0: none yet


@dataclass(frozen=True)
class Report:
    """Numbers that a site measured while it trained."""

    samples: int
    loss: float  # the local objective, mean over the steps
    seconds: float
    right: float = math.nan  # right answers of the trained model on the site's own samples, where measured
    summed_loss: float = math.nan  # and the cross-entropy, summed over them

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read_update(message: Message, like: Mapping[str, Tensor], samples: int) -> tuple[Weights, Report]:
    """A site's update and report. Checks that the update is finite, with the names, shapes and types of `like`.

    Update and `like` are flat: one tensor for each name.
    """
    records = content(message)
    try:
        arrays, numbers = records.array_records["up"], dict(records.metric_records["report"])
        report = Report(**numbers)  # pyright: ignore[reportArgumentType]
        up = to_tensors(arrays, torch.device("cpu"))
    except Exception as error:  # malformed bytes can fail in any way
        raise FedntdError(f"its answer cannot be read: {error}") from error
    check_update(up, like)
    check_report(report, samples)
    return up, report


def check_update(up: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    for name, wanted in like.items():
        require(name in up, f"the tensor '{name}' is missing in its update")
        found = up[name]
        require(
            found.shape == wanted.shape,
            f"the tensor '{name}' in its update is of shape {list(found.shape)}, not {list(wanted.shape)}",
        )
        require(found.dtype == wanted.dtype, f"the tensor '{name}' in its update is {found.dtype}, not {wanted.dtype}")
        require(bool(found.isfinite().all()), f"the tensor '{name}' in its update is not finite (NaN or infinite)")
    if unknown := up.keys() - like.keys():
        raise FedntdError(f"the tensor '{min(unknown)}' in its update is not one of this method")


def check_report(report: Report, samples: int) -> None:
    require(
        type(report.samples) is int and report.samples == samples,
        f"it says that it trained on {report.samples} samples, but it has {samples}",
    )
    numbers, measured = (report.loss, report.seconds), (report.right, report.summed_loss)
    require(
        all(isinstance(n, float) and math.isfinite(n) for n in numbers), f"its loss or time is not a number: {numbers}"
    )
    require(all(isinstance(n, float) for n in measured), f"what it measured is not numbers: {measured}")
    require(
        math.isnan(report.right) or 0 <= report.right <= samples,
        f"it says that its model got {report.right:g} of its {samples} samples right",
    )


def read_counts(message: Message, classes: int, max_samples: int) -> Counts:
    try:
        counts = content(message).config_records["counts"]
        numbers = (counts["correct"], counts["total"], counts["loss"])
        correct, total, loss = (torch.tensor(n, dtype=torch.float64) for n in numbers)
    except FedntdError:
        raise
    except Exception as error:  # malformed bytes can fail in any way
        raise FedntdError(f"its counts cannot be read: {error}") from error
    shapes = correct.shape == total.shape == (classes,) and loss.shape == ()
    in_range = shapes and 1 <= total.sum() <= max_samples and loss.isfinite()
    require(bool(in_range and (correct >= 0).all() and (correct <= total).all()), "its counts are not believable")
    return Counts(correct, total, loss)
