"""Run folders with made-up but plausible numbers: written by a real `RunFolder`, and read back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedntd import Config
from fedntd.config import toml as tables
from fedntd.config.build import deal
from fedntd.config.cohort import cohort as draw_cohort
from fedntd.config.schema import with_own_code
from fedntd.data.partition import class_counts
from fedntd.runs.measures import cosine, forgetting, in_local, out_local
from fedntd.runs.reader import Run, read_run
from fedntd.runs.record import Record, RunFolder, mean_and_std

FASHION = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def settings(algorithm: str = "fedavg", rounds: int = 60, seed: int = 0, **more: Any) -> Config:
    """`more` as on the command line, with __ for the dot: federation__clients=20."""
    table: dict[str, Any] = {"seed": seed, "algorithm": {"name": algorithm}, "federation": {"rounds": rounds}}
    given = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in more.items()]
    return with_own_code(tables.from_table(tables.with_settings(table, given)))


def write_run(
    path: Path,
    config: Config,
    records: Sequence[Record],
    classes: Sequence[str] = FASHION,
    status: str = "finished",
    reason: str = "",
) -> Run:
    labels = np.repeat(np.arange(len(classes)), 500)
    counts = class_counts(labels, deal(config, labels), len(classes))
    with RunFolder(path, config, resume=False) as folder:
        folder.start(classes, counts, torch.device("cpu"), config.precision)
        for record in records:
            folder.append(record)
        if status != "interrupted":  # an interrupted run still has the status "running"
            folder.put_status(status, reason)
    return read_run(path)


def plain_record(round: int, accuracy: float, **changes: Any) -> Record:
    """A record with exact numbers."""
    values: Mapping[str, Any] = {
        "round": round,
        "accuracy": accuracy,
        "loss": 1.0,
        "class_accuracy": [accuracy] * 10,
        "similarity": None if round == 1 else 0.9,
        "forgetting": 0.1,
        "train_loss": 1.0,
        "cohort": [0, 1],
        "lr": 0.01,
        "bytes_down": 1000,
        "bytes_up": 500,
        "seconds": 2.0,
        "global_in_before": 0.5,
        "global_in_after": 0.6,
        "global_out_before": 0.4,
        "global_out_after": 0.3,
    }
    return Record(**{**values, **changes})


def exact_run(path: Path, accuracies: Sequence[float], status: str = "finished", reason: str = "", **more: Any) -> Run:
    """A run with one round per accuracy; F is half the accuracy."""
    records = [plain_record(t, a, forgetting=a / 2) for t, a in enumerate(accuracies, start=1)]
    config = settings(**{"rounds": max(1, len(accuracies)), **more})
    return write_run(path, config, records, status=status, reason=reason)


def methods_by_partitions(path: Path) -> list[Run]:
    """Two methods by two partitions: FedNTD is better on one of them, FedAvg on the other."""
    return [
        exact_run(path / f"{method}{s}", [accuracy], algorithm=method, partition__s=s)
        for method, s, accuracy in (("fedavg", 2, 0.3), ("fedavg", 5, 0.8), ("fedntd", 2, 0.5), ("fedntd", 5, 0.7))
    ]


def plausible_records(config: Config, classes: int = 10, stop: int | None = None) -> list[Record]:
    """Accuracy that rises and swings with the classes the cohort holds, less so for FedNTD."""
    beta = config.algorithm.options.get("beta", 0.0)
    rng = np.random.default_rng([config.seed, round(100 * beta)])
    labels = np.repeat(np.arange(classes), 500)
    counts = class_counts(labels, deal(config, labels), classes)
    p = counts / counts.sum(1, keepdims=True)
    top, swing = 0.80 + 0.06 * beta, 0.65 - 0.30 * beta
    ease = rng.uniform(0.75, 1.1, classes)  # some classes are easier than others
    history: list[np.ndarray] = []
    records = []
    cost = 10 * 582_026 * 4
    for t in range(1, (stop if stop is not None else config.federation.rounds) + 1):
        cohort = draw_cohort(config.seed, t, config.federation.clients, config.federation.ratio)
        joint = p[cohort].mean(0)
        skill = top * (1 - np.exp(-t / 14)) * ease

        def seen(share: np.ndarray, swing: float, skill: np.ndarray = skill) -> np.ndarray:
            held = np.minimum(1, classes * share)
            return np.clip(skill * (1 - swing + swing * held) + rng.normal(0, 0.02, classes), 0, 1)

        before = history[-1] if history else np.full(classes, 1 / classes)
        after = 0.35 * before + 0.65 * seen(joint, swing)
        local = [np.clip(seen(p[k], min(1, 1.5 * swing)) + 0.25 * (p[k] > 0.1), 0, 1) for k in cohort]
        every = config.measure.local_every
        measured: dict[str, float] = {}
        if every and (t % every == 0 or t == 1):
            measured = {
                **mean_and_std("in_local", [in_local(a, p[k]) for a, k in zip(local, cohort, strict=True)]),
                **mean_and_std("out_local", [out_local(a, p[k]) for a, k in zip(local, cohort, strict=True)]),
            }
        seconds = rng.uniform(1.4, 1.8) * (1.25 if beta else 1)
        record = plain_record(
            t,
            float(after.mean()),
            loss=float(1.8 - after.mean()),
            class_accuracy=after.tolist(),
            similarity=cosine(before, after) if history else None,
            forgetting=forgetting(history, after),
            cohort=cohort,
            bytes_down=cost,
            bytes_up=cost,
            seconds=seconds + 0.2,
            global_in_before=in_local(before, joint),
            global_in_after=in_local(after, joint),
            global_out_before=out_local(before, joint),
            global_out_after=out_local(after, joint),
            **measured,
        )
        history.append(after)
        records.append(record)
    return records


def make_run(
    path: Path,
    algorithm: str = "fedavg",
    classes: Sequence[str] = FASHION,
    status: str = "finished",
    reason: str = "",
    stop: int | None = None,
    **more: Any,
) -> Run:
    config = settings(algorithm, **more)
    return write_run(path, config, plausible_records(config, len(classes), stop), classes, status, reason)
