"""The numbers in the paper's tables: accuracy in percent, forgetting F, standard deviation."""

import re
from typing import NamedTuple

from fedntd.paper.item import Cell


class Published(NamedTuple):
    """A cell of a table in the paper. `value` is None where the paper says that the run failed."""

    value: float | None
    second: float | None = None  # forgetting F
    std: float | None = None


def grid(columns: tuple[str, ...], text: str, scale: float = 1) -> dict[Cell, Published]:
    """Parse lines "row name: cell | cell | ...". A cell is 52.61 or 52.61(0.43) or 52.61(0.43)±1.00 or Failed.

    >>> grid(("E=1", "E=3"), "FedNTD: 35.77(0.64) | Failed")["FedNTD", "E=1"]
    Published(value=35.77, second=0.64, std=None)
    """
    cells = {}
    for line in text.strip().splitlines():
        row, _, rest = line.strip().rpartition(": ")
        for column, cell in zip(columns, rest.split("|"), strict=True):
            cells[row, column] = parse(cell.strip(), scale)
    return cells


def parse(cell: str, scale: float) -> Published:
    if cell == "Failed":
        return Published(None)
    match = re.fullmatch(r"([\d.]+)(?:\(([\d.]+)\))?(?:±([\d.]+))?", cell)
    assert match, cell
    value, second, std = (float(number) if number else None for number in match.groups())
    return Published(round((value or 0) * scale, 4), second, std)


# Table 1 (tab:main_forgetting), with the standard deviations of the appendix (tab:main_std)
SHARDING = (
    "MNIST s=2",
    *("CIFAR-10 s=2", "CIFAR-10 s=3", "CIFAR-10 s=5", "CIFAR-10 s=10"),
    *("CIFAR-100 s=10", "CINIC-10 s=2"),
)
LDA = (
    "MNIST α=0.1",
    *("CIFAR-10 α=0.05", "CIFAR-10 α=0.1", "CIFAR-10 α=0.3", "CIFAR-10 α=0.5"),
    *("CIFAR-100 α=0.1", "CINIC-10 α=0.1"),
)
# ruff: noqa: E501
TABLE1_SHARDING = grid(
    SHARDING,
    """
    FedAvg: 78.63(0.20)±0.42 | 40.14(0.59)±1.15 | 51.10(0.46)±0.11 | 57.17(0.37)±0.12 | 64.91(0.26)±0.69 | 25.57(0.49)±0.44 | 39.64(0.59)±0.78
    FedCurv: 78.56(0.21)±0.23 | 44.52(0.53)±0.44 | 49.00(0.47)±0.41 | 54.61(0.39)±0.20 | 62.19(0.27)±0.47 | 22.89(0.49)±0.66 | 40.45(0.57)±0.25
    FedProx: 78.26(0.21)±0.28 | 41.48(0.57)±1.08 | 51.65(0.45)±0.53 | 56.88(0.37)±0.15 | 64.65(0.25)±0.61 | 25.10(0.49)±0.67 | 41.47(0.57)±0.99
    FedNova: 77.04(0.21)±0.98 | 42.62(0.56)±1.32 | 52.03(0.44)±1.49 | 62.14(0.30)±0.74 | 66.97(0.20)±0.39 | 26.96(0.41)±0.59 | 42.55(0.56)±0.10
    SCAFFOLD: 81.05(0.17)±0.26 | 44.60(0.53)±2.24 | 54.26(0.39)±0.22 | 65.74(0.23)±0.36 | 68.97(0.16)±0.34 | 30.82(0.36)±0.31 | 42.66(0.54)±0.92
    MOON: 76.56(0.23)±0.24 | 38.51(0.60)±0.96 | 50.47(0.47)±0.15 | 56.69(0.39)±0.11 | 65.30(0.25)±0.51 | 25.29(0.48)±0.24 | 37.07(0.62)±0.24
    FedNTD: 84.44(0.13)±0.43 | 52.61(0.43)±1.00 | 58.18(0.34)±1.42 | 64.93(0.23)±0.34 | 68.56(0.15)±0.24 | 31.69(0.32)±0.13 | 48.07(0.48)±0.36
    """,
)
TABLE1_LDA = grid(
    LDA,
    """
    FedAvg: 79.73(0.19)±0.20 | 28.24(0.71)±3.11 | 46.49(0.51)±0.93 | 57.24(0.36)±0.21 | 62.53(0.28)±0.41 | 30.69(0.32)±0.27 | 38.14(0.60)±3.40
    FedCurv: 78.72(0.20)±0.44 | 33.64(0.66)±2.98 | 44.26(0.53)±0.79 | 54.93(0.38)±0.46 | 59.37(0.30)±0.24 | 29.16(0.32)±0.22 | 36.69(0.61)±3.03
    FedProx: 79.25(0.19)±0.16 | 37.19(0.62)±3.17 | 47.65(0.49)±0.90 | 57.35(0.35)±0.40 | 62.39(0.27)±0.31 | 30.60(0.32)±0.16 | 39.47(0.58)±3.40
    FedNova: 60.37(0.38)±2.71 | Failed | 28.06(0.71)±0.12 | 57.44(0.35)±1.69 | 64.65(0.23)±0.34 | 32.15(0.28)±0.13 | 30.44(0.68)±1.35
    SCAFFOLD: 71.57(0.26)±0.72 | Failed | 23.12(0.74)±0.55 | 62.01(0.29)±0.34 | 66.16(0.19)±0.13 | 33.68(0.25)±0.13 | 28.78(0.69)±1.26
    MOON: 78.95(0.20)±0.46 | 28.35(0.71)±3.68 | 44.77(0.53)±1.12 | 58.38(0.35)±0.09 | 63.10(0.27)±0.00 | 30.64(0.32)±0.12 | 37.92(0.61)±3.31
    FedNTD: 81.34(0.17)±0.33 | 40.17(0.58)±3.19 | 54.42(0.42)±0.06 | 62.42(0.29)±0.53 | 66.12(0.19)±0.26 | 32.37(0.26)±0.02 | 46.24(0.50)±1.67
    """,
)

# appendix, effect of local epochs (tab:local_epochs_sharding2, tab:local_epochs_lda01)
EPOCHS = ("E=1", "E=3", "E=5", "E=10", "E=20")
EPOCHS_S2 = grid(
    EPOCHS,
    """
    FedAvg: 29.49(0.70) | 34.49(0.64) | 40.14(0.59) | 50.08(0.49) | 56.93(0.42)
    FedProx: 29.44(0.69) | 34.00(0.64) | 41.48(0.57) | 42.74(0.53) | 43.39(0.52)
    FedNova: 27.77(0.71) | 32.00(0.64) | 42.62(0.56) | 48.59(0.50) | 58.24(0.39)
    SCAFFOLD: 34.46(0.64) | 39.26(0.58) | 44.60(0.53) | 55.35(0.41) | 62.80(0.34)
    FedNTD: 35.77(0.64) | 45.47(0.50) | 52.61(0.43) | 60.22(0.36) | 60.61(0.34)
    """,
)
EPOCHS_LDA = grid(
    EPOCHS,
    """
    FedAvg: 29.77(0.69) | 37.70(0.60) | 46.49(0.51) | 53.80(0.43) | 57.70(0.39)
    FedProx: 33.37(0.65) | 37.88(0.57) | 47.65(0.49) | 44.02(0.50) | 44.98(0.49)
    FedNova: 26.35(0.73) | 24.37(0.74) | 28.06(0.71) | 47.41(0.50) | Failed
    SCAFFOLD: 13.36(0.86) | 22.04(0.75) | 23.12(0.74) | 38.49(0.57) | 47.07(0.47)
    FedNTD: 33.94(0.64) | 45.92(0.50) | 54.42(0.42) | 60.67(0.33) | 62.25(0.30)
    """,
)

# appendix, effect of the sampling ratio (tab:sampling_ratio_sharding2, tab:sampling_ratio_lda01)
RATIOS = ("R=0.05", "R=0.1", "R=0.3", "R=0.5", "R=1.0")
RATIOS_S2 = grid(
    RATIOS,  # the paper prints the same numbers for FedNova and SCAFFOLD at 0.3 and 0.5
    """
    FedAvg: 33.06(0.66) | 40.14(0.59) | 49.99(0.46) | 52.98(0.41) | 51.48(0.30)
    FedProx: 35.36(0.63) | 41.48(0.57) | 44.54(0.45) | 50.02(0.31) | 52.53(0.06)
    FedNova: 29.99(0.69) | 42.62(0.56) | 55.59(0.31) | 56.75(0.23) | 51.89(0.34)
    SCAFFOLD: 29.15(0.70) | 44.60(0.53) | 55.59(0.31) | 56.75(0.23) | 57.88(0.10)
    FedNTD: 46.99(0.51) | 52.61(0.43) | 59.37(0.28) | 60.70(0.18) | 61.53(0.04)
    """,
)
RATIOS_LDA = grid(
    RATIOS,
    """
    FedAvg: 29.35(0.70) | 46.49(0.51) | 53.73(0.39) | 58.72(0.25) | 61.38(0.04)
    FedProx: 36.36(0.63) | 47.65(0.49) | 45.78(0.37) | 49.65(0.23) | 51.31(0.07)
    FedNova: 21.31(0.78) | 28.06(0.71) | 45.83(0.49) | 55.09(0.50) | 56.79(0.30)
    SCAFFOLD: 15.80(0.84) | 23.12(0.74) | 41.29(0.51) | Failed | Failed
    FedNTD: 45.80(0.53) | 54.42(0.42) | 58.57(0.33) | 60.88(0.19) | 62.48(0.06)
    """,
)

# appendix, ResNet-10
RESNET10 = grid(
    ("FedAvg", "SCAFFOLD", "MOON", "FedNTD"),
    """
    Sharding s=2: 36.01 | 44.59 | 35.21 | 46.27
    Sharding s=5: 39.21 | 65.08 | 51.02 | 65.92
    LDA α=0.1: 33.35 | 38.78 | 33.57 | 49.85
    """,
)

# appendix, comparison to KD (tab:kd_ntd)
KD_NTD = grid(
    ("KD", "λ=0.1", "λ=0.3", "λ=0.5", "λ=0.7", "λ=0.9", "NTD"),
    """
    Sharding s=2: 46.2 | 46.4 | 46.9 | 47.6 | 48.8 | 50.2 | 52.6
    LDA α=0.1: 50.8 | 50.9 | 51.4 | 51.9 | 52.6 | 53.6 | 54.9
    """,
)

# appendix, comparison to FedAlign (tab:fedalign), printed as fractions of 1
FEDALIGN = grid(
    ("FedAvg", "FedAlign", "FedNTD"),
    """
    16 clients, α=0.05: 0.4556 | 0.3743 | 0.4943
    16 clients, α=0.1: 0.7083 | 0.6532 | 0.7195
    16 clients, α=0.5: 0.8163 | 0.8185 | 0.8266
    64 clients, α=0.05: 0.2535 | 0.1854 | 0.3927
    64 clients, α=0.1: 0.4247 | 0.3931 | 0.5634
    64 clients, α=0.5: 0.7568 | 0.7698 | 0.7846
    """,
    scale=100,
)

# appendix, MSE loss for not-true distillation (tab:mse)
MSE = grid(
    ("FedAvg", "MSE β=0.001", "MSE β=0.005", "MSE β=0.01", "MSE β=0.05", "MSE β=0.1", "MSE β=0.3", "FedNTD β=1"),
    """
    Sharding s=2: 40.14(0.59) | 40.53(0.58) | 42.39(0.56) | 43.02(0.55) | 44.41(0.53) | 44.27(0.53) | Failed | 52.61(0.43)
    """,
)

# Table 2, weight alignment (tab:weight_alignment): share of neurons that prefer the same class in W_G before the round and in the local models, or W_G after it
ALIGNMENT = grid(
    ("IID FedAvg", "IID FedNTD", "s=2 FedAvg", "s=2 FedNTD", "α=0.05 FedAvg", "α=0.05 FedNTD"),
    """
    512 units, global and locals: 0.679 | 0.668 | 0.635 | 0.703 | 0.597 | 0.756
    512 units, global and next global: 0.850 | 0.830 | 0.787 | 0.871 | 0.670 | 0.856
    128 units, global and locals: 0.771 | 0.765 | 0.488 | 0.552 | 0.512 | 0.730
    128 units, global and next global: 0.898 | 0.906 | 0.609 | 0.836 | 0.586 | 0.859
    """,
)

# appendix, additional requirements (tab:additional_requirements): True if a method needs no client state, no additional
# communication, no auxiliary data
REQUIREMENTS: dict[str, tuple[bool, bool, bool]] = {
    "FedEnsemble": (True, True, False),
    "FedBE": (True, False, False),
    "MOON": (False, True, True),
    "SCAFFOLD": (False, False, True),
    "FedNTD": (True, True, True),
}
