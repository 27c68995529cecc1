"""Random crop, flip and Cutout, drawn on the host and applied to whole batches on the device.

Crop, flip and padding are one gather: the source of each pixel is computed first.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Draws(NamedTuple):
    """The random numbers of an augmented batch: one of each kind per sample."""

    top: Tensor  # the crop's corner in the original image, -pad..pad
    left: Tensor
    flip: Tensor
    hole_y: Tensor  # the centre of the Cutout hole
    hole_x: Tensor


@dataclass(frozen=True)
class Augment:
    """Random crop, flip and Cutout of training images, drawn anew each time an image is used."""

    pad: int = 0  # pad the image by this many pixels, then crop it at random to its original size
    reflect: bool = False  # pad by reflection instead of black
    flip: bool = False  # mirror left and right with probability 1/2
    cutout: int = 0  # side of a square set to 0 after normalisation, clipped at the border

    def draw(self, rng: np.random.Generator, n: int, height: int, width: int) -> Draws:
        """Draw for `n` samples. All five numbers are always drawn, so that no switch changes the other draws."""
        limits = ((-self.pad, self.pad + 1), (-self.pad, self.pad + 1), (0, 1 + self.flip), (0, height), (0, width))
        return Draws(*(torch.from_numpy(rng.integers(low, high, n)) for low, high in limits))

    def source(self, draws: Draws, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The source row [B, H] and column [B, W] of each pixel, and whether it lies inside the image [B, H, W]."""
        row, inside_y = self.along(draws.top, torch.arange(height, device=draws.top.device), height)
        column, inside_x = self.along(draws.left, torch.arange(width, device=draws.left.device), width)
        mirrored = draws.flip[:, None] > 0  # the crop is mirrored, so read its columns from right to left
        column = torch.where(mirrored, column.flip(1), column)
        inside_x = torch.where(mirrored, inside_x.flip(1), inside_x)
        return row, column, inside_y[:, :, None] & inside_x[:, None, :]

    def along(self, start: Tensor, positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The source positions along one axis [B, size], and whether each lies inside the image."""
        source = start[:, None] + positions
        if self.reflect:
            source = source.abs()
            source = torch.where(source >= size, 2 * (size - 1) - source, source)
        return source.clamp(0, size - 1), (source >= 0) & (source < size)

    def holes(self, draws: Draws, height: int, width: int) -> Tensor:
        """A mask [B, H, W], true inside the hole: from centre - side//2 up to, not including, centre + side//2."""
        y = torch.arange(height, device=draws.hole_y.device) - draws.hole_y[:, None]
        x = torch.arange(width, device=draws.hole_x.device) - draws.hole_x[:, None]
        half = self.cutout // 2
        return ((y >= -half) & (y < half))[:, :, None] & ((x >= -half) & (x < half))[:, None, :]
