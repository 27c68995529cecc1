"""ResNets for small images (He et al. 2016). BatchNorm has no running statistics, as in the released code."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedntd.errors import require
from fedntd.kernels import convolution as kernels
from fedntd.models.functional import BatchStatNorm, Out


class Conv(nn.Conv2d):
    """A convolution that on a GPU is one launch for all clients of a vectorised cohort."""

    def forward(self, input: Tensor) -> Tensor:
        stride = self.stride[0]
        if input.is_cuda and input.shape[-1] % stride == input.shape[-2] % stride == 0:
            return kernels.conv(input, self.weight, stride=stride)
        return super().forward(input)


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = BatchStatNorm(outside)
        self.conv2 = Conv(outside, outside, 3, 1, padding=1, bias=False)
        self.bn2 = BatchStatNorm(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(Conv(inside, outside, 1, stride, bias=False), BatchStatNorm(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        require(len(shape) == 3, f"a ResNet takes images [channel, height, width], not samples of shape {list(shape)}")
        self.conv1 = Conv(shape[0], 64, 3, padding=1, bias=False)
        self.bn1 = BatchStatNorm(64)
        stages, inside = [], 64
        for i, (outside, depth) in enumerate(zip((64, 128, 256, 512), blocks, strict=True)):
            for j in range(depth):
                stages.append(Block(inside, outside, stride=2 if i > 0 and j == 0 else 1))
                inside = outside
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Out:
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        z = x.mean((2, 3))
        return Out(self.fc(z), z)


def resnet10(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-10 for small images: one block in each of four stages. It has 4,903,242 weights on CIFAR-10."""
    return ResNet(shape, classes, (1, 1, 1, 1))


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 for small images: two blocks in each of four stages, BatchNorm without running statistics."""
    return ResNet(shape, classes, (2, 2, 2, 2))
