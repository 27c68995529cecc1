"""The one-gather augmentation against plain slicing, image by image."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedntd.data.augment import Augment, Draws
from fedntd.data.dataset import Part
from fedntd.data.device import DevicePart

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def by_hand(image: np.ndarray, augment: Augment, top: int, left: int, flip: int, y: int, x: int) -> np.ndarray:
    """Pad, crop, mirror, normalise, cut out: in the order of the definition."""
    _, height, width = image.shape
    p = augment.pad
    padded = np.pad(image, ((0, 0), (p, p), (p, p)), mode="reflect" if augment.reflect else "constant")
    out = padded[:, top + p : top + p + height, left + p : left + p + width]
    if flip:
        out = out[:, :, ::-1]
    out = (out / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    half = augment.cutout // 2
    out[:, max(0, y - half) : y + half, max(0, x - half) : x + half] = 0 if augment.cutout else out[:, 0:0, 0:0]
    return out


@given(pad=st.integers(0, 3), reflect=st.booleans(), cutout=st.sampled_from([0, 2, 4, 20]), seed=st.integers(0, 1000))
def test_against_plain_slicing(pad: int, reflect: bool, cutout: int, seed: int):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (4, 3, 6, 7), dtype=np.uint8)
    augment = Augment(pad, reflect, flip=True, cutout=cutout)
    part = DevicePart(
        Part(torch.from_numpy(images), torch.arange(4)), MEAN, STD, augment, torch.device("cpu"), torch.float64
    )
    samples = rng.integers(0, 4, 5)
    draws = augment.draw(rng, 5, 6, 7)
    batch = part.batch(samples, draws)
    assert batch.y.tolist() == samples.tolist()
    for i, place in enumerate(samples):
        wanted = by_hand(images[place], augment, *(int(d[i]) for d in draws))
        np.testing.assert_allclose(batch.x[i].numpy(), wanted, atol=1e-12)


def test_draws_cover_their_ranges():
    draws = Augment(pad=2, flip=True).draw(np.random.default_rng(0), 2000, 4, 6)
    assert set(draws.top.tolist()) == set(draws.left.tolist()) == {-2, -1, 0, 1, 2}
    assert set(draws.flip.tolist()) == {0, 1}
    assert 0.45 < draws.flip.double().mean() < 0.55
    assert set(draws.hole_y.tolist()) == set(range(4))
    assert set(draws.hole_x.tolist()) == set(range(6))


def test_no_flip_means_never():
    assert not Augment(flip=False).draw(np.random.default_rng(0), 100, 4, 4).flip.any()


def test_padding_is_black_before_normalisation_and_the_hole_zero_after():
    white = Part(torch.full((1, 1, 4, 4), 255, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    one = torch.ones(1, dtype=torch.int64)
    shifted = Draws(top=-4 * one, left=0 * one, flip=0 * one, hole_y=3 * one, hole_x=3 * one)
    part = DevicePart(white, (0.5,), (0.25,), Augment(pad=4, cutout=2), torch.device("cpu"), torch.float32)
    x = part.batch(np.array([0]), shifted).x[0, 0]
    assert x[0, 0].item() == pytest.approx(-2)  # (0 - 0.5) / 0.25
    assert x[3, 3].item() == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_have_channels_last_in_memory(channels: int):
    # A hidden change of layout costs a third of the CPU speed.
    images = Part(torch.zeros(2, channels, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    augment = Augment(pad=2, flip=True, cutout=4)
    part = DevicePart(images, (0.5,) * channels, (1.0,) * channels, augment, torch.device("cpu"), torch.float32)
    draws = augment.draw(np.random.default_rng(0), 2, 8, 8)
    for batch in (part.batch(np.array([0, 1]), draws), part.plain(slice(0, 2))):
        assert batch.x.stride() == (64 * channels, 1, 8 * channels, channels)


def test_float_samples_are_left_alone():
    x = torch.tensor([[1.5, -2.0]], dtype=torch.float64)
    part = DevicePart(
        Part(x, torch.zeros(1, dtype=torch.int64)), (), (), Augment(2), torch.device("cpu"), torch.float64
    )
    assert part.batch(np.array([0]), None).x.tolist() == [[1.5, -2.0]]
