"""The app of a site. Flower starts a process of it for each message from the coordinator."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app import Context as FlowerContext
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from safetensors.torch import load_file, save_file

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.config.build import build_module
from fedntd.config.schema import make_algorithm
from fedntd.data.device import DevicePart
from fedntd.engine import plan
from fedntd.engine.base import Task
from fedntd.engine.devices import choose_device, choose_precision, set_float32_precision
from fedntd.engine.optim import learning_rate
from fedntd.engine.testing import TEST_BATCH, count, in_batches
from fedntd.engine.training import train_one
from fedntd.errors import FedntdError, require
from fedntd.flower.messages import (
    EVALUATE,
    HELLO,
    TRAIN,
    Order,
    Report,
    hello,
    read_settings,
    refusal,
    to_record,
    to_tensors,
    to_tree,
)
from fedntd.flower.site import Samples, Site, site_number
from fedntd.models.functional import Model
from fedntd.rng import torch_seed
from fedntd.support.files import atomic
from fedntd.tree import Weights


def client_app(load: Callable[[Site], Samples], mods: list[Mod] | None = None) -> ClientApp:
    """The app of all sites. `load` returns the samples of a site; `mods` are passed to Flower's ClientApp."""
    app = ClientApp(mods=mods)

    def answers(question: str) -> Callable[[Callable[["AtSite", RecordDict], RecordDict]], None]:
        """Register the answer to a question. A `FedntdError` is sent to the coordinator as a refusal."""
        kind, _, action = question.partition(".")

        def register(answer: Callable[[AtSite, RecordDict], RecordDict]) -> None:
            @getattr(app, kind)(action or "default")
            def handle(message: Message, context: FlowerContext) -> Message:
                try:
                    return Message(answer(AtSite(load, context), message.content), reply_to=message)
                except FedntdError as error:
                    return Message(refusal(str(error)), reply_to=message)

        return register

    answers(HELLO)(AtSite.introduce)
    answers(TRAIN)(AtSite.train)
    answers(EVALUATE)(AtSite.evaluate)
    return app


class AtSite:
    """A site while it answers one message."""

    def __init__(self, load: Callable[[Site], Samples], context: FlowerContext) -> None:
        config, _ = read_settings(context.run_config)
        self.config, self.device = config, choose_device(config)
        set_float32_precision(choose_precision(config, self.device))
        node = context.node_config
        self.site = Site(site_number(node, config.federation.clients), node, config)
        self.samples = load(self.site)
        self.model = build_model(self.samples, config, self.device)
        self.algorithm = make_algorithm(config)

    def introduce(self, _: RecordDict) -> RecordDict:
        return RecordDict({"who": hello(self.site, self.samples, self.model.weights()).record()})

    def train(self, records: RecordDict) -> RecordDict:
        """Train as the client of this site's number does in a simulation."""
        started = time.perf_counter()
        config, number, samples = self.config, self.site.number, self.samples
        order = Order(**records.config_records["what"])  # pyright: ignore[reportArgumentType]
        folder = StateFolder(self.site, order.run)
        own = self.algorithm.init_client(self.model.weights())
        if own and order.last:
            own = folder.read(order.last, self.device)
        lr = torch.tensor(learning_rate(config.optimiser, order.round), dtype=self.model.storage, device=self.device)
        counts = torch.tensor(samples.counts, dtype=self.model.storage, device=self.device)
        w, shared = (to_tree(records.array_records[name], self.device) for name in ("weights", "shared"))
        ctx = Context(w, shared, own, lr, config.optimiser.momentum, counts)

        owned = np.arange(len(samples.part.y))
        rules = config.federation
        batches, looks = (rules.local_epochs, rules.batch_size), (samples.augment, samples.shape)
        steps = plan.local_plan(config.seed, order.round, number, owned, *batches, *looks, rules.drop_last)
        part = self.on_device(samples.part)
        task = Task(steps, owned, torch_seed(config.seed, "dropout", order.round, number))
        result, (up, own) = train_one(self.algorithm, self.model, config.optimiser, part, task, ctx)

        if own:
            folder.write(order.round, own, keep=order.last)
        measured = {}
        if config.measure.locals_in(order.round):
            counted = self.count(result.w, part, torch.from_numpy(owned).to(self.device).split(TEST_BATCH))
            measured = {"right": float(counted.correct.sum()), "summed_loss": float(counted.loss)}
        report = Report(len(owned), float(result.loss), time.perf_counter() - started, **measured)
        return RecordDict({"up": to_record(up), "report": MetricRecord(report.as_dict())})

    def evaluate(self, records: RecordDict) -> RecordDict:
        """Test the global model on this site's held-out samples. Only counts and their summed loss leave the site."""
        if self.samples.test is None:
            raise FedntdError("it has no held-out samples to test on")
        w = to_tensors(records.array_records["weights"], self.device)
        part = self.on_device(self.samples.test)
        counted = self.count(w, part, in_batches(len(part)))
        return RecordDict(
            {
                "counts": ConfigRecord(
                    {"correct": counted.correct.tolist(), "total": counted.total.tolist(), "loss": float(counted.loss)}
                )
            }
        )

    def count(self, w: Weights, part: DevicePart, places: Any) -> Any:
        return count(self.model, w, part, places, len(self.samples.classes))

    def on_device(self, part: Any) -> DevicePart:
        samples = self.samples
        return DevicePart(part, samples.mean, samples.std, samples.augment, self.device, self.model.storage)


def build_model(samples: Samples, config: Any, device: torch.device) -> Model:
    """The configured model with its initial weights, which are the same at the coordinator and at all sites."""
    module = build_module(config, samples.shape, len(samples.classes))
    model = Model(module, choose_precision(config, device))
    model.module.to(device)
    part = DevicePart(samples.part, samples.mean, samples.std, None, device, model.storage)
    model.check(part.plain(slice(0, 2)), len(samples.classes))
    return model


class StateFolder:
    """A method's state at one site in one run, in files that never leave the site.

    Keeps the state of the last round that the coordinator is known to have used, and of the round trained after it.
    Which of the two counts is known only from the coordinator's next message: an update that arrives too late is not
    used, and its state is discarded.
    """

    def __init__(self, site: Site, run: str) -> None:
        require(run.isalnum(), f"'{run}' cannot be the name of a run")  # it becomes a part of a path
        home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
        self.path = Path(str(site.node.get("state", home / "fedntd-state"))) / run / f"site-{site.number}"

    def file(self, round: int) -> Path:
        return self.path / f"round-{round}.safetensors"

    def read(self, round: int, device: torch.device) -> dict[str, Any]:
        try:
            return tree.unflatten(load_file(self.file(round), device=str(device)))
        except (OSError, safetensors.SafetensorError) as error:
            raise FedntdError(
                f"its state of round {round} cannot be read from {self.file(round)} ({error}); put a copy back, or "
                f"start a new run"
            ) from error

    def write(self, round: int, own: dict[str, Any], keep: int) -> None:
        """Write the state of `round` and delete earlier ones, except that of round `keep`.

        Later states stay: training that outlived its node may end after the training of the restarted node.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic(self.file(round)) as aside:
                save_file({name: leaf.cpu().contiguous() for name, leaf in tree.flatten(own).items()}, aside)
            for earlier in range(1, round):
                if earlier != keep:
                    self.file(earlier).unlink(missing_ok=True)
        except (OSError, safetensors.SafetensorError) as error:
            raise FedntdError(f"its state cannot be written to {self.path}: {error}") from error
