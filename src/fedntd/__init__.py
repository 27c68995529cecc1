"""Federated learning under heterogeneous data: FedNTD, the methods it is compared with, and measures of forgetting."""

from importlib.metadata import PackageNotFoundError, version

from fedntd.algorithms import ALGORITHMS
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.fedntd import FedNTD
from fedntd.config.presets import configure
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

try:
    __version__ = version("fedntd")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

__all__ = [
    "ALGORITHMS",
    "Augment",
    "Batch",
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
