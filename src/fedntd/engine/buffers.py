"""The tensors that the training steps of a cohort read and change. They are reused by all cohorts of one size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.tree import Weights


class OwnBatch(NamedTuple):
    """One batch for each client or slot: all tensors are [client, sample, ...] or [slot, sample, ...]."""

    x: Tensor
    y: Tensor
    real: Tensor  # False for padding


@dataclass(frozen=True)
class Buffers:
    """The tensors that a step reads and changes. Their addresses never change, because CUDA graphs contain them.

    `w`, `velocity`, `loss` and the parts of `ctx` that differ by client are [client, ...].
    """

    w: Weights
    velocity: Weights
    loss: Tensor  # summed over the steps
    ctx: Context
    batches: OwnBatch  # of the next steps: [slot, ...]
    place: Tensor  # the first slot of the next step: [1]

    def first(self, clients: int, axes: Context) -> "Buffers":
        """Views of the first `clients` clients."""

        def cut(leaf: Tensor) -> Tensor:
            return leaf[:clients]

        return Buffers(
            tree.map(cut, self.w),
            tree.map(cut, self.velocity),
            cut(self.loss),
            by_client(cut, axes, self.ctx),
            OwnBatch(*(leaf[:] for leaf in self.batches)),  # new views, because sizes are marked dynamic on the tensor
            self.place,
        )

    def load(self, ctx: Context) -> None:
        """Copy the clients' context into the buffers."""
        tree.copy_(tensors_of(self.ctx), tensors_of(ctx))

    def reset(self) -> None:
        """Set all clients to the global weights, with zero momentum and loss."""
        tree.map(lambda leaf, new: leaf.copy_(new.expand_as(leaf)), self.w, self.ctx.w_g)
        tree.map(Tensor.zero_, self.velocity)
        self.loss.zero_()

    def batch(self) -> OwnBatch:
        """The batches of the next step: [client, sample, ...]."""
        slots = self.place + torch.arange(len(self.loss), device=self.place.device)
        return OwnBatch(*(leaf.index_select(0, slots) for leaf in self.batches))


class StepInputs(NamedTuple):
    """The inputs of a compiled step as a tree of tensors: the buffers without the momentum, which is a number."""

    w: Weights
    velocity: Weights
    loss: Tensor
    ctx: dict
    batches: OwnBatch
    place: Tensor

    @staticmethod
    def of(buffers: Buffers) -> "StepInputs":
        ctx = tensors_of(buffers.ctx)
        return StepInputs(buffers.w, buffers.velocity, buffers.loss, ctx, buffers.batches, buffers.place)

    def buffers(self, momentum: float) -> Buffers:
        ctx = Context(**self.ctx, momentum=momentum)
        return Buffers(self.w, self.velocity, self.loss, ctx, self.batches, self.place)


def tensors_of(ctx: Context) -> dict:
    """The context as a tree of tensors: without the momentum, which is a number."""
    return {name: value for name, value in ctx._asdict().items() if name != "momentum"}


def by_client(f: Callable[..., Tensor], axes: Context, first: Context, *rest: Context) -> Context:
    """Apply `f` to the parts of several contexts that differ by client. The other parts are those of the first."""
    trees = [tensors_of(ctx) for ctx in (first, *rest)]
    differing = [name for name in trees[0] if getattr(axes, name) == 0]
    return first._replace(**tree.map(f, *({name: parts[name] for name in differing} for parts in trees)))
