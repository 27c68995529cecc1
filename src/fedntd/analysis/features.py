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
    """The paper's network with features on the unit circle, for figures. In a config,
    `model.name = "fedntd.analysis.features:CircleCNN"`."""

    def __init__(self, shape: tuple[int, ...], classes: int, scale: float = 3.0) -> None:
        super().__init__(shape, classes)
        self.scale = scale  # factor on the features before the last layer: logits of unit vectors would be too similar
        self.circle = nn.Linear(512, 2)
        self.fc2 = nn.Linear(2, classes)
        # Classes start evenly spaced on the circle: from random directions, training leaves most of it empty.
        angle = 2 * torch.pi * torch.arange(classes) / classes
        self.fc2.weight.data = torch.stack([angle.cos(), angle.sin()], dim=1)
        self.fc2.bias.data.zero_()

    def forward(self, x: Tensor) -> Out:
        x = conv_pool_relu(conv_pool_relu(x, self.conv1), self.conv2)
        z = F.normalize(self.circle(F.relu(self.fc1(x.flatten(1)))), dim=1)
        return Out(self.fc2(self.scale * z), z)


@torch.no_grad()
def features(model: Model, w: Weights, data: DevicePart, samples: int = 0) -> Vector:
    """The features (the last layer's input) of the first `samples` samples, or of all if it is 0: [sample, feature]."""
    count = min(samples, len(data)) if samples else len(data)
    return torch.cat([activations(model, w, data.plain(batch)) for batch in in_batches(count)]).double().cpu().numpy()


def angles(points: Vector) -> Vector:
    """The angles of points in the plane [sample, 2], between -pi and pi."""
    require(points.ndim == 2 and points.shape[1] == 2, f"points must be [sample, 2], not {list(points.shape)}")
    return np.arctan2(points[:, 1], points[:, 0])


def circle_density(angle: Vector, at: Vector, bandwidth: float = 0.1) -> Vector:
    """The Gaussian kernel density of angles on the circle, at the angles `at`. Its integral over the circle is 1."""
    difference = at[:, None] - angle[None, :]
    difference = (difference + np.pi) % (2 * np.pi) - np.pi
    return np.exp(-0.5 * (difference / bandwidth) ** 2).mean(1) / (bandwidth * np.sqrt(2 * np.pi))


def tsne(sets: Sequence[Vector], perplexity: float = 30.0, seed: int = 0) -> list[Vector]:
    """t-SNE of several sets of features [sample, feature] together. Returns the points of each set, [sample, 2]."""
    from sklearn.manifold import TSNE

    points = np.concatenate(list(sets)).astype(np.float32)
    require(len(points) > perplexity, f"t-SNE with perplexity {perplexity:g} needs more samples than {len(points)}")
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return np.split(np.asarray(plane), np.cumsum([len(features) for features in sets])[:-1])
