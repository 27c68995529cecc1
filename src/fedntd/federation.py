"""The round loop: config → data → partition → cohort → plan → local training → aggregation → metrics → record."""

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedntd import plan, tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context
from fedntd.config import GIVEN, Choice, Config, call, target
from fedntd.data.dataset import Dataset, Part
from fedntd.data.datasets import load
from fedntd.data.device import DevicePart
from fedntd.data.partition import Indices, check_parts, class_counts
from fedntd.engines import Sequential, Task, seeded
from fedntd.errors import FedntdError, require
from fedntd.metrics import Counts, Vector, cosine, forgetting, in_local, out_local
from fedntd.models.functional import Model
from fedntd.optim import learning_rate
from fedntd.record import Record, RunFolder, State, mean_and_std
from fedntd.rng import generator, torch_seed
from fedntd.vectorised import Vectorised


class Diverged(FedntdError):
    """The weights are no longer finite."""


class Federation:
    """One simulated federation. Iterate to train: each round yields its record; `state.w` are the global weights.

    `dataset` and `model` stand in for what the config names, for those who have them at hand in Python.
    """

    def __init__(self, config: Config, dataset: Dataset | None = None, model: nn.Module | None = None) -> None:
        if dataset is not None:
            config = replace(config, data=replace(config.data, name=f"{GIVEN}{dataset.name}"))
        if model is not None:
            config = replace(config, model=Choice(f"{GIVEN}{type(model).__name__}"))
        self.config = config
        self.device = device = choose_device(config)
        set_float32_precision(config.precision)

        self.dataset = dataset = dataset or load_dataset(config)
        labels = dataset.train.y.numpy()

        self.parts = deal(config, labels)
        self.counts = class_counts(labels, self.parts, len(dataset.classes))  # [client, class]
        sizes = self.counts.sum(1)
        self.p = self.counts / sizes[:, None]  # in-local distributions
        # each client's weight in the whole federation
        self.shares = (
            sizes / sizes.sum() if config.federation.aggregation == "size" else np.full(len(sizes), 1 / len(sizes))
        )

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

        self.storage = function.storage
        self.class_counts = torch.tensor(self.counts, dtype=self.storage, device=device)
        self.algorithm: FedAvg = call("algorithm", config.algorithm)
        parts = (self.algorithm, function, config.optimiser, train_part, test_part, len(dataset.classes))
        vectorised = config.engine == "vectorised" or (
            config.engine == "auto" and device.type == "cuda" and not function.has_dropout
        )
        self.engine = Vectorised(*parts, config.together) if vectorised else Sequential(*parts, config.workers)
        w = function.weights()
        self.state = State(w, self.algorithm.init_server(w))
        self.initial_w = w
        self.history: list[Vector] = []  # class-wise accuracy of the global model after each round
        self.upcoming: tuple[int, Any] = (0, None)  # the plan of a round to come

    def __iter__(self) -> Iterator[Record]:
        while self.state.round < self.config.federation.rounds:
            yield self.play_round()

    def play_round(self) -> Record:
        started = time.perf_counter()
        config, state, algorithm = self.config, self.state, self.algorithm
        round = state.round + 1
        measure_locals = asks_for_locals(config, round)

        # who trains, on what, knowing what, with which weight
        cohort, prepared = self.planned(round)
        shared = algorithm.broadcast(state.server)
        rate = learning_rate(config.optimiser, round)
        lr = torch.tensor(rate, dtype=self.storage, device=self.device)
        w_sent, momentum = algorithm.send(state.w, state.server), config.optimiser.momentum
        contexts = [Context(w_sent, shared, self.own(k), lr, momentum, self.class_counts[k]) for k in cohort]
        shares = self.shares[cohort]
        p = torch.tensor(shares / shares.sum(), dtype=self.storage, device=self.device)

        # local training, aggregation, and the test of the new global model
        trained = self.engine.train(prepared, contexts, measure_locals)
        up, p = call("robust", config.robust, up=trained.up, p=p)
        w, server = algorithm.aggregate(state.w, state.server, up, p, float(shares.sum()))
        before = self.history[-1] if self.history else self.engine.test(state.w).class_accuracy
        counts = self.engine.test(w)

        # a GPU is still busy with all that: the time to plan the next round
        self.upcoming = round + 1, self.make_plan(round + 1)

        if not tree.all_finite(w):
            raise Diverged(f"the global weights are not finite after round {round}; a lower optimiser.lr may help")
        after = counts.class_accuracy
        joint = np.average(self.p[cohort], axis=0, weights=self.counts[cohort].sum(1))
        own = {k: tree.map(lambda leaf, i=i: leaf[i].clone(), trained.own) for i, k in enumerate(cohort)}
        self.state = State(w, server, state.own | own if trained.own else state.own, round)
        record = Record(
            round=round,
            accuracy=float(counts.accuracy),
            loss=float(counts.mean_loss),
            class_accuracy=after.tolist(),
            similarity=cosine(before, after) if self.history else None,
            forgetting=forgetting(self.history, after),
            train_loss=float(trained.loss.mean()),
            **self.local_measures(cohort, trained.test, trained.train),
            global_in_before=in_local(before, joint),
            global_in_after=in_local(after, joint),
            global_out_before=out_local(before, joint),
            global_out_after=out_local(after, joint),
            cohort=cohort,
            lr=rate,
            bytes_down=len(cohort) * (tree.nbytes(state.w) + tree.nbytes(shared)),
            bytes_up=tree.nbytes(trained.up),
            seconds=time.perf_counter() - started,
        )
        self.history.append(after)
        return record

    def planned(self, round: int) -> tuple[list[int], Any]:
        """The plan of a round, made already or made now."""
        ready, made = self.upcoming
        return made if ready == round else self.make_plan(round)

    def make_plan(self, round: int) -> tuple[list[int], Any]:
        """The clients of a round, and their tasks as the engine wants them."""
        seed, settings = self.config.seed, self.config.federation
        cohort = plan.cohort(seed, round, settings.clients, settings.ratio)
        tasks = []
        for k in cohort:
            batches = (settings.local_epochs, settings.batch_size)
            steps = plan.local_plan(seed, round, k, self.parts[k], *batches, self.dataset.augment, self.dataset.shape)
            tasks.append(Task(steps, self.parts[k], torch_seed(seed, "dropout", round, k)))
        return cohort, self.engine.prepare(tasks)

    def take_up(self, state: State, records: list[Record]) -> None:
        """Go on from a checkpoint."""
        self.state = state
        self.history = [np.array(record.class_accuracy) for record in records]

    def own(self, k: int) -> dict[str, Any]:
        return self.state.own[k] if k in self.state.own else self.algorithm.init_client(self.initial_w)

    def local_measures(self, cohort: list[int], test: Counts | None, train: Counts | None) -> dict[str, float]:
        """Of the trained local models: mean and standard deviation over the cohort."""
        if test is None or train is None:
            return {}
        accuracies = list(zip(test.class_accuracy, self.p[cohort], strict=True))
        return {
            **mean_and_std("in_local", [in_local(a, p) for a, p in accuracies]),
            **mean_and_std("out_local", [out_local(a, p) for a, p in accuracies]),
            **mean_and_std("local_train_accuracy", train.accuracy),
            **mean_and_std("local_train_loss", train.mean_loss),
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
    with RunFolder(Path(out), federation.config, resume) as folder:
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
    clients, rng = config.federation.clients, generator(seed, "partition")
    parts = [np.asarray(part) for part in call("partition", config.partition, labels=labels, clients=clients, rng=rng)]
    require(len(parts) == clients, f"partition '{config.partition.name}' made {len(parts)} parts for {clients} clients")
    check_parts(parts, len(labels), config.partition.name)
    return parts


def asks_for_locals(config: Config, round: int) -> bool:
    every = config.measure.local_every
    return every > 0 and round % every == 0


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
