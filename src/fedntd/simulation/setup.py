"""Builds all parts of a run from its config: data, partition, network, method and engine."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context, Result
from fedntd.config.build import build_module, deal, load_dataset
from fedntd.config.cohort import cohort
from fedntd.config.registry import GIVEN, Choice, call
from fedntd.config.schema import Config, make_algorithm, with_own_code
from fedntd.config.unlabelled import unlabelled
from fedntd.data.dataset import Dataset, Part
from fedntd.data.datasets import as_asked
from fedntd.data.device import DevicePart
from fedntd.data.partition import class_counts, client_shares
from fedntd.engine.base import Engine, Task
from fedntd.engine.devices import choose_device, choose_precision, set_float32_precision
from fedntd.engine.plan import MOST_PLANNED, Plan, local_plan
from fedntd.engine.sequential import Sequential
from fedntd.engine.server_data import ServerData
from fedntd.engine.vectorised import Vectorised
from fedntd.errors import FedntdError, reason, require
from fedntd.models.functional import Model
from fedntd.rng import generator, seeded, torch_seed
from fedntd.simulation.checks import check_loss, check_tensors
from fedntd.tree import Tree


class Setup:
    """The parts of a federation that do not change from round to round.

    `dataset`, `model` and `auxiliary` replace those that the config names. `share_with` is another run: if it has the
    same data, they are not loaded again. If it has `several_runs`, its engine is shared too, unless the networks differ
    in more than their weights.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset | None,
        model: nn.Module | None,
        share_with: "Setup | None",
        several_runs: bool,
        auxiliary: Dataset | Tensor | None,
    ) -> None:
        self.config = config = with_own_code(name_given_objects(config, dataset, model, auxiliary))
        self.several_runs = several_runs
        self.device = choose_device(config)
        self.precision = choose_precision(config, self.device)
        # 2. data
        same_data = share_with if share_with and share_with.config.data == config.data else None
        own_dataset = dataset and as_asked(dataset, config.data.augment, config.data.train_size)
        self.dataset = own_dataset or (same_data.dataset if same_data else load_dataset(config))
        # 3. partition
        self.set_partition()
        # the network, the method and the engine that trains them
        module = model or build_module(config, self.dataset.shape, len(self.dataset.classes))
        function = Model(module, self.precision)
        function.module.to(self.device)
        self.storage = function.storage
        self.class_counts = torch.tensor(self.counts, dtype=self.storage, device=self.device)
        self.algorithm = self.make_method(function, auxiliary, same_data)
        share = share_with and share_with.several_runs and function.same_but_for_weights(share_with.engine.model)
        self.engine: Engine = share_with.engine if share_with and share else self.make_engine(function)
        self.initial_w = function.weights()
        self.dry_run(function)

    def set_partition(self) -> None:
        """Set which client owns which samples, and the statistics that follow from it."""
        config, dataset = self.config, self.dataset
        classes, labels = len(dataset.classes), dataset.train.y.numpy()
        require(classes > 1, f"dataset '{dataset.name}' has one class only; there is nothing to tell apart")
        self.parts = deal(config, labels)
        self.counts = class_counts(labels, self.parts, classes)  # [client, class]
        epochs, most = config.federation.local_epochs, MOST_PLANNED // int(self.counts.sum(1).max())
        require(
            epochs <= most, f"federation.local_epochs = {epochs} cannot be planned; with this data, at most {most} can"
        )
        self.p = self.counts / self.counts.sum(1, keepdims=True)  # in-local distributions
        self.shares = client_shares(self.counts, config.federation.aggregation)

    def make_method(self, function: Model, auxiliary: Dataset | Tensor | None, same_data: "Setup | None") -> FedAvg:
        """The method. One that trains at the server also gets the server's data."""
        config, algorithm = self.config, make_algorithm(self.config)
        if not algorithm.auxiliary_data:
            return algorithm
        same_auxiliary = same_data if same_data and same_data.config.auxiliary == config.auxiliary else None
        self.unseen: DevicePart = (
            same_auxiliary.unseen
            if same_auxiliary
            else self.on_device(unlabelled(config, self.dataset.train.x, auxiliary))
        )
        return algorithm.with_values({"auxiliary": ServerData(function, self.unseen, config.seed)})

    def make_engine(self, function: Model) -> Engine:
        """The engine that the config asks for. With engine = 'auto', a network that cannot be vectorised is trained by
        the sequential engine."""
        config, dataset, device = self.config, self.dataset, self.device
        set_float32_precision(self.precision)
        # In a fixed random order: with BatchNorm without running statistics, it matters which samples share a batch.
        order = torch.from_numpy(generator(0, "test order").permutation(len(dataset.test.y)))
        test = Part(dataset.test.x[order], dataset.test.y[order])
        train_part, test_part = self.on_device(dataset.train), self.on_device(test)
        samples = test_part.plain(slice(0, 2))
        function.check(samples, len(dataset.classes))
        parts = (self.algorithm, function, config.optimiser, train_part, test_part, len(dataset.classes))
        if config.engine == "sequential" or (config.engine == "auto" and device.type != "cuda"):
            return Sequential(*parts, config.workers)
        obstacle = function.obstacle(samples)
        if not obstacle:
            return Vectorised(*parts, config.together, self.several_runs)
        require(
            config.engine == "auto",
            f"engine = 'vectorised' cannot train this network: {obstacle}; use engine = 'sequential'",
        )
        engine = Sequential(*parts, config.workers)
        engine.notes.append(f"clients are trained one by one, since this network cannot be vectorised: {obstacle}")
        return engine

    def on_device(self, part: Part) -> DevicePart:
        """Put samples on the device, normalised and augmented like this dataset."""
        return DevicePart(part, self.dataset.mean, self.dataset.std, self.dataset.augment, self.device, self.storage)

    def dry_run(self, model: Model) -> None:
        """One loss, one upload: report incompatibilities before anything is written."""
        algorithm, name, samples = self.algorithm, self.config.algorithm.name, self.engine.train_part.plain(slice(0, 2))
        w_g, server = self.initial_w, algorithm.init_server(self.initial_w)
        lr, momentum = torch.ones((), dtype=self.storage, device=self.device), self.config.optimiser.momentum
        w_sent, shared, own = algorithm.send(w_g, server), algorithm.broadcast(server), algorithm.init_client(w_g)
        ctx = Context(w_sent, shared, own, lr, momentum, self.class_counts[0])
        w = tree.map(lambda leaf: leaf.detach().requires_grad_(), w_g)
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
        except Exception as error:  # a user's method or network may raise anything
            raise FedntdError(f"algorithm '{name}' cannot train this model: {reason(error)}") from error
        # one number of each leaf, since the uploads of a whole cohort are large
        size = len(self.cohort(1))
        sample: Tree = tree.map(lambda leaf: leaf.detach().flatten()[:1].expand(size, 1), up)
        call("robust", self.config.robust, up=sample, p=lr.expand(size) / size)

    # --- what the config determines for any round -----------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    def cohort(self, round: int) -> list[int]:
        """The clients that train in this round."""
        return cohort(self.config.seed, round, self.config.federation.clients, self.config.federation.ratio)

    def local_plan(self, round: int, k: int) -> Plan:
        """The batches of client k, if it trains in this round."""
        settings, dataset = self.config.federation, self.dataset
        batches, images = (settings.local_epochs, settings.batch_size), (dataset.augment, dataset.shape)
        return local_plan(self.config.seed, round, k, self.parts[k], *batches, *images, settings.drop_last)

    def task(self, round: int, k: int) -> Task:
        """The task of client k, if it trains in this round."""
        return Task(self.local_plan(round, k), self.parts[k], torch_seed(self.config.seed, "dropout", round, k))


def name_given_objects(
    config: Config, dataset: Dataset | None, model: nn.Module | None, auxiliary: Dataset | Tensor | None
) -> Config:
    """The config with the names of the objects that replace its dataset, model and auxiliary data."""
    require(isinstance(config, Config), f"{config!r} is no Config; configure(...) makes one, of a preset or a file")
    if dataset is not None:
        config = replace(config, data=replace(config.data, name=f"{GIVEN}{dataset.name}"))
    if model is not None:
        config = replace(config, model=Choice(f"{GIVEN}{type(model).__name__}"))
    if auxiliary is not None:
        name = auxiliary.name if isinstance(auxiliary, Dataset) else "tensor"
        config = replace(config, auxiliary=replace(config.auxiliary, name=f"{GIVEN}{name}"))
    return config
