import numpy as np
import pytest

from fedntd.engine import plan


def sizes(samples: int, drop_last: bool, epochs: int = 2, batch_size: int = 8) -> list[int]:
    owned = np.arange(100, 100 + samples)
    made = plan.local_plan(0, 1, 3, owned, epochs, batch_size, None, (1,), drop_last)
    found = [len(batch) for batch, _ in made.batches()]
    assert made.steps == len(found)
    for epoch in np.split(made.samples, epochs):
        assert len(set(epoch.tolist())) == len(epoch)  # no sample twice
        assert set(epoch.tolist()) <= set(owned.tolist())
    return found


@pytest.mark.parametrize(
    ("samples", "kept", "dropped"),
    [(19, [8, 8, 3] * 2, [8, 8] * 2), (16, [8, 8] * 2, [8, 8] * 2), (8, [8, 8], [8, 8]), (5, [5, 5], [5, 5])],
)
def test_the_short_last_batch(samples: int, kept: list[int], dropped: list[int]):
    """Kept, or left out, unless it is all that a client has."""
    assert sizes(samples, drop_last=False) == kept
    assert sizes(samples, drop_last=True) == dropped


def test_what_is_left_out_differs_by_epoch():
    made = plan.local_plan(0, 1, 3, np.arange(19), 2, 8, None, (1,), True)
    first, second = np.split(made.samples, 2)
    assert set(first.tolist()) != set(second.tolist())
    whole = plan.local_plan(0, 1, 3, np.arange(19), 2, 8, None, (1,))
    assert first.tolist() == whole.samples[:16].tolist()  # the same order as when all are seen
