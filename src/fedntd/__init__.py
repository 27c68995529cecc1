"""Federated learning under heterogeneous data: FedNTD, the methods it is compared with, and measures of forgetting.

The public names are imported when they are first used: most of them need torch, which takes more than a second to
import, and `fedntd --help` needs none of them.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fedntd.support import moved

if TYPE_CHECKING:
    from fedntd.algorithms import ALGORITHMS
    from fedntd.algorithms.base import Context, Result, Upload
    from fedntd.algorithms.fedavg import FedAvg
    from fedntd.algorithms.fedntd import FedNTD
    from fedntd.config.presets import configure
    from fedntd.config.registry import Choice
    from fedntd.config.schema import Config
    from fedntd.data.augment import Augment
    from fedntd.data.dataset import Dataset, from_tensors
    from fedntd.errors import Diverged, FedntdError
    from fedntd.models.functional import Batch, Model, Out, Taps
    from fedntd.report.export import load
    from fedntd.runs.reader import Run, read_run
    from fedntd.runs.record import Record
    from fedntd.simulation.federation import Federation
    from fedntd.simulation.together import federate, federate_together

PUBLIC = {
    "ALGORITHMS": "fedntd.algorithms",
    "Augment": "fedntd.data.augment",
    "Batch": "fedntd.models.functional",
    "Choice": "fedntd.config.registry",
    "Config": "fedntd.config.schema",
    "Context": "fedntd.algorithms.base",
    "Dataset": "fedntd.data.dataset",
    "Diverged": "fedntd.errors",
    "FedAvg": "fedntd.algorithms.fedavg",
    "FedNTD": "fedntd.algorithms.fedntd",
    "Federation": "fedntd.simulation.federation",
    "FedntdError": "fedntd.errors",
    "Model": "fedntd.models.functional",
    "Out": "fedntd.models.functional",
    "Record": "fedntd.runs.record",
    "Result": "fedntd.algorithms.base",
    "Run": "fedntd.runs.reader",
    "Taps": "fedntd.models.functional",
    "Upload": "fedntd.algorithms.base",
    "configure": "fedntd.config.presets",
    "federate": "fedntd.simulation.together",
    "federate_together": "fedntd.simulation.together",
    "from_tensors": "fedntd.data.dataset",
    "load": "fedntd.report.export",
    "read_run": "fedntd.runs.reader",
}
PACKAGES = {"algorithms", "analysis", "data", "flower", "models", "report"}

__all__ = [
    "ALGORITHMS",
    "Augment",
    "Batch",
    "Choice",
    "Config",
    "Context",
    "Dataset",
    "Diverged",
    "FedAvg",
    "FedNTD",
    "Federation",
    "FedntdError",
    "Model",
    "Out",
    "Record",
    "Result",
    "Run",
    "Taps",
    "Upload",
    "configure",
    "federate",
    "federate_together",
    "from_tensors",
    "load",
    "read_run",
]

try:
    __version__ = version("fedntd")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

moved.install()


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        found = getattr(importlib.import_module(PUBLIC[name]), name)
    elif name in PACKAGES or f"{__name__}.{name}" in moved.MOVED:
        found = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
