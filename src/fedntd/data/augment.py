"""Random crop, flip and Cutout, drawn on the host and applied to whole batches on the device.

An image is moved, mirrored and padded by computing where each of its pixels comes from: one gather does it all.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Draws(NamedTuple):
    """What chance decided, one number a sample."""

    top: Tensor  # the crop's corner in the original image, -pad..pad
    left: Tensor
    flip: Tensor
    hole_y: Tensor  # the centre of the Cutout hole
    hole_x: Tensor


@dataclass(frozen=True)
class Augment:
    """How a training image is changed at random, anew each time it is seen: crop, flip, Cutout."""

    pad: int = 0  # random crop of the original size from the image padded by so much
    reflect: bool = False  # pad by reflection instead of black
    flip: bool = False  # mirror left and right with probability 1/2
    cutout: int = 0  # side of a square set to 0 after normalisation, clipped at the border

    def draw(self, rng: np.random.Generator, n: int, height: int, width: int) -> Draws:
        """For `n` samples. All five are drawn whatever is switched on, so that one switch does not move the others."""
        limits = ((-self.pad, self.pad + 1), (-self.pad, self.pad + 1), (0, 1 + self.flip), (0, height), (0, width))
        return Draws(*(torch.from_numpy(rng.integers(low, high, n)) for low, high in limits))

    def source(self, draws: Draws, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """For each pixel of each sample, the row [B, H] and column [B, W] it comes from, and whether that is inside."""
        row, inside_y = self.along(draws.top, torch.arange(height, device=draws.top.device), height)
        column, inside_x = self.along(draws.left, torch.arange(width, device=draws.left.device), width)
        mirrored = draws.flip[:, None] > 0  # the crop is mirrored, so its columns are read from right to left
        column = torch.where(mirrored, column.flip(1), column)
        inside_x = torch.where(mirrored, inside_x.flip(1), inside_x)
        return row, column, inside_y[:, :, None] & inside_x[:, None, :]

    def along(self, start: Tensor, positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
        place = start[:, None] + positions
        if self.reflect:
            place = place.abs()
            place = torch.where(place >= size, 2 * (size - 1) - place, place)
        return place.clamp(0, size - 1), (place >= 0) & (place < size)

    def holes(self, draws: Draws, height: int, width: int) -> Tensor:
        """True inside the hole: [B, H, W]. The hole covers centre - side//2 up to, not including, centre + side//2."""
        y = torch.arange(height, device=draws.hole_y.device) - draws.hole_y[:, None]
        x = torch.arange(width, device=draws.hole_x.device) - draws.hole_x[:, None]
        half = self.cutout // 2
        return ((y >= -half) & (y < half))[:, :, None] & ((x >= -half) & (x < half))[:, None, :]
