"""What the training steps of a cohort read and change. It stays where it is for as long as the cohort has its size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.tree import Weights


class OwnBatch(NamedTuple):
    """A batch of every client's own: all are [client, sample, ...], or [slot, sample, ...]."""

    x: Tensor
    y: Tensor
    real: Tensor


@dataclass(frozen=True)
class Buffers:
    """What a step reads and changes, always at the same addresses, since CUDA graphs remember those."""

    w: Weights  # [client, ...], as are velocity, loss, and what of the context differs by client
    velocity: Weights
    loss: Tensor
    ctx: Context
    batches: OwnBatch  # of the next steps
    place: Tensor  # the first of the next step's slots: [1]

    def first(self, clients: int, axes: Context) -> "Buffers":
        """Views of the first so many clients."""

        def cut(leaf: Tensor) -> Tensor:
            return leaf[:clients]

        return Buffers(
            tree.map(cut, self.w),
            tree.map(cut, self.velocity),
            cut(self.loss),
            by_client(cut, axes, self.ctx),
            OwnBatch(*(leaf[:] for leaf in self.batches)),  # to be marked by themselves
            self.place,
        )

    def load(self, ctx: Context) -> None:
        """What the clients know."""
        tree.copy_(tensors_of(self.ctx), tensors_of(ctx))

    def reset(self) -> None:
        """Everybody to the global weights, without momentum."""
        tree.map(lambda mine, new: mine.copy_(new.expand_as(mine)), self.w, self.ctx.w_g)
        tree.map(Tensor.zero_, self.velocity)
        self.loss.zero_()

    def batch(self) -> OwnBatch:
        """The next step's."""
        slots = self.place + torch.arange(len(self.loss), device=self.place.device)
        return OwnBatch(*(leaf.index_select(0, slots) for leaf in self.batches))


class StepInputs(NamedTuple):
    """What a compiled step is a function of, as a tree of tensors: the buffers, without what is no tensor."""

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
    """The context as a tree, without what is no tensor."""
    return {name: value for name, value in ctx._asdict().items() if name != "momentum"}


def by_client(f: Callable[..., Tensor], axes: Context, first: Context, *rest: Context) -> Context:
    """The first context, with `f` of all on what differs by client."""
    trees = [tensors_of(ctx) for ctx in (first, *rest)]
    differs = [name for name in trees[0] if getattr(axes, name) == 0]
    return first._replace(**tree.map(f, *({name: one[name] for name in differs} for one in trees)))
