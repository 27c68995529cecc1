"""The coordinator's side of a real federation: the rounds of federation.py, with sites that answer or do not."""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Context as FlowerContext
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedntd import __version__, tree
from fedntd.algorithms.base import Context
from fedntd.config.cohort import cohort as draw_cohort
from fedntd.config.registry import call
from fedntd.config.schema import Config, make_algorithm
from fedntd.config.unlabelled import unlabelled
from fedntd.data.dataset import Part
from fedntd.data.device import DevicePart
from fedntd.data.partition import client_shares
from fedntd.engine.devices import choose_device, choose_precision, set_float32_precision
from fedntd.engine.optim import learning_rate
from fedntd.engine.server_data import ServerData
from fedntd.engine.testing import Counts, count, in_batches, summed
from fedntd.engine.training import train_client
from fedntd.errors import Diverged, FedntdError, require
from fedntd.flower.client_app import build_model
from fedntd.flower.collect import All, RunningMean, needs_only_the_mean
from fedntd.flower.messages import (
    EVALUATE,
    TRAIN,
    Hello,
    Order,
    Report,
    Settings,
    describe,
    read_counts,
    read_settings,
    read_update,
    to_record,
)
from fedntd.flower.privacy import Clipped, NoisyMean
from fedntd.flower.site import Samples
from fedntd.flower.sites import Account, SiteLog, Sites
from fedntd.runs.measures import Vector, in_local, of_global_model, out_local
from fedntd.runs.record import Record, RunFolder, State, mean_and_std
from fedntd.tree import Weights


def server_app(held_out: Callable[[Config], Samples | None]) -> ServerApp:
    """The app of the coordinator; `held_out` gives it its test set, or None: then the sites test on theirs."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: FlowerContext) -> None:
        try:
            config, settings = read_settings(context.run_config)
            coordinate(grid, config, settings, held_out(config))
        except FedntdError as error:
            log(ERROR, "%s", error)  # Flower tells it at the end of a traceback only
            raise

    return app


def coordinate(grid: Grid, config: Config, settings: Settings, test: Samples | None) -> None:
    """Play the rounds, and write them to a run folder; a folder that holds a run is gone on with."""
    out = Path(settings.out)
    resume = (out / "config.toml").exists()
    with RunFolder(out, config, resume) as folder:
        found = folder.restore(torch.device("cpu")) if resume else None
        done = found[0].round if found else 0
        if done == config.federation.rounds:
            folder.put_status("finished")  # killed after its last round, it could not say so itself
        require(
            done < config.federation.rounds, f"{out} holds a finished run; choose another flower.out to start a new one"
        )
        try:
            sites = Sites(grid, config, settings, SiteLog(folder, done))
            account = Account(folder, settings, done)
            coordinator = Coordinator(config, settings, sites, test, account)
            if found:
                coordinator.restore(*found)
                log(INFO, "%s: going on after round %d", out, done)
            folder.start(coordinator.samples.classes, sites.counts(), coordinator.device, coordinator.precision)
            while coordinator.state.round < config.federation.rounds:
                record = coordinator.play_round()
                folder.append(record)
                folder.save(coordinator.state)
                folder.put_json(
                    "partition.json", {"classes": coordinator.samples.classes, "counts": sites.counts().tolist()}
                )
                tell(record, config)
                if settings.noise:
                    log(INFO, "privacy spent: epsilon %.3f at delta %g", account.privacy["epsilon"], settings.delta)
        except FedntdError as error:
            if (out / "config.toml").exists():
                folder.put_status("failed", str(error))
            raise
        folder.put_status("finished")
        for site, why in sites.left_out.items():
            log(WARNING, "%s (site %d) was left out: %s", sites.name(site), site, why)
        log(INFO, "finished; read it with: fedntd report %s", out)


def tell(record: Record, config: Config) -> None:
    line = f"round {record.round}/{config.federation.rounds}: accuracy {100 * record.accuracy:.2f} %"
    log(INFO, "%s, F %.3f, %d sites, %.1f s", line, record.forgetting, len(record.cohort), record.seconds)


# --- the rounds -------------------------------------------------------------------------------------------------


class Coordinator:
    def __init__(
        self, config: Config, settings: Settings, sites: Sites, test: Samples | None, account: Account
    ) -> None:
        self.config, self.settings, self.sites, self.account = config, settings, sites, account
        self.device = device = choose_device(config)
        self.precision = choose_precision(config, device)
        set_float32_precision(self.precision)
        sites.gather()
        self.test_set = test
        self.samples = test or as_most_say(sites)
        self.model = build_model(self.samples, config, device)
        self.algorithm = make_algorithm(config)
        if self.algorithm.auxiliary_data:
            require(
                test is not None,
                f"algorithm '{config.algorithm.name}' learns from samples at the coordinator, which must know how "
                f"samples are normalised: give it a test set in site.py",
            )
            aside = self.on_device(unlabelled(config, self.samples.part.x[:0]))
            self.algorithm = self.algorithm.with_values({"auxiliary": ServerData(self.model, aside, config.seed)})
        w = self.model.weights()
        classes, shape = list(self.samples.classes), list(self.samples.shape)
        sites.wanted = Hello(0, "", __version__, [], classes, shape, describe(w), False, False)
        sites.greet()
        sites.require_enough()

        self.state = State(w, self.algorithm.init_server(w))
        self.history: list[Vector] = []
        self.like = self.example_upload()
        self.flat_like = tree.flatten(self.like)
        # a method with auxiliary data works on the clients' models themselves
        by_mean = config.robust.name == "none" and not self.algorithm.auxiliary_data
        self.streams = by_mean and needs_only_the_mean(self.algorithm, w, self.like)
        if settings.clip:
            require(
                set(self.like) == {"delta"},
                f"flower.clip does not go with algorithm '{config.algorithm.name}', which sends more than the update "
                f"of the weights: the rest would not be bounded",
            )
        if settings.noise:
            require(
                self.streams,
                f"differential privacy does not go with algorithm '{config.algorithm.name}' and robust rule "
                f"'{config.robust.name}': it protects the mean of the sites' updates; nothing else may be sent or used",
            )
            require(
                config.federation.aggregation == "uniform",
                "differential privacy needs federation.aggregation = 'uniform', so that no site weighs more",
            )

    def example_upload(self) -> dict[str, Any]:
        """What an update of this method looks like, from one step on two samples."""
        batch = self.on_device(Part(*(some[:2] for some in self.samples.part))).plain(slice(0, 2))
        w, server = self.state.w, self.state.server
        lr = torch.tensor(1e-3, dtype=self.model.storage, device=self.device)
        counts = torch.ones(len(self.samples.classes), dtype=self.model.storage, device=self.device)
        own, shared = self.algorithm.init_client(w), self.algorithm.broadcast(server)
        ctx = Context(w, shared, own, lr, self.config.optimiser.momentum, counts)
        look_at = [batch] if self.algorithm.measure_samples else []
        result = train_client(self.algorithm, self.model, self.config.optimiser, [batch], ctx, look_at)
        return self.algorithm.finish(result, ctx).up

    def restore(self, state: State, records: list[Record]) -> None:
        to_device = {"w": state.w, "server": state.server}
        moved = tree.map(lambda leaf: leaf.to(self.device), to_device)
        self.state = State(moved["w"], moved["server"], state.own, state.round)
        self.history = [np.array(record.class_accuracy) for record in records]

    def play_round(self) -> Record:
        started = time.perf_counter()
        config, sites, state, algorithm = self.config, self.sites, self.state, self.algorithm
        round = state.round + 1

        # who trains, knowing what
        drawn = draw_cohort(config.seed, round, config.federation.clients, config.federation.ratio)
        shared, w_sent = algorithm.broadcast(state.server), algorithm.send(state.w, state.server)
        before = self.history[-1] if self.history else self.test(state.w).class_accuracy
        cohort = [k for k in drawn if k not in sites.left_out and k not in sites.unfit]
        require(
            bool(cohort),
            f"round {round}: all sites whose turn it is ({', '.join(map(sites.name, drawn))}) were turned away or left "
            f"out; the rounds before are kept, and the next flwr run goes on from there",
        )
        asked = sites.wait_for(cohort)

        # their updates, checked and put together as they come
        got = self.collect(round, asked, w_sent, shared, self.gathering(len(drawn)))
        used = sorted(got.reports)
        for k in set(cohort) - got.answered:
            sites.missed(round, k)
        need = sites.needed(len(cohort))
        require(
            len(used) >= need,
            f"round {round}: {len(used)} good updates from {len(cohort)} sites, {need} are needed; the rounds before "
            f"are kept, and the next flwr run goes on from there",
        )
        counts = sites.counts()
        up, p = self.weigh(got.uploads)
        # not all who were drawn; but with noise, the weights must not tell who of them has answered
        part = drawn if self.settings.noise else used
        fraction = float(client_shares(counts, config.federation.aggregation)[part].sum())
        algorithm = algorithm.with_values({"ratio": len(part) / config.federation.clients})
        w, server = algorithm.aggregate(state.w, state.server, up, p, fraction)
        if not tree.all_finite(w):
            raise Diverged(f"the global weights are not finite after round {round}; a lower optimiser.lr may help")
        last = {k: {"round": torch.tensor(round)} for k in used}
        self.state = State(w, server, state.own | last, round)

        tested = self.test(w)
        joint = counts[used].sum(0) / counts[used].sum()
        record = Record(
            round=round,
            **of_global_model(tested, before, self.history, joint),
            train_loss=float(np.mean([got.reports[k].loss for k in used])),
            **self.local_measures(got, counts),
            cohort=used,
            lr=learning_rate(config.optimiser, round),
            bytes_down=len(asked) * (tree.nbytes(w_sent) + tree.nbytes(shared)),
            bytes_up=len(used) * tree.nbytes(self.like),
            seconds=time.perf_counter() - started,
        )
        self.history.append(np.array(record.class_accuracy))
        return record

    def gathering(self, cohort: int) -> "Gathering":
        clip, noise, adaptive = self.account.clip, self.settings.noise, self.settings.clip_quantile > 0
        if noise:
            return NoisyMean(self.like, clip, noise, cohort, adaptive)
        plain = RunningMean(self.like) if self.streams else All()
        return Clipped(plain, clip) if clip else plain

    def collect(self, round: int, asked: list[int], w_sent: Weights, shared: dict, uploads: "Gathering") -> "Collected":
        sites, measure = self.sites, self.config.measure.locals_in(round) and self.test_set is not None
        weights, extras = to_record(w_sent), to_record(shared)
        questions = {}
        for k in asked:
            last = int(self.state.own[k]["round"]) if k in self.state.own else 0
            order = ConfigRecord(Order(self.account.run, round, last)._asdict())
            questions[k] = RecordDict({"weights": weights, "shared": extras, "what": order})
        got = Collected(uploads)
        for k, message in sites.ask(TRAIN, questions):
            got.answered.add(k)
            samples = sum(sites.hellos[k].counts)
            try:
                flat, report = read_update(message, self.flat_like, samples)
            except FedntdError as error:
                sites.refused(round, k, str(error))
                continue
            up = tree.unflatten({name: leaf.to(self.device) for name, leaf in flat.items()})
            if measure:
                got.local[k] = self.count(tree.add(w_sent, up["delta"]))
            got.uploads.add(k, up, float(samples) if self.config.federation.aggregation == "size" else 1.0)
            got.reports[k] = report
            sites.used(round, k, report)
        return got

    def weigh(self, uploads: "Gathering") -> tuple[dict, Tensor]:
        up, p = uploads.uploads()
        if isinstance(uploads, Clipped | NoisyMean):
            self.account.release(uploads)
        return call("robust", self.config.robust, up=up, p=p.to(self.device, self.model.storage))

    # --- measuring

    def test(self, w: Weights) -> Counts:
        """The global model on the coordinator's test set, or on the held-out samples of the sites."""
        if self.test_set is not None:
            return self.count(w)
        able = [k for k in self.sites.node_of if self.sites.hellos[k].tests]
        require(bool(able), "neither the coordinator nor a site has samples to test on; see `held_out` in the app")
        question = RecordDict({"weights": to_record(w)})
        found = []
        for k, message in self.sites.ask(EVALUATE, dict.fromkeys(able, question)):
            try:
                found.append(read_counts(message, len(self.samples.classes), self.settings.max_samples))
            except FedntdError as error:
                log(WARNING, "the test by %s is not counted: %s", self.sites.name(k), error)
        require(bool(found), "no site has tested the global model within the time limit")
        return summed(found)

    def count(self, w: Weights) -> Counts:
        return count(self.model, w, self.test_part, in_batches(len(self.test_part)), len(self.samples.classes))

    @cached_property
    def test_part(self) -> DevicePart:
        return self.on_device(self.samples.part)

    def on_device(self, part: Part) -> DevicePart:
        samples = self.samples
        return DevicePart(part, samples.mean, samples.std, None, self.device, self.model.storage)

    def local_measures(self, got: "Collected", counts: np.ndarray) -> dict[str, Any]:
        """Of the sites' own models: on the coordinator's test set, and, as the sites say, on their own samples."""
        measures = {}
        if got.local:
            pairs = [(got.local[k].class_accuracy, counts[k] / counts[k].sum()) for k in sorted(got.local)]
            measures |= mean_and_std("in_local", [in_local(a, p) for a, p in pairs])
            measures |= mean_and_std("out_local", [out_local(a, p) for a, p in pairs])
        told = [r for r in got.reports.values() if math.isfinite(r.right) and math.isfinite(r.summed_loss)]
        if told:
            measures |= mean_and_std("local_train_accuracy", [r.right / r.samples for r in told])
            measures |= mean_and_std("local_train_loss", [r.summed_loss / r.samples for r in told])
        return measures


Gathering = RunningMean | All | Clipped | NoisyMean


@dataclass
class Collected:
    """Of one round, by site."""

    uploads: Gathering
    answered: set[int] = field(default_factory=set)
    reports: dict[int, Report] = field(default_factory=dict)  # of the updates that are used
    local: dict[int, Counts] = field(default_factory=dict)  # the sites' own models on the coordinator's test set


def as_most_say(sites: Sites) -> Samples:
    """Where the coordinator has no samples, most sites decide what classes, shape and kind they have."""
    if not sites.came:
        sites.require_enough()
    told = Counter((tuple(h.classes), tuple(h.shape), h.integers) for _, h in sites.came)
    (classes, shape, integers), _ = told.most_common(1)[0]
    kind = torch.int64 if integers else torch.float32
    return Samples(Part(torch.zeros(2, *shape, dtype=kind), torch.zeros(2, dtype=torch.int64)), classes)
