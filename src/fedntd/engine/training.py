"""Local training. All clients are trained by the functions in this file, in simulations and in real federations.

`train_one` is a client's round, `train_client` its steps, `local_step` a single step. The sequential engine, the sites
of a real federation and the analyses call `train_one`. The vectorised engine vectorises `local_step` over clients.
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
from fedntd.engine.optim import add_proximal_term, clip_gradient, sgd_step
from fedntd.engine.testing import in_batches
from fedntd.models.functional import Batch, Model
from fedntd.rng import seeded
from fedntd.tree import Tree, Weights

OnStep = Callable[[int, Weights], None]  # takes the number of a step and the weights after it


def train_one(
    algorithm: FedAvg,
    model: Model,
    optimiser: Optimiser,
    part: DevicePart,
    task: Task,
    ctx: Context,
    on_step: OnStep | None = None,
) -> tuple[Result, Upload]:
    """A client's round. Returns the result of training, and what the client uploads and keeps.

    `on_step` is called after each step.
    """
    algorithm = algorithm.with_values(ctx.values)
    batches = (part.batch(samples, draws) for samples, draws in task.plan.batches())
    samples = task.plan.first_samples(algorithm.measure_samples)
    measure_batches = (part.batch(samples[places], None) for places in in_batches(len(samples), task.plan.batch_size))
    with seeded(task.torch_seed if model.has_dropout else None):
        result = train_client(algorithm, model, optimiser, batches, ctx, measure_batches, on_step)
    return result, algorithm.finish(result, ctx)


def local_step(
    algorithm: FedAvg, model: Model, optimiser: Optimiser, w: Weights, velocity: Weights, batch: Batch, ctx: Context
) -> tuple[Weights, Weights, Tensor]:
    """One optimiser step on one batch. Returns new weights, new velocity and the loss before the step."""
    gradient, loss = algorithm.gradient(model, w, batch, ctx)
    gradient = clip_gradient(optimiser, add_proximal_term(optimiser, gradient, w, ctx.w_g))
    w, velocity = sgd_step(optimiser, w, gradient, velocity, ctx.lr)
    return w, velocity, loss.detach()


def train_client(
    algorithm: FedAvg,
    model: Model,
    optimiser: Optimiser,
    batches: Iterable[Batch],
    ctx: Context,
    measure_batches: Iterable[Batch] = (),
    on_step: OnStep | None = None,
) -> Result:
    """Train a client on all its batches, starting from the global weights with zero momentum.

    `measure_batches` are the batches of the algorithm's pass after training, if it has one.
    """
    w, velocity, losses = ctx.w_g, tree.zeros_like(ctx.w_g), []
    for batch in batches:
        w, velocity, loss = local_step(algorithm, model, optimiser, w, velocity, batch, ctx)
        losses.append(loss)
        if on_step:
            on_step(len(losses), w)
    measured = ((len(batch.y), algorithm.measure(model, w, batch, ctx)) for batch in measure_batches)
    return Result(w, len(losses), torch.stack(losses).mean(), mean_over_samples(measured))


def mean_over_samples(
    parts: Iterable[tuple[int | Tensor, Tree]], over: Callable[[Callable], Callable] = lambda function: function
) -> dict:
    """The mean over all samples, from (number of samples, mean) of each batch. A batch of 0 samples is ignored.

    With `over` = vmap, numbers and means have a leading client axis. Only the running sums are kept in memory, since
    they can be as large as all clients' models.
    """
    total, summed = 0, {}
    for count, means in parts:
        weighted = over(sums_of)(count, means)
        total, summed = total + count, tree.add(summed, weighted) if summed else weighted
    return over(lambda total, summed: tree.map(lambda leaf: leaf / total, summed))(total, summed) if summed else {}


def sums_of(count: int | Tensor, means: Tree) -> Tree:
    """Turn means over `count` samples into sums; 0 for no samples, whose mean may be NaN."""

    def sum_of(mean: Tensor) -> Tensor:
        number = torch.as_tensor(count, dtype=mean.dtype, device=mean.device)
        return torch.where(number > 0, mean * number, 0)

    return tree.map(sum_of, means)
