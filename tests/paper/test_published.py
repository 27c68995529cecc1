"""The published figures: spot checks against the print, and figures that the paper prints in two places."""

import pytest

from fedntd.paper.items import effects
from fedntd.paper.published import (
    ALIGNMENT,
    EPOCHS,
    EPOCHS_LDA,
    EPOCHS_S2,
    FEDALIGN,
    KD_NTD,
    MSE,
    RATIOS_LDA,
    RATIOS_S2,
    REQUIREMENTS,
    RESNET10,
    TABLE1_LDA,
    TABLE1_SHARDING,
    Published,
)


@pytest.mark.parametrize(
    ("table", "cell", "published"),
    [
        (TABLE1_SHARDING, ("FedNTD", "CIFAR-10 s=2"), (52.61, 0.43, 1.00)),
        (TABLE1_SHARDING, ("SCAFFOLD", "CIFAR-10 s=10"), (68.97, 0.16, 0.34)),
        (TABLE1_SHARDING, ("MOON", "CINIC-10 s=2"), (37.07, 0.62, 0.24)),
        (TABLE1_LDA, ("FedAvg", "CIFAR-10 α=0.05"), (28.24, 0.71, 3.11)),
        (TABLE1_LDA, ("FedNova", "CIFAR-100 α=0.1"), (32.15, 0.28, 0.13)),
        (TABLE1_LDA, ("SCAFFOLD", "CIFAR-10 α=0.05"), (None, None, None)),
        (EPOCHS_S2, ("SCAFFOLD", "E=20"), (62.80, 0.34, None)),
        (EPOCHS_LDA, ("FedNova", "E=20"), (None, None, None)),
        (RATIOS_S2, ("FedProx", "R=1.0"), (52.53, 0.06, None)),
        (RATIOS_LDA, ("FedNTD", "R=0.05"), (45.80, 0.53, None)),
        (RESNET10, ("LDA α=0.1", "FedNTD"), (49.85, None, None)),
        (KD_NTD, ("Sharding s=2", "λ=0.9"), (50.2, None, None)),
        (FEDALIGN, ("64 clients, α=0.1", "FedNTD"), (56.34, None, None)),
        (MSE, ("Sharding s=2", "MSE β=0.05"), (44.41, 0.53, None)),
        (ALIGNMENT, ("128 units, global and next global", "s=2 FedNTD"), (0.836, None, None)),
    ],
)
def test_spots(table: dict, cell: tuple[str, str], published: tuple):
    assert table[cell] == Published(*published)


def test_sizes():
    tables = (TABLE1_SHARDING, TABLE1_LDA, EPOCHS_S2, EPOCHS_LDA, RATIOS_S2, RATIOS_LDA, RESNET10, KD_NTD, FEDALIGN)
    assert [len(table) for table in tables] == [49, 49, 25, 25, 25, 25, 12, 14, 18]
    assert len(MSE) == 8
    assert len(ALIGNMENT) == 24
    assert REQUIREMENTS["SCAFFOLD"] == (False, False, True)


@pytest.mark.parametrize("method", ["FedAvg", "FedProx", "FedNova", "SCAFFOLD", "FedNTD"])
def test_the_same_runs_in_other_tables(method: str):
    """Five local epochs and a ratio of 0.1 are Table 1's setting, and the paper prints the same figures there."""
    for main, column, others in (
        (TABLE1_SHARDING, "CIFAR-10 s=2", (EPOCHS_S2, RATIOS_S2)),
        (TABLE1_LDA, "CIFAR-10 α=0.1", (EPOCHS_LDA, RATIOS_LDA)),
    ):
        for other, name in zip(others, ("E=5", "R=0.1"), strict=True):
            assert other[method, name][:2] == main[method, column][:2]


def test_what_is_said_of_the_lead_by_local_epochs():
    for table, largest in ((EPOCHS_S2, "E=5"), (EPOCHS_LDA, "E=3")):
        ours, base = ([table[method, column].value or 0 for column in EPOCHS] for method in ("FedNTD", "FedAvg"))
        lead = {column: a - b for column, a, b in zip(EPOCHS, ours, base, strict=True)}
        assert lead["E=10"] > lead["E=1"]
        assert max(lead, key=lead.__getitem__) == largest
        assert largest in effects.EPOCHS.about


def test_fedntd_is_above_fedavg_everywhere_in_print():
    for table in (TABLE1_SHARDING, TABLE1_LDA, EPOCHS_S2, EPOCHS_LDA, RATIOS_S2, RATIOS_LDA):
        for column in {column for _, column in table}:
            ours, base = (table[method, column].value for method in ("FedNTD", "FedAvg"))
            assert ours is not None
            assert base is not None
            assert ours > base
