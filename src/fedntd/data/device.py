"""A dataset part on its device. Whole batches are gathered, augmented and normalised there."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedntd.data.augment import Augment, Draws
from fedntd.data.dataset import Part
from fedntd.models.functional import Batch


class DevicePart:
    """A dataset part on a device.

    uint8 images are stored as [N, H, W, C]. Augmentation is then one gather of whole pixels, and its result has the
    channels last, which is the fastest layout for convolutions on a CPU. Other samples keep their layout.
    """

    def __init__(
        self,
        part: Part,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment: Augment | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.y = part.y.to(device)
        self.augment, self.device, self.dtype = augment, device, dtype
        self.is_image = part.x.dtype == torch.uint8
        if not self.is_image:
            self.samples = part.x.to(device, dtype if part.x.is_floating_point() else part.x.dtype)
            return
        # [N, H, W, C]. Cloned, because contiguous() would not change the strides of a single channel.
        self.samples = part.x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).to(device)
        self.scale = (1 / (255 * torch.tensor(std, dtype=torch.float64))).to(device, dtype)
        self.shift = (torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)).to(
            device, dtype
        )

    def __len__(self) -> int:
        return len(self.y)

    def plain(self, samples: slice | Tensor) -> Batch:
        """A batch for testing: normalised, not augmented."""
        x = self.samples[samples]
        return Batch(channels_first(self.normalise(x)) if self.is_image else x, self.y[samples])

    def batch(self, samples: NDArray[np.int64], draws: Draws | None) -> Batch:
        """A batch for training: augmented by `draws`, if there are any, and normalised."""
        index = torch.from_numpy(samples).to(self.device, non_blocking=True)
        return self.gather(index, Draws(*(d.to(self.device, non_blocking=True) for d in draws)) if draws else None)

    def gather(self, index: Tensor, draws: Draws | None) -> Batch:
        """Like `batch`, with `index` and `draws` already on the device."""
        if draws is None or self.augment is None or not self.is_image:
            return self.plain(index)
        _, height, width, channels = self.samples.shape
        row, column, inside = self.augment.source(draws, height, width)
        pixel = (index[:, None, None] * height + row[:, :, None]) * width + column[:, None, :]
        pixels = self.samples.view(-1, channels).index_select(0, pixel.flatten()).view(-1, height, width, channels)
        if self.augment.pad and not self.augment.reflect:
            pixels = torch.where(inside[..., None], pixels, 0)  # black before normalisation
        x = self.normalise(pixels)
        if self.augment.cutout:
            x.masked_fill_(self.augment.holes(draws, height, width)[..., None], 0)  # zero after normalisation
        return Batch(channels_first(x), self.y[index])

    def normalise(self, pixels: Tensor) -> Tensor:
        return pixels.to(self.dtype) * self.scale - self.shift


def channels_first(x: Tensor) -> Tensor:
    """A view of [B, H, W, C] as torch's [B, C, H, W]. No data is moved: memory stays channels-last."""
    return x.permute(0, 3, 1, 2)
