"""Local training: the only place where weights are trained, whoever calls it.

`train_one` is a client's round, `train_client` its steps, `local_step` one of them. The loop engine, the sites of a
real federation and the analyses call `train_one`; the vectorised engine vectorises `local_step` over clients.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.config.schema import Optimiser
from fedntd.data.device import DevicePart
from fedntd.engine.base import Task
from fedntd.engine.optim import clipped, sgd_step, with_spring
from fedntd.engine.testing import in_batches
from fedntd.models.functional import Batch, Model
from fedntd.rng import seeded
from fedntd.tree import Tree, Weights

OnStep = Callable[[int, Weights], None]  # the number of the step, and the weights after it


def train_one(
    algorithm: FedAvg,
    model: Model,
    optimiser: Optimiser,
    part: DevicePart,
    task: Task,
    ctx: Context,
    on_step: OnStep | None = None,
) -> tuple[Result, Upload]:
    """One client's round: from its task and what it knows to what it sends and keeps. `on_step` may watch the steps."""
    algorithm = algorithm.with_values(ctx.values)
    batches = (part.batch(samples, draws) for samples, draws in task.plan.batches())
    some = task.plan.some(algorithm.measure_samples)
    look_at = (part.batch(some[places], None) for places in in_batches(len(some), task.plan.batch_size))
    with seeded(task.torch_seed if model.has_dropout else None):
        result = train_client(algorithm, model, optimiser, batches, ctx, look_at, on_step)
    return result, algorithm.finish(result, ctx)


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
    on_step: OnStep | None = None,
) -> Result:
    """From the global weights through all of a client's batches; the momentum starts at zero.

    `look_at` are the batches of the algorithm's pass after training, if it has one.
    """
    w, velocity, losses = ctx.w_g, tree.zeros_like(ctx.w_g), []
    for batch in batches:
        w, velocity, loss = local_step(algorithm, model, optimiser, w, velocity, batch, ctx)
        losses.append(loss)
        if on_step:
            on_step(len(losses), w)
    measured = ((len(batch.y), algorithm.measure(model, w, batch, ctx)) for batch in look_at)
    return Result(w, len(losses), torch.stack(losses).mean(), mean_over_samples(measured))


def mean_over_samples(
    parts: Iterable[tuple[int | Tensor, Tree]], over: Callable[[Callable], Callable] = lambda function: function
) -> dict:
    """The mean over all samples, from means over some of them and how many those were (none: nothing counts).

    With `over` = vmap, counts and means are those of many clients. Only sums are kept: they can be as large as all
    clients' models.
    """
    total, summed = 0, {}
    for count, means in parts:
        weighted = over(times)(count, means)
        total, summed = total + count, tree.add(summed, weighted) if summed else weighted
    return over(lambda total, summed: tree.map(lambda leaf: leaf / total, summed))(total, summed) if summed else {}


def times(count: int | Tensor, means: Tree) -> Tree:
    def one(mean: Tensor) -> Tensor:
        number = torch.as_tensor(count, dtype=mean.dtype, device=mean.device)
        return torch.where(number > 0, mean * number, 0)

    return tree.map(one, means)
