"""The paper's network (from McMahan et al. 2017), as in the released code."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedntd.errors import require
from fedntd.kernels import convolution as kernels
from fedntd.models.functional import Out


class CNN(nn.Module):
    """Two 5x5 convolutions, each with ReLU and 2x2 max-pooling; two linear layers: 2,156,490 weights on CIFAR-10."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        require(
            len(shape) == 3 and min(shape[1:]) >= 4,
            f"model 'cnn' takes images [channel, height, width] of at least 4x4 pixels, not samples of shape "
            f"{list(shape)}",
        )
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Out:
        x = conv_pool_relu(x, self.conv1)
        x = conv_pool_relu(x, self.conv2)
        z = F.relu(self.fc1(x.flatten(1)))
        return Out(self.fc2(z), z)


def conv_pool_relu(x: Tensor, conv: nn.Conv2d) -> Tensor:
    if x.is_cuda and conv.bias is not None and x.shape[-1] % 2 == x.shape[-2] % 2 == 0:
        return kernels.conv_pool_relu(x, conv.weight, conv.bias)  # one launch for the clients of a vectorised cohort
    # ReLU and max-pooling commute; pooling first leaves ReLU a quarter of the work
    return F.relu(F.max_pool2d(conv(x), 2))
