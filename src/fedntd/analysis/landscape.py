"""The loss around a model: under Gaussian noise, along the Hessian's first eigenvectors, over a plane.

The loss is the mean cross-entropy over the samples of given batches. Hessian-vector products are exact (torch.func).
Eigenvalues come from Lanczos iterations with these products (scipy), so the Hessian itself is never built. The products
need second derivatives, which the CUDA convolutions of `fedntd.kernels` lack: use a model and batches on a CPU.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.func import grad, jvp

from fedntd import tree
from fedntd.algorithms.losses import cross_entropy
from fedntd.data.device import DevicePart
from fedntd.engine.testing import in_batches
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.rng import generator
from fedntd.runs.measures import Vector
from fedntd.tree import Weights


class Loss:
    """The mean cross-entropy of a model on given batches, as a function of its weights."""

    def __init__(self, model: Model, batches: Sequence[Batch]) -> None:
        self.model, self.batches = model, list(batches)
        self.samples = sum(len(batch.y) for batch in self.batches)

    @classmethod
    def on(cls, model: Model, part: DevicePart, samples: int = 0) -> "Loss":
        """The loss on the first `samples` samples of a dataset part; 0: on all."""
        count = min(samples, len(part)) if samples else len(part)
        return cls(model, [part.plain(places) for places in in_batches(count)])

    def of_batch(self, w: Weights, batch: Batch) -> torch.Tensor:
        return cross_entropy(self.model.frozen(w, batch).logits, batch.y).sum() / self.samples

    @torch.no_grad()
    def __call__(self, w: Weights) -> float:
        return float(sum(self.of_batch(w, batch) for batch in self.batches))

    def hessian_times(self, w: Weights, v: Weights) -> Weights:
        """H v, batch by batch: the derivative of the gradient along v, faster than a gradient of a gradient."""
        total, v = tree.zeros_like(w), {name: v[name] for name in w}  # v in the order of w
        for batch in self.batches:
            gradient = grad(lambda w, batch=batch: self.of_batch(w, batch))
            with warnings.catch_warnings():  # torch's first forward-mode derivative uses its own deprecated compiler
                warnings.simplefilter("ignore", DeprecationWarning)
                total = tree.add(total, jvp(gradient, (w,), (v,))[1])
        return total


def perturbed_losses(loss: Loss, w: Weights, sigmas: Sequence[float], draws: int = 5, seed: int = 0) -> Vector:
    """The loss at w + sigma * noise with noise ~ N(0, I), [sigma, draw]. All sigmas use the same noise."""
    losses = np.zeros((len(sigmas), draws))
    for draw in range(draws):
        rng = generator(seed, "perturbation", draw)
        noise = {name: torch.from_numpy(rng.standard_normal(w[name].shape)).to(w[name]) for name in sorted(w)}
        for i, sigma in enumerate(sigmas):
            losses[i, draw] = loss(tree.add(w, tree.scale(sigma, noise)))
    return losses


class Eigenpairs(NamedTuple):
    """Eigenvalues of a Hessian, largest first, and their eigenvectors."""

    values: Vector  # the largest first
    vectors: list[Weights]  # of length 1


def top_eigenpairs(loss: Loss, w: Weights, count: int = 2, tolerance: float = 1e-3, seed: int = 0) -> Eigenpairs:
    """The `count` largest eigenvalues of the loss's Hessian at w, and their eigenvectors."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    names = sorted(w)
    sizes = [w[name].numel() for name in names]
    total = sum(sizes)
    require(1 <= count < total, f"count must lie in 1..{total - 1} for {total} weights, not {count}")

    def as_weights(flat: np.ndarray) -> Weights:
        pieces = torch.from_numpy(np.ascontiguousarray(flat).reshape(-1)).split(sizes)
        return {name: piece.view(w[name].shape).to(w[name]) for name, piece in zip(names, pieces, strict=True)}

    def times(flat: np.ndarray) -> np.ndarray:
        product = loss.hessian_times(w, as_weights(flat))
        return torch.cat([product[name].flatten() for name in names]).double().cpu().numpy()

    start = generator(seed, "lanczos").standard_normal(total)
    operator = LinearOperator((total, total), matvec=times, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance)  # pyright: ignore[reportArgumentType]
    order = np.argsort(-values)
    return Eigenpairs(values[order], [as_weights(vectors[:, i]) for i in order])


def loss_surface(loss: Loss, w: Weights, first: Weights, second: Weights, at: Sequence[float] | Vector) -> Vector:
    """The loss at w + a * first + b * second for a, b in `at`: [a, b]."""

    def moved(a: float, b: float) -> Weights:
        return tree.map(lambda leaf, x, y: leaf + a * x + b * y, w, first, second)

    return np.array([[loss(moved(a, b)) for b in at] for a in at])


class Landscape(NamedTuple):
    """What a figure of the loss around a model needs."""

    loss: float  # at the model itself
    sigmas: Sequence[float]
    perturbed: Vector  # [sigma, draw]
    eigenvalues: Vector  # the two largest
    at: Vector
    surface: Vector  # [a, b], along the first and second eigenvector


def landscape(
    model: Model,
    w: Weights,
    batches: Sequence[Batch],
    sigmas: Sequence[float] = (0.0, 0.005, 0.01, 0.015, 0.02),
    draws: int = 5,
    reach: float = 1.0,
    points: int = 15,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Landscape:
    """The loss under noise of each sigma, and over the plane of the two sharpest directions.

    The plane extends to `reach` on both sides of the model, with `points` points along each direction.
    """
    loss = Loss(model, batches)
    values, (first, second) = top_eigenpairs(loss, w, 2, tolerance, seed)
    at = np.linspace(-reach, reach, points)
    noise = perturbed_losses(loss, w, sigmas, draws, seed)
    return Landscape(loss(w), sigmas, noise, values, at, loss_surface(loss, w, first, second, at))
