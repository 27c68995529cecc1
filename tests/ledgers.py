"""Made-up results: a run's history is drawn so that it ends at a given accuracy and F."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedntd.config.schema import Config
from fedntd.paper.item import Cell, Item, Results, Setting
from fedntd.runs.ledger import RunResult, file_name, to_text
from fedntd.support.files import put


def made_up(
    config: Config, percent: float, forgetting: float = 0.3, status: str = "finished", **history: Any
) -> RunResult:
    """Ends at `percent` by every rule but the best; other measures are constant, or as given."""
    if config.precision == "auto":  # a run knows its own
        config = replace(config, precision="fp32")
    rounds, classes = config.federation.rounds, 10
    final = percent / 100
    rise = np.full(rounds, final)
    rise[: rounds // 2] = np.linspace(0.1, final, rounds // 2)
    class_accuracy = np.repeat(rise[:, None], classes, axis=1)
    measures: dict[str, Any] = {
        "accuracy": rise,
        "loss": 1 - rise,
        "class_accuracy": class_accuracy,
        "similarity": np.ones(rounds),
        "forgetting": np.full(rounds, forgetting),
        **{f"global_{side}_{when}": rise for side in ("in", "out") for when in ("before", "after")},
    }
    if config.measure.local_every:
        measures |= {f"{side}_local{std}": rise for side in ("in", "out") for std in ("", "_std")}
        measures |= {"local_train_accuracy": rise, "local_train_accuracy_std": rise}
    measures |= {name: np.full(rounds, value) for name, value in history.items()}
    return RunResult(
        config=config,
        status=status,
        reason="the global weights are not finite after round 7" if status == "failed" else "",
        history={name: np.asarray(values).tolist() for name, values in measures.items()},
        seconds=12.5,
        environment={"device": "a machine", "torch": "2.13", "fedntd": "0", "commit": "abc", "date": "2026-01-02"},
    )


def fill(
    item: Item,
    figures: Callable[[str, str], float | None],
    seeds: int = 1,
    setting: Setting | None = None,
    measured: dict[str, Any] | None = None,
    **more: Any,
) -> Results:
    """Results of an item whose cells have the accuracy that `figures` gives (None: open)."""
    setting = setting or Setting(seeds=seeds)
    found: dict[Cell, list[RunResult]] = {}
    for cell in item.runs:
        accuracy = figures(*cell)
        if accuracy is not None:
            found[cell] = [made_up(item.config(cell, seed, setting), accuracy + seed, **more) for seed in range(seeds)]
    return Results(item, setting, found, measured or {})


def write_ledger(folder: Path, results: list[RunResult]) -> None:
    for result in results:
        put(folder / f"{file_name(result.config)}.json", to_text(result))
