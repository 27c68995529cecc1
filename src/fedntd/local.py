"""Local training: the only place where weights are trained, whoever calls it."""

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context, Result
from fedntd.config import Optimiser
from fedntd.models.functional import Batch, Model
from fedntd.optim import clipped, sgd_step, with_spring
from fedntd.tree import Tree, Weights


def local_step(
    algorithm: FedAvg, model: Model, optimiser: Optimiser, w: Weights, velocity: Weights, batch: Batch, ctx: Context
) -> tuple[Weights, Weights, Tensor]:
    """One optimiser step on one batch: new weights, new velocity, the loss before the step."""
    gradient, loss = algorithm.gradient(model, w, batch, ctx)
    gradient = clipped(optimiser, with_spring(optimiser, gradient, w, ctx.w_g))
    w, velocity = sgd_step(optimiser, w, gradient, velocity, ctx.lr)
    return w, velocity, loss.detach()


def train_client(
    algorithm: FedAvg,
    model: Model,
    optimiser: Optimiser,
    batches: Iterable[Batch],
    ctx: Context,
    look_at: Iterable[Batch] = (),
) -> Result:
    """From the global weights through all of a client's batches; the momentum starts at zero.

    `look_at` are the batches of the algorithm's pass after training, if it has one.
    """
    w, velocity, losses = ctx.w_g, tree.zeros_like(ctx.w_g), []
    for batch in batches:
        w, velocity, loss = local_step(algorithm, model, optimiser, w, velocity, batch, ctx)
        losses.append(loss)
    measured = [(len(batch.y), algorithm.measure(model, w, batch, ctx)) for batch in look_at]
    return Result(w, len(losses), torch.stack(losses).mean(), mean_over_samples(measured))


def mean_over_samples(parts: Sequence[tuple[int | Tensor, Tree]]) -> dict:
    """The mean over all samples, from means over some of them and how many those were (none: nothing counts)."""
    if not parts:
        return {}
    total = sum(count for count, _ in parts)

    def weighted(*means: Tensor) -> Tensor:
        terms = (
            torch.where(as_tensor(count, mean) > 0, mean * as_tensor(count, mean), 0)
            for (count, _), mean in zip(parts, means, strict=True)
        )
        return functools.reduce(torch.add, terms) / total  # not a stack: these can be as large as all clients' models

    return tree.map(weighted, *(means for _, means in parts))


def as_tensor(count: int | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(count, dtype=like.dtype, device=like.device)
