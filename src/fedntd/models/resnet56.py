"""ResNet-56 for small images (He et al. 2016), with bottlenecks and a slimmable last stage, as used by FedAlign
(Mendieta et al. 2022). BatchNorm has no running statistics."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedntd.errors import require
from fedntd.models.functional import BatchStatNorm, Out, Taps


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions. `slim` runs them with only the first channels."""

    def __init__(self, inside: int, narrow: int, stride: int) -> None:
        super().__init__()
        outside = 4 * narrow
        self.conv1, self.bn1 = nn.Conv2d(inside, narrow, 1, bias=False), BatchStatNorm(narrow)
        self.conv2, self.bn2 = nn.Conv2d(narrow, narrow, 3, stride, padding=1, bias=False), BatchStatNorm(narrow)
        self.conv3, self.bn3 = nn.Conv2d(narrow, outside, 1, bias=False), BatchStatNorm(outside)
        self.matched = (
            stride != 1 or inside != outside
        )  # whether a 1x1 convolution brings the input to the output's shape
        if self.matched:
            self.match, self.bn4 = nn.Conv2d(inside, outside, 1, stride, bias=False), BatchStatNorm(outside)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + (self.bn4(self.match(x)) if self.matched else x))

    def slim(self, x: Tensor) -> Tensor:
        """Run with the first channels of every layer: the same share of them as `x` has of the input channels."""
        width = x.shape[1] / self.conv1.in_channels
        out = F.relu(self.bn1.slim(slim_conv(self.conv1, x, width)))
        out = F.relu(self.bn2.slim(slim_conv(self.conv2, out, width)))
        out = self.bn3.slim(slim_conv(self.conv3, out, width))
        return F.relu(out + (self.bn4.slim(slim_conv(self.match, x, width)) if self.matched else x))


def slim_conv(conv: nn.Conv2d, x: Tensor, width: float) -> Tensor:
    weight = conv.weight[: round(width * conv.out_channels), : x.shape[1]]
    return F.conv2d(x, weight, None, conv.stride, conv.padding)


class Stage(nn.Sequential):
    def __init__(self, inside: int, narrow: int, stride: int) -> None:
        super().__init__(Bottleneck(inside, narrow, stride), *(Bottleneck(4 * narrow, narrow, 1) for _ in range(5)))

    def slim(self, x: Tensor) -> Tensor:
        for block in self:
            x = block.slim(x)  # pyright: ignore[reportCallIssue]
        return x


class ResNet56(nn.Module):
    """Three stages of six bottlenecks: 591,322 weights on CIFAR-10."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: float = 0.25) -> None:
        """`width` is the share of channels with which the last stage is run a second time, for FedAlign."""
        super().__init__()
        require(len(shape) == 3, f"a ResNet takes images [channel, height, width], not samples of shape {list(shape)}")
        require(
            0 < width <= 1 and (64 * width).is_integer(),
            f"model.width must be a multiple of 1/64 above 0 and at most 1, not {width}; FedAlign uses 0.25",
        )
        self.width = width
        self.conv1 = nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)
        self.bn1 = BatchStatNorm(16)
        self.stage1, self.stage2, self.stage3 = Stage(16, 16, 1), Stage(64, 32, 2), Stage(128, 64, 2)
        self.fc = nn.Linear(256, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Out:
        into = self.stage2(self.stage1(F.relu(self.bn1(self.conv1(x)))))
        out = self.stage3(into)
        z = out.mean((2, 3))
        slim_into = into.detach()[:, : round(self.width * into.shape[1])]
        return Out(self.fc(z), z, Taps(into, out, slim_into, self.stage3.slim(slim_into)))
