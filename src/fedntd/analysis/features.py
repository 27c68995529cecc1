"""Features of test samples: on the circle with their density, and laid out by t-SNE."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedntd.analysis.alignment import activations
from fedntd.data.device import DevicePart
from fedntd.engine.testing import in_batches
from fedntd.errors import require
from fedntd.models.cnn import CNN, conv_pool_relu
from fedntd.models.functional import Model, Out
from fedntd.runs.measures import Vector
from fedntd.tree import Weights


class CircleCNN(CNN):
    """The paper's network, whose features are points on the unit circle: for pictures. In a config,
    `model.name = "fedntd.analysis.features:CircleCNN"`."""

    def __init__(self, shape: tuple[int, ...], classes: int, scale: float = 3.0) -> None:
        super().__init__(shape, classes)
        self.scale = scale  # of the features before the last layer: logits of unit vectors alone would be too alike
        self.circle = nn.Linear(512, 2)
        self.fc2 = nn.Linear(2, classes)
        # the classes begin evenly round the circle: from random directions, training leaves most of it empty
        angle = 2 * torch.pi * torch.arange(classes) / classes
        self.fc2.weight.data = torch.stack([angle.cos(), angle.sin()], dim=1)
        self.fc2.bias.data.zero_()

    def forward(self, x: Tensor) -> Out:
        x = conv_pool_relu(conv_pool_relu(x, self.conv1), self.conv2)
        z = F.normalize(self.circle(F.relu(self.fc1(x.flatten(1)))), dim=1)
        return Out(self.fc2(self.scale * z), z)


@torch.no_grad()
def features(model: Model, w: Weights, data: DevicePart, samples: int = 0) -> Vector:
    """What the last layer sees of the first so many samples (0: all): [sample, feature]."""
    count = min(samples, len(data)) if samples else len(data)
    return torch.cat([activations(model, w, data.plain(some)) for some in in_batches(count)]).double().cpu().numpy()


def angles(points: Vector) -> Vector:
    """arctan(y, x) of points in the plane [sample, 2], between -pi and pi."""
    require(points.ndim == 2 and points.shape[1] == 2, f"points must be [sample, 2], not {list(points.shape)}")
    return np.arctan2(points[:, 1], points[:, 0])


def circle_density(angle: Vector, at: Vector, bandwidth: float = 0.1) -> Vector:
    """Gaussian kernel density of angles at the angles `at`, round the circle: it integrates to 1 over 2 pi."""
    apart = at[:, None] - angle[None, :]
    apart = (apart + np.pi) % (2 * np.pi) - np.pi
    return np.exp(-0.5 * (apart / bandwidth) ** 2).mean(1) / (bandwidth * np.sqrt(2 * np.pi))


def tsne(sets: Sequence[Vector], perplexity: float = 30.0, seed: int = 0) -> list[Vector]:
    """t-SNE of several sets of features [sample, feature] together: of each, its points in one common plane."""
    from sklearn.manifold import TSNE

    together = np.concatenate(list(sets)).astype(np.float32)
    require(len(together) > perplexity, f"t-SNE with perplexity {perplexity:g} needs more samples than {len(together)}")
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(together)
    return np.split(np.asarray(plane), np.cumsum([len(one) for one in sets])[:-1])
