"""The methods, one file each. To add one: write the file and add a line here; tests/test_contract.py then checks it."""

from fedntd.algorithms.balanced import Balanced
from fedntd.algorithms.balanced_ntd import BalancedNTD
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedacg import FedACG
from fedntd.algorithms.fedalign import FedAlign
from fedntd.algorithms.fedasam import FedASAM
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.fedavgm import FedAvgM
from fedntd.algorithms.fedbe import FedBE
from fedntd.algorithms.fedcurv import FedCurv
from fedntd.algorithms.feddecorr import FedDecorr
from fedntd.algorithms.feddf import FedDF
from fedntd.algorithms.feddyn import FedDyn
from fedntd.algorithms.fedexp import FedExP
from fedntd.algorithms.fedkd import FedKD
from fedntd.algorithms.fedkd_ntd import FedKDNTD
from fedntd.algorithms.fedlc import FedLC
from fedntd.algorithms.fedlmd import FedLMD
from fedntd.algorithms.fednova import FedNova
from fedntd.algorithms.fednova_released import FedNovaReleased
from fedntd.algorithms.fedntd import FedNTD
from fedntd.algorithms.fedntd_mse import FedNTDMSE
from fedntd.algorithms.fedopt import FedOpt
from fedntd.algorithms.fedprox import FedProx
from fedntd.algorithms.fedrs import FedRS
from fedntd.algorithms.fedsam import FedSAM
from fedntd.algorithms.fedsol import FedSOL
from fedntd.algorithms.moon import Moon
from fedntd.algorithms.scaffold import Scaffold
from fedntd.algorithms.wsm import WSM

ALGORITHMS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedntd": FedNTD,
    # the paper's baselines and ablations
    "fedcurv": FedCurv,
    "fedprox": FedProx,
    "fednova": FedNova,
    "fednova-released": FedNovaReleased,
    "scaffold": Scaffold,
    "moon": Moon,
    "fedalign": FedAlign,
    "feddf": FedDF,
    "fedbe": FedBE,
    "fedkd": FedKD,
    "fedkd-ntd": FedKDNTD,
    "fedntd-mse": FedNTDMSE,
    # beyond the paper: methods that change the server step
    "fedavgm": FedAvgM,
    "fedopt": FedOpt,
    "fedexp": FedExP,
    "fedacg": FedACG,
    # beyond the paper: methods that change the client update
    "feddyn": FedDyn,
    "fedlc": FedLC,
    "fedrs": FedRS,
    "fedlmd": FedLMD,
    "balanced": Balanced,
    "balanced-ntd": BalancedNTD,
    "wsm": WSM,
    "feddecorr": FedDecorr,
    "fedsam": FedSAM,
    "fedasam": FedASAM,
    "fedsol": FedSOL,
}

# `server.name`: server steps that can be combined with any method
SERVER_RULES: dict[str, type[FedAvg]] = {"none": FedAvg, "fedavgm": FedAvgM, "fedopt": FedOpt}

__all__ = [
    "ALGORITHMS",
    "SERVER_RULES",
    "WSM",
    "Balanced",
    "BalancedNTD",
    "Context",
    "FedACG",
    "FedASAM",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedCurv",
    "FedDF",
    "FedDecorr",
    "FedDyn",
    "FedExP",
    "FedKD",
    "FedKDNTD",
    "FedLC",
    "FedLMD",
    "FedNTD",
    "FedNTDMSE",
    "FedNova",
    "FedNovaReleased",
    "FedOpt",
    "FedProx",
    "FedRS",
    "FedSAM",
    "FedSOL",
    "Moon",
    "Result",
    "Scaffold",
    "Upload",
]
