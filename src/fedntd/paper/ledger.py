"""The ledger: one small JSON file a run, which says what was run, on what, and what came of it.

A run that has a file here needs no run folder for its tables and figures to be drawn.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedntd.config import Config, Measure, from_table, identity, to_table
from fedntd.errors import FedntdError, require
from fedntd.metrics import forgetting, moving_average
from fedntd.record import Run, read_json, read_run

# the measures of a round that are kept, by their names in `Record`
KEPT = (
    *("accuracy", "loss", "class_accuracy", "similarity", "forgetting"),
    *("global_in_before", "global_in_after", "global_out_before", "global_out_after"),
    *("in_local", "in_local_std", "out_local", "out_local_std"),
    *("local_train_accuracy", "local_train_accuracy_std"),
)


@dataclass(frozen=True)
class Result:
    """One run. `history` has a list with one value a round for each of `KEPT`; local ones may be missing or None."""

    config: Config
    status: str  # finished or failed
    reason: str
    history: Mapping[str, list[Any]]
    seconds: float
    environment: Mapping[str, Any]  # device, torch, commit, date
    folder: Path | None = None  # with the checkpoint, if the run was made here

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """By each rule of reporting, as a share of 1."""
        values = self.history["accuracy"]
        return {
            "final": values[-1],
            "best": max(values),
            "last10": float(np.mean(values[-10:])),
            "ema": moving_average(values),
        }

    @property
    def forgetting(self) -> float:
        """F after the last round."""
        return self.history["forgetting"][-1]
