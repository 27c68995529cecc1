"""The round loop: config → data → partition → cohort → plan → local training → aggregation → metrics → record."""

import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedntd import plan, tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context
from fedntd.config import Config, call, target
from fedntd.data.dataset import Dataset, Part
from fedntd.data.datasets import load
from fedntd.data.device import DevicePart
from fedntd.data.partition import Indices, class_counts
from fedntd.engines import Sequential, Task, Trained, seeded
from fedntd.errors import FedntdError, require
from fedntd.metrics import Vector, cosine, forgetting, in_local, out_local
from fedntd.models.functional import Model
from fedntd.optim import learning_rate
from fedntd.record import Record, RunFolder, State, mean_and_std
from fedntd.rng import generator, torch_seed


class Diverged(FedntdError):
    """The weights are no longer finite."""


class Federation:
    """One simulated federation. Iterate to train: each round yields its record; `state.w` are the global weights.

    `dataset` and `model` stand in for what the config names, for those who have them at hand in Python.
    """

    def __init__(self, config: Config, dataset: Dataset | None = None, model: nn.Module | None = None) -> None:
        self.config = config
        self.device = device = choose_device(config)
        set_float32_precision(config.precision)

        self.dataset = dataset = dataset or load_dataset(config)
        labels = dataset.train.y.numpy()

        self.parts = deal(config, labels)
        self.counts = class_counts(labels, self.parts, len(dataset.classes))  # [client, class]
        self.p = self.counts / self.counts.sum(1, keepdims=True)  # in-local distributions

        with seeded(torch_seed(config.seed, "model")):
            module = model or call("model", config.model, shape=dataset.shape, classes=len(dataset.classes))
        function = Model(module, config.precision)
        function.module.to(device)

        # in a fixed random order, since BatchNorm without running statistics sees which samples share a batch
        order = torch.from_numpy(generator(0, "test order").permutation(len(dataset.test.y)))
        test = Part(dataset.test.x[order], dataset.test.y[order])
        show = (dataset.mean, dataset.std, dataset.augment, device, function.storage)
        train_part, test_part = DevicePart(dataset.train, *show), DevicePart(test, *show)
        function.check(test_part.plain(slice(0, 2)), len(dataset.classes))

        self.algorithm: FedAvg = call("algorithm", config.algorithm)
        self.engine = Sequential(
            self.algorithm, function, config.optimiser, train_part, test_part, len(dataset.classes), config.workers
        )
        w = function.weights()
        self.state = State(w, self.algorithm.init_server(w))
        self.initial_w = w
        self.history: list[Vector] = []  # class-wise accuracy of the global model after each round

    def __iter__(self) -> Iterator[Record]:
        while self.state.round < self.config.federation.rounds:
            yield self.play_round()

    def play_round(self) -> Record:
        started = time.perf_counter()
        config, state, algorithm = self.config, self.state, self.algorithm
        settings = config.federation
        round = state.round + 1

        # who trains, on what
        cohort = plan.cohort(config.seed, round, settings.clients, settings.ratio)
        lr, momentum = learning_rate(config.optimiser, round), config.optimiser.momentum
        shared = algorithm.broadcast(state.server)
        tasks = [self.task(round, k, Context(state.w, shared, self.own(k), lr, momentum)) for k in cohort]

        # local training, and aggregation
        measure = settings_ask_for_locals(config, round)
        trained = self.engine.train(tasks, measure)
        sizes = torch.tensor([len(self.parts[k]) for k in cohort], dtype=torch.float64, device=self.device)
        p = sizes / sizes.sum() if settings.aggregation == "size" else torch.full_like(sizes, 1 / len(sizes))
        up = tree.stack([t.up for t in trained])
        w, server = algorithm.aggregate(state.w, state.server, up, p, len(cohort) / settings.clients)
        if not tree.all_finite(w):
            raise Diverged(f"the global weights are not finite after round {round}; a lower optimiser.lr may help")
        own = state.own | {k: t.own for k, t in zip(cohort, trained, strict=True) if t.own}

        # metrics
        before = self.history[-1] if self.history else self.engine.test(state.w).class_accuracy
        counts = self.engine.test(w)
        after = counts.class_accuracy
        joint = np.average(self.p[cohort], axis=0, weights=[len(self.parts[k]) for k in cohort])
        record = Record(
            round=round,
            accuracy=counts.accuracy,
            loss=counts.mean_loss,
            class_accuracy=after.tolist(),
            similarity=cosine(before, after) if self.history else None,
            forgetting=forgetting(self.history, after),
            train_loss=float(torch.stack([t.loss for t in trained]).mean()),
            **(self.local_measures(cohort, trained) if measure else {}),
            global_in_before=in_local(before, joint),
            global_in_after=in_local(after, joint),
            global_out_before=out_local(before, joint),
            global_out_after=out_local(after, joint),
            cohort=cohort,
            lr=lr,
            bytes_down=len(cohort) * (tree.nbytes(state.w) + tree.nbytes(shared)),
            bytes_up=tree.nbytes(up),
            seconds=time.perf_counter() - started,
        )
        self.state = State(w, server, own, round)
        self.history.append(after)
        return record

    def take_up(self, state: State, records: list[Record]) -> None:
        """Go on from a checkpoint."""
        self.state = state
        self.history = [np.array(record.class_accuracy) for record in records]

    def task(self, round: int, k: int, ctx: Context) -> Task:
        config, owned = self.config, self.parts[k]
        steps = plan.local_steps(
            config.seed,
            round,
            k,
            owned,
            config.federation.local_epochs,
            config.federation.batch_size,
            self.dataset.augment,
            self.dataset.shape,
        )
        return Task(steps, ctx, torch.from_numpy(owned).to(self.device), torch_seed(config.seed, "dropout", round, k))

    def own(self, k: int) -> dict[str, Any]:
        return self.state.own[k] if k in self.state.own else self.algorithm.init_client(self.initial_w)

    def local_measures(self, cohort: list[int], trained: list[Trained]) -> dict[str, float]:
        """Of the trained local models: mean and standard deviation over the cohort."""
        accuracies = [t.test.class_accuracy for t in trained if t.test]
        own = [t.train for t in trained if t.train]
        return {
            **mean_and_std("in_local", [in_local(a, self.p[k]) for a, k in zip(accuracies, cohort, strict=True)]),
            **mean_and_std("out_local", [out_local(a, self.p[k]) for a, k in zip(accuracies, cohort, strict=True)]),
            **mean_and_std("local_train_accuracy", [counts.accuracy for counts in own]),
            **mean_and_std("local_train_loss", [counts.mean_loss for counts in own]),
        }


def federate(
    config: Config,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Generator[Record]:
    """Train, yielding each round's record; with `out`, also write a run folder, which `resume` goes on from."""
    federation = Federation(config, dataset, model)
    if out is None:
        yield from federation
        return
    with RunFolder(Path(out), config, resume) as folder:
        found = folder.restore(federation.device) if resume else None
        if found:
            federation.take_up(*found)
        folder.start(federation.dataset.classes, federation.counts, federation.device)
        try:
            for record in federation:
                folder.append(record, federation.state)
                yield record
        except Diverged as error:
            folder.put_status("failed", str(error))
            raise
        finally:  # also when the run is interrupted: no finished round is lost
            folder.save(federation.state)
        folder.put_status("finished")


def load_dataset(config: Config) -> Dataset:
    wanted = config.data
    return load(target("data", wanted.name), wanted.path, wanted.augment, wanted.train_size)


def deal(config: Config, labels: Indices) -> list[Indices]:
    """Which client owns which training samples."""
    seed = config.seed if config.partition_seed is None else config.partition_seed
    rng = generator(seed, "partition")
    return call("partition", config.partition, labels=labels, clients=config.federation.clients, rng=rng)


def settings_ask_for_locals(config: Config, round: int) -> bool:
    every = config.measure.local_every
    return every > 0 and (round % every == 0 or round == 1)


def choose_device(config: Config) -> torch.device:
    name = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FedntdError(
            f"device = '{config.device}' cannot be used here ({reason}); 'auto' takes what there is"
        ) from None
    require(
        config.precision != "tf32" or device.type == "cuda",
        "precision = 'tf32' needs a CUDA device; on a CPU use 'fp32' or 'bf16'",
    )
    return device


def set_float32_precision(precision: str) -> None:
    """Whether CUDA may compute float32 products in TF32: a setting of the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
