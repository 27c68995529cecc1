"""The round loop: config → data → partition → cohort → plan → local training → aggregation → metrics → record."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedntd import tree
from fedntd.algorithms.base import Context, Result
from fedntd.config.build import build_module, deal, load_dataset
from fedntd.config.cohort import cohort as draw_cohort
from fedntd.config.registry import GIVEN, Choice, call
from fedntd.config.schema import Config, make_algorithm, with_own_code
from fedntd.config.unlabelled import unlabelled
from fedntd.data.dataset import Dataset, Part
from fedntd.data.datasets import as_asked
from fedntd.data.device import DevicePart
from fedntd.data.partition import class_counts, client_shares
from fedntd.engine import plan
from fedntd.engine.devices import (
    choose_device,
    choose_precision,
    home_of,
    sent,
    set_float32_precision,
)
from fedntd.engine.optim import learning_rate
from fedntd.engine.sequential import Sequential, Task, Trained
from fedntd.engine.server_data import ServerData
from fedntd.engine.testing import Counts
from fedntd.engine.vectorised import Vectorised
from fedntd.errors import Diverged, FedntdError, reason, require
from fedntd.models.functional import Model
from fedntd.rng import generator, seeded, torch_seed
from fedntd.runs.measures import Vector, in_local, of_global_model, out_local
from fedntd.runs.record import Record, State, mean_and_std
from fedntd.simulation.rounds import Agenda, play_together
from fedntd.tree import Tree, Weights


class Federation:
    """One simulated federation. Iterate to train: each round yields its record; `state.w` are the global weights.

    `dataset`, `model` and `auxiliary` stand in for what the config names, for those who have them at hand in Python; of
    an auxiliary dataset the training samples are used, without their labels. `beside` is another run: its data need not
    be loaded again; with `several_runs` its engine is shared, for `play_together`, unless the networks differ in more
    than their weights.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset | None = None,
        model: nn.Module | None = None,
        beside: "Federation | None" = None,
        several_runs: bool = False,
        auxiliary: Dataset | Tensor | None = None,
    ) -> None:
        self.config = config = with_own_code(naming_what_is_given(config, dataset, model, auxiliary))
        self.several_runs = several_runs
        self.device = choose_device(config)
        self.precision = choose_precision(config, self.device)
        given = dataset and as_asked(dataset, config.data.augment, config.data.train_size)
        known = beside.dataset if beside and beside.config.data == config.data else None
        self.dataset = dataset = given or known or load_dataset(config)
        classes, labels = len(dataset.classes), dataset.train.y.numpy()
        require(classes > 1, f"dataset '{dataset.name}' has one class only; there is nothing to tell apart")

        self.parts = deal(config, labels)
        self.counts = class_counts(labels, self.parts, classes)  # [client, class]
        epochs, most = config.federation.local_epochs, plan.MOST_PLANNED // int(self.counts.sum(1).max())
        require(
            epochs <= most, f"federation.local_epochs = {epochs} cannot be planned; with this data, at most {most} can"
        )
        self.p = self.counts / self.counts.sum(1, keepdims=True)  # in-local distributions
        self.shares = client_shares(self.counts, config.federation.aggregation)

        module = model or build_module(config, dataset.shape, classes)
        function = Model(module, self.precision)
        function.module.to(self.device)
        self.storage = function.storage
        self.class_counts = torch.tensor(self.counts, dtype=self.storage, device=self.device)
        self.algorithm = make_algorithm(config)
        if self.algorithm.auxiliary_data:
            alike = beside if beside and known and beside.config.auxiliary == config.auxiliary else None
            self.unseen: DevicePart = (
                alike.unseen if alike else self.on_device(unlabelled(config, dataset.train.x, auxiliary))
            )
            server_side = ServerData(function, self.unseen, config.seed)
            self.algorithm = self.algorithm.with_values({"auxiliary": server_side})
        share = beside and beside.several_runs and function.same_but_for_weights(beside.engine.model)
        self.engine = beside.engine if beside and share else self.make_engine(function)

        self.initial_w = w = function.weights()
        self.state = State(w, self.algorithm.init_server(w))
        self.try_out(function)
        self.state_home = home_of(self.algorithm.init_client(w), config.federation.clients, self.device)
        self.varying: dict[str, float] = {}  # hyper-parameters in which runs that are trained together differ
        self.history: list[Vector] = []  # class-wise accuracy of the global model after each round
        self.before: Vector | None = None  # and before the coming round
        self.upcoming: tuple[Any, Any] = (None, None)  # the agendas and prepared tasks of a round to come

    def make_engine(self, function: Model) -> Sequential | Vectorised:
        config, dataset, device = self.config, self.dataset, self.device
        set_float32_precision(self.precision)
        # in a fixed random order, since BatchNorm without running statistics sees which samples share a batch
        order = torch.from_numpy(generator(0, "test order").permutation(len(dataset.test.y)))
        test = Part(dataset.test.x[order], dataset.test.y[order])
        train_part, test_part = self.on_device(dataset.train), self.on_device(test)
        samples = test_part.plain(slice(0, 2))
        function.check(samples, len(dataset.classes))
        parts = (self.algorithm, function, config.optimiser, train_part, test_part, len(dataset.classes))
        if config.engine == "vectorised" or (config.engine == "auto" and device.type == "cuda"):
            obstacle = function.obstacle(samples)
            if not obstacle:
                return Vectorised(*parts, config.together, self.several_runs)
            require(
                config.engine == "auto",
                f"engine = 'vectorised' cannot train this network: {obstacle}; use engine = 'sequential'",
            )
        return Sequential(*parts, config.workers)

    def on_device(self, part: Part) -> DevicePart:
        """Shown to the network as this dataset is."""
        return DevicePart(part, self.dataset.mean, self.dataset.std, self.dataset.augment, self.device, self.storage)

    def try_out(self, model: Model) -> None:
        """One loss, one upload: what a method, a network or a rule cannot do is told before anything is written."""
        algorithm, name, samples = self.algorithm, self.config.algorithm.name, self.engine.train_part.plain(slice(0, 2))
        w_sent, shared = algorithm.send(self.state.w, self.state.server), algorithm.broadcast(self.state.server)
        lr, momentum = torch.ones((), dtype=self.storage, device=self.device), self.config.optimiser.momentum
        ctx = Context(w_sent, shared, self.own(0), lr, momentum, self.class_counts[0])
        w = tree.map(lambda leaf: leaf.detach().requires_grad_(), self.state.w)
        try:
            with seeded(0):
                loss = algorithm.loss(model, w, samples, ctx)
                check_loss(loss, name)
                with torch.no_grad():
                    measured = algorithm.measure(model, w, samples, ctx) if algorithm.measure_samples else {}
                    up, own = algorithm.finish(Result(w, 1, loss, measured), ctx)
                check_tensors({"up": up, "own": own}, f"finish of algorithm '{name}'")
        except FedntdError:
            raise
        except Exception as error:  # whatever a method or network of the user's own does
            raise FedntdError(f"algorithm '{name}' cannot train this model: {reason(error)}") from error
        # of each leaf one number, since those of a whole cohort are many
        size = len(self.cohort(1))
        little = tree.map(lambda leaf: leaf.detach().flatten()[:1].expand(size, 1), up)
        call("robust", self.config.robust, up=little, p=lr.expand(size) / size)

    def __iter__(self) -> Iterator[Record]:
        while not self.finished:
            yield self.play_round()

    @property
    def finished(self) -> bool:
        return self.state.round >= self.rounds

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    def play_round(self) -> Record:
        (outcome,) = play_together([self])
        if isinstance(outcome, Diverged):
            raise outcome
        return outcome

    def tasks(self, round: int) -> list[Task]:
        """What each client of a round's cohort will do."""
        seed = self.config.seed
        return [
            Task(self.local_plan(round, k), self.parts[k], torch_seed(seed, "dropout", round, k))
            for k in self.cohort(round)
        ]

    def local_plan(self, round: int, k: int) -> plan.Plan:
        """The batches of client k, if it trains in this round."""
        settings, dataset = self.config.federation, self.dataset
        batches, looks = (settings.local_epochs, settings.batch_size), (dataset.augment, dataset.shape)
        return plan.local_plan(self.config.seed, round, k, self.parts[k], *batches, *looks, settings.drop_last)

    def cohort(self, round: int) -> list[int]:
        return draw_cohort(self.config.seed, round, self.config.federation.clients, self.config.federation.ratio)

    def agenda(self, round: int) -> Agenda:
        """Who will train, and with what."""
        config, cohort = self.config, self.cohort(round)
        shares, rate = self.shares[cohort], learning_rate(config.optimiser, round)
        numbers = sent(np.array([rate, *self.varying.values(), *(shares / shares.sum())]), self.device, self.storage)
        (lr, *varying), p = numbers[: -len(cohort)], numbers[-len(cohort) :]
        counts = self.class_counts.index_select(0, sent(np.array(cohort), self.device)).unbind()
        values = dict(zip(self.varying, varying, strict=True))
        return Agenda(round, cohort, p, counts, rate, lr, values, config.measure.locals_in(round))

    def contexts(self, agenda: Agenda) -> list[Context]:
        """What each client of the cohort knows."""
        algorithm, state, momentum = self.algorithm, self.state, self.config.optimiser.momentum
        w_sent, shared = algorithm.send(state.w, state.server), algorithm.broadcast(state.server)
        return [
            Context(w_sent, shared, self.own(k), agenda.lr, momentum, counts, agenda.values)
            for k, counts in zip(agenda.cohort, agenda.class_counts, strict=True)
        ]

    def aggregate(self, agenda: Agenda, up: Tree) -> tuple[Weights, dict]:
        """The new global weights and server state."""
        fraction = float(self.shares[agenda.cohort].sum())
        up, p = call("robust", self.config.robust, up=up, p=agenda.p)
        made = self.algorithm.aggregate(self.state.w, self.state.server, up, p, fraction)
        check_aggregated(made, self.state.w, self.config.algorithm.name)
        return made

    def close_round(
        self, agenda: Agenda, trained: Trained, w: Weights, server: dict, counts: Counts, seconds: float
    ) -> Record:
        """Take up the new state, and say what was measured."""
        round, cohort, state = agenda.number, agenda.cohort, self.state
        assert self.before is not None
        joint = self.counts[cohort].sum(0) / self.counts[cohort].sum()
        own = {
            k: tree.map(lambda leaf, i=i: leaf[i].clone().to(self.state_home), trained.own)
            for i, k in enumerate(cohort)
        }
        self.state = State(w, server, state.own | own if trained.own else state.own, round)
        record = Record(
            round=round,
            **of_global_model(counts, self.before, self.history, joint),
            train_loss=float(trained.loss.mean()),
            **(self.local_measures(cohort, trained.test, trained.train) if agenda.measure_locals else {}),
            cohort=cohort,
            lr=agenda.rate,
            bytes_down=len(cohort) * (tree.nbytes(state.w) + tree.nbytes(self.algorithm.broadcast(state.server))),
            bytes_up=tree.nbytes(trained.up),
            seconds=seconds,
        )
        self.before = np.array(record.class_accuracy)
        self.history.append(self.before)
        return record

    def take_up(self, state: State, records: list[Record]) -> None:
        """Go on from a checkpoint, wherever its tensors are, and whichever precision its weights have."""
        then = tree.leaves(state.w)[0].dtype  # what has another type, such as a sum in float64, is meant to have it

        def at(home: torch.device, leaves: Tree) -> dict:
            return tree.map(lambda leaf: leaf.to(home, self.storage if leaf.dtype == then else None), leaves)

        own = {k: at(self.state_home, own) for k, own in state.own.items()}
        self.state = replace(state, w=at(self.device, state.w), server=at(self.device, state.server), own=own)
        self.history = [np.array(record.class_accuracy) for record in records]
        self.before = self.history[-1] if self.history else None

    def own(self, k: int) -> dict[str, Any]:
        """What client k keeps, on the device."""
        if k not in self.state.own:
            return self.algorithm.init_client(self.initial_w)
        return tree.map(lambda leaf: leaf.to(self.device), self.state.own[k])

    def local_measures(self, cohort: list[int], test: Counts | None, train: Counts | None) -> dict[str, Any]:
        """Of the trained local models: mean and standard deviation over the cohort."""
        assert test is not None
        assert train is not None
        accuracies = list(zip(test.class_accuracy, self.p[cohort], strict=True))
        return {
            **mean_and_std("in_local", [in_local(a, p) for a, p in accuracies]),
            **mean_and_std("out_local", [out_local(a, p) for a, p in accuracies]),
            **mean_and_std("local_train_accuracy", train.accuracy),
            **mean_and_std("local_train_loss", train.mean_loss),
        }


def check_loss(loss: Any, name: str) -> None:
    shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
    require(shape == [], f"the loss of algorithm '{name}' must be one number, as batch.mean(...) is, not {shape}")
    require(
        loss.requires_grad,
        f"the loss of algorithm '{name}' does not depend on the model's weights: it has no gradient to go along",
    )


def check_tensors(found: dict[str, Any], what: str) -> None:
    """Or nested dicts of them: all else can neither be sent nor written into a checkpoint."""
    for name, leaf in tree.flatten(found).items():
        if not isinstance(leaf, Tensor):  # to write a tensor out would take longer than to train it
            raise FedntdError(f"{what} must return tensors, in dicts; {name} is {leaf!r:.40}")


def check_aggregated(made: Any, before: Weights, name: str) -> None:
    """Weights that lack some or have other shapes would be trained with nonetheless, or fail somewhere else."""
    what = f"aggregate of algorithm '{name}'"
    require(
        isinstance(made, tuple) and len(made) == 2, f"{what} must return the new weights and the server's new state"
    )
    check_tensors({"weights": made[0], "state": made[1]}, what)
    then, now = (
        {key: list(leaf.shape) for key, leaf in tree.flatten({"weights": w}).items()} for w in (before, made[0])
    )
    for key in then | now:
        told = f"{key} of shape {then.get(key)}, not {now.get(key)}"
        require(then.get(key) == now.get(key), f"{what} must return weights of the same names and shapes: {told}")


def naming_what_is_given(
    config: Config, dataset: Dataset | None, model: nn.Module | None, auxiliary: Dataset | Tensor | None
) -> Config:
    """The config with the names of the objects that stand in for what it names."""
    require(isinstance(config, Config), f"{config!r} is no Config; configure(...) makes one, of a preset or a file")
    if dataset is not None:
        config = replace(config, data=replace(config.data, name=f"{GIVEN}{dataset.name}"))
    if model is not None:
        config = replace(config, model=Choice(f"{GIVEN}{type(model).__name__}"))
    if auxiliary is not None:
        what = auxiliary.name if isinstance(auxiliary, Dataset) else "tensor"
        config = replace(config, auxiliary=replace(config.auxiliary, name=f"{GIVEN}{what}"))
    return config
