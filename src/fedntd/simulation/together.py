"""Trains one run or several at once to the end, each with its own run folder.

Runs of one shape are trained in one vectorised step, as one larger cohort. They may differ in seeds, partitions,
learning rates and other numbers, but not in the computation.
"""

import gc
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedntd.config.schema import Config, with_own_code
from fedntd.data.dataset import Dataset
from fedntd.engine.devices import choose_device
from fedntd.errors import Diverged, FedntdError, require
from fedntd.runs.record import Record, RunFolder, State, as_begun, or_anew, read_own
from fedntd.simulation.federation import Federation, play_together
from fedntd.simulation.sharing import set_varying, shape
from fedntd.support.interrupts import uninterrupted


def federate(
    config: Config,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    auxiliary: Dataset | Tensor | None = None,
) -> Generator[Record]:
    """Train a run, and yield the record of each round.

    With `out`, a run folder is written there; `resume` continues the run in that folder. `dataset`, `model` and
    `auxiliary` are used instead of those that the config names.
    """
    folder = None if out is None else Path(out)
    for _, outcome in train({0: config}, {0: folder}, {0: resume}, dataset, model, auxiliary):
        if isinstance(outcome, FedntdError):
            raise outcome
        yield outcome


def federate_together(
    configs: Sequence[Config],
    outs: Sequence[Path | None] | None = None,
    resume: bool = False,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    auxiliary: Dataset | Tensor | None = None,
    keep_clients: bool = True,
) -> Generator[tuple[int, Record | FedntdError]]:
    """Train many runs, those of one shape together if the engine can.

    Yields (i, record) after each round of run i, or (i, error) if run i has failed, while the others continue.

    Each run has its own run folder in `outs`, with the same records as if it were trained alone, except that `seconds`
    are its share of the round's time. `resume` continues the runs whose folders exist, and starts the others. Without
    `keep_clients`, the last checkpoint of a finished run leaves out the clients' states. They can be a hundred times as
    large as the rest, and are needed only to train further rounds. Runs that do not fit into memory together continue
    in smaller groups, if they have folders to continue from.
    """
    configs, outs = [with_own_code(config) for config in configs], outs or [None] * len(configs)
    begun = [as_begun(config, out) if resume and out else config for config, out in zip(configs, outs, strict=True)]
    shapes = [shape(config) for config in begun]
    order = sorted(range(len(configs)), key=lambda i: (shapes[i], i))
    for _, alike in groupby(order, key=shapes.__getitem__):
        members = list(alike)
        groups = [members] if in_one_step(configs[members[0]]) else [[i] for i in members]
        resuming = resume
        while groups:
            group = groups.pop(0)
            resumed = {i: resuming and (out := outs[i]) is not None and (out / "config.toml").is_file() for i in group}
            group_configs, folders = {i: configs[i] for i in group}, {i: outs[i] for i in group}
            left = yield from train_what_fits(group_configs, folders, resumed, dataset, model, auxiliary, keep_clients)
            if left:  # two groups of half the size continue from the run folders
                resuming, middle = True, len(left) // 2
                groups[:0] = [left[:middle], left[middle:]]


def train_what_fits(
    configs: dict[int, Config], outs: dict[int, Path | None], *rest: Any
) -> Generator[tuple[int, Record | FedntdError], None, list[int]]:
    """`train`, until memory runs out. Returns the unfinished runs, to be continued in smaller groups.

    If they cannot be continued (a single run, or one without a folder), they fail, and the list is empty.
    """
    left, too_many = set(configs), False
    try:
        for i, outcome in train(configs, outs, *rest):
            if isinstance(outcome, FedntdError) or outcome.round == configs[i].federation.rounds:
                left.discard(i)
            yield i, outcome
    except torch.OutOfMemoryError:
        too_many = True
    # outside of `except`, where the error still holds references to tensors
    if in_one_step(next(iter(configs.values()))):
        gc.collect()  # the engine is part of a reference cycle, and holds memory that the next group needs
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if not too_many:
        return []
    if len(left) > 1 and all(outs[i] is not None for i in left):
        return sorted(left)
    for i in sorted(left):
        yield i, FedntdError("the device's memory does not hold this training; fewer clients or runs may fit")
    return []


def in_one_step(config: Config) -> bool:
    """Whether runs with this config are trained by the vectorised engine, unless the network prevents it."""
    return config.engine == "vectorised" or (config.engine == "auto" and choose_device(config).type == "cuda")


@dataclass
class Member:
    """A run in a group of runs that are trained together."""

    index: int
    run: Federation
    folder: RunFolder | None


def train(
    configs: dict[int, Config],
    outs: dict[int, Path | None],
    resume: dict[int, bool],
    dataset: Dataset | None,
    model: nn.Module | None,
    auxiliary: Dataset | Tensor | None,
    keep_clients: bool = True,
) -> Generator[tuple[int, Record | FedntdError]]:
    """Train runs of one shape together, until each has finished or failed."""
    with ExitStack() as open_folders:
        going: list[Member] = []
        for i, config in configs.items():
            try:
                share_with, out = going[0].run if going else None, outs[i]
                begun = as_begun(config, out) if out and resume[i] else config
                run = Federation(begun, dataset, model, share_with, len(configs) > 1, auxiliary)
                asked = replace(run.config, precision=config.precision)
                folder = None if out is None else open_folders.enter_context(RunFolder(out, asked, resume[i]))
                member = Member(i, run, folder)
                start(member)
                going.append(member)
            except FedntdError as error:
                yield i, error
        set_varying([member.run for member in going])
        pace = Pace(min((config.checkpoint_seconds for config in configs.values()), default=0))
        try:
            while going := [member for member in going if not member.run.finished]:
                played = [result for sharing in by_engine(going) for result in play_round(sharing)]
                # write all outcomes before the first one is yielded, when the caller may stop
                with pace.writing() as save:
                    outcomes = [(m, write_down(m, outcome, save, keep_clients)) for m, outcome in played]
                going = [m for m, outcome in outcomes if isinstance(outcome, Record)]
                for member, outcome in outcomes:
                    yield member.index, outcome
        finally:  # also if the runs are interrupted, so that no finished round is lost
            with uninterrupted():
                for member in going:
                    if member.folder:
                        member.folder.save(member.run.state)


def by_engine(members: list[Member]) -> list[list[Member]]:
    """Group the members by their engine. Each group is trained in one step."""
    sharing: dict[int, list[Member]] = {}
    for member in members:
        sharing.setdefault(id(member.run.engine), []).append(member)
    return list(sharing.values())


def play_round(members: list[Member]) -> list[tuple[Member, Record | Diverged]]:
    return list(zip(members, play_together([member.run for member in members]), strict=True))


def start(member: Member) -> None:
    """Start the run folder of a member, after restoring the run from it if it is resumed."""
    run, folder = member.run, member.folder
    if folder is None:
        return
    # on the host, because the states of all clients may not fit on the device
    checkpoint = folder.restore(torch.device("cpu")) if folder.resume else None
    if checkpoint:
        check_same_data_and_model(run, folder.path, checkpoint[0])
        run.restore(*checkpoint)
    engine = type(run.engine).__name__.lower()
    folder.start(run.dataset.classes, run.counts, run.device, run.precision, engine)
    if run.finished:
        folder.put_status("finished")


def check_same_data_and_model(run: Federation, path: Path, state: State) -> None:
    """Check that a resumed run has its old data and model. The config has their names only, and a file may have changed
    or another object may have the same name."""
    partition = read_own(path / "partition.json")
    has_counts = isinstance(partition, dict) and "counts" in partition
    require(has_counts, f"{path}/partition.json is damaged: it has no counts; {or_anew(path)}")
    require(
        partition["counts"] == run.counts.tolist(),
        f"{path} was run on other data: its clients had other numbers of samples; "
        f"resume it with the data it began with, or choose another --out",
    )
    old_shapes, new_shapes = ({name: leaf.shape for name, leaf in w.items()} for w in (state.w, run.state.w))
    require(
        old_shapes == new_shapes,
        f"{path} was run with another model: its weights have other names or shapes; "
        f"resume it with the model it began with, or choose another --out",
    )


@dataclass
class Pace:
    """When the runs of a group write their checkpoints: all in the same round, `seconds` after the last time.

    They wait longer if writing would otherwise take more than a twentieth of the time. With 0 seconds they write in
    every round.
    """

    seconds: float

    def __post_init__(self) -> None:
        self.due = time.monotonic() + self.seconds

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Time the writing of a round. Yields whether checkpoints are due."""
        began = time.monotonic()
        save = began >= self.due
        yield save
        if save:
            ended = time.monotonic()
            self.due = ended + (max(self.seconds, 20 * (ended - began)) if self.seconds else 0)


def write_down(member: Member, outcome: Record | Diverged, save: bool, keep_clients: bool) -> Record | FedntdError:
    """Write a round's outcome to the run folder. Returns the outcome, or the error if it cannot be written."""
    run, folder = member.run, member.folder
    if folder is None:
        return outcome
    failed = isinstance(outcome, Diverged)
    try:
        if not failed:
            folder.append(outcome)
        folder.put_notes(run.engine.notes)
        if failed or run.finished or save:
            folder.save(run.state, keep_clients or failed or not run.finished)
        if failed or run.finished:
            folder.put_status("failed" if failed else "finished", str(outcome) if failed else "")
    except FedntdError as error:
        return error
    return outcome
