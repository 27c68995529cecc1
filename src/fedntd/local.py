"""Local training: the only place where weights are trained, whoever calls it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context, Result
from fedntd.config import Optimiser
from fedntd.models.functional import Batch, Model
from fedntd.optim import sgd_step
from fedntd.tree import Weights


def local_step(
    algorithm: FedAvg, model: Model, optimiser: Optimiser, w: Weights, velocity: Weights, batch: Batch, ctx: Context
) -> tuple[Weights, Weights, Tensor]:
    """One optimiser step on one batch: new weights, new velocity, the loss before the step."""
    gradient, loss = algorithm.gradient(model, w, batch, ctx)
    w, velocity = sgd_step(optimiser, w, gradient, velocity, ctx.lr)
    return w, velocity, loss.detach()


def train_client(
    algorithm: FedAvg, model: Model, optimiser: Optimiser, batches: Iterable[Batch], ctx: Context
) -> Result:
    """From the global weights through all of a client's batches; the momentum starts at zero."""
    w, velocity, losses = ctx.w_g, tree.zeros_like(ctx.w_g), []
    for batch in batches:
        w, velocity, loss = local_step(algorithm, model, optimiser, w, velocity, batch, ctx)
        losses.append(loss)
    return Result(w, len(losses), torch.stack(losses).mean())
