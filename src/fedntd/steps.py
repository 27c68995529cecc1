"""How a GPU takes the training steps of a cohort: compiled, captured as CUDA graphs, and replayed.

A step is split in three (tracing.py): what depends on the context alone is computed when a run of steps begins; what
depends on it and on the samples, such as the answers of a teacher, for several steps ahead; only the rest in each step.
And that forks in two (forking.py): most weights are updated beside the rest of the backward pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.data.augment import Draws
from fedntd.forking import Fork, forked
from fedntd.graphs import captured, pool_on, side_by_side, urgent_stream_on
from fedntd.tracing import (
    BATCH,
    OWN,
    SHARED,
    WEIGHTS,
    compiled,
    mark_clients,
    split,
    traced,
    traced_for_any_number,
)
from fedntd.tree import Weights

PLANNED = 2 + len(Draws._fields)  # what a plan says of a sample: its place, whether it is real, how it is augmented
AHEAD = 10  # steps whose samples are gathered together: enough to fill a GPU, few enough to keep


class OwnBatch(NamedTuple):
    """A batch of every client's own: all are [client, sample, ...]."""

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
    batches: OwnBatch  # of the next steps: [step, client, sample, ...]
    place: Tensor  # which of these is this step's: [1]

    def first(self, clients: int, axes: Context) -> "Buffers":
        """Views of the first so many clients."""

        def cut(leaf: Tensor) -> Tensor:
            return leaf[:clients]

        return Buffers(
            tree.map(cut, self.w),
            tree.map(cut, self.velocity),
            cut(self.loss),
            by_client(cut, axes, self.ctx),
            OwnBatch(*(leaf[:, :clients] for leaf in self.batches)),
            self.place,
        )

    def load(self, ctx: Context) -> None:
        """Begin a round: everybody at the global weights, without momentum."""
        tree.map(lambda mine, new: mine.copy_(new.expand_as(mine)), self.w, ctx.w_g)
        tree.map(Tensor.zero_, self.velocity)
        self.loss.zero_()
        tree.map(Tensor.copy_, tensors_of(self.ctx), tensors_of(ctx))

    def batch(self) -> OwnBatch:
        """This step's."""
        return OwnBatch(*(at(leaf, self.place) for leaf in self.batches))


class Step(NamedTuple):
    """How to train the clients of some buffers."""

    begin: Callable[[], None]  # before the first of several stretches
    look_ahead: Callable[[Tensor], None]  # at the plan of the next stretch, of at most AHEAD steps
    take: Callable[[int], None]  # the i-th step of the stretch


class Parts(NamedTuple):
    """What a step is made of. All take the tensors of the buffers (`inputs_of`), and what is said here."""

    once: Callable[..., tuple[Tensor, ...]]  # what follows from the context alone
    again: Callable[..., None]  # what `once` gave: computes it anew
    once_axes: list[int | None]  # along which the clients are
    look_ahead: Callable[..., tuple[Tensor, ...]]  # a plan, all places: fills the batches, and what follows from each
    ahead_axes: list[int | None]
    step: Callable[..., None]  # what `look_ahead` gave, what `once` gave


Trace = Callable[[Callable[..., Any], Sequence[Tensor], Sequence[int | None]], fx.GraphModule | None]


@dataclass
class Compiler:
    """Makes steps out of two functions, which change the buffers in place."""

    gather: Callable[[OwnBatch, Tensor], None]  # the samples of a plan [step, what, client, sample], into the batches
    step: Callable[[Buffers], None]
    axes: Context  # what of a context differs by client
    device: torch.device

    def __post_init__(self) -> None:
        self.for_any_number: dict[int, Parts | None] = {}  # by number of samples
        self.pool = pool_on(self.device)
        self.side = urgent_stream_on(self.device)

    def make(self, buffers: Buffers, for_these: bool) -> Step:
        """The step on `buffers`: compiled `for_these` sizes, or for any number of clients, if that can be done."""
        tensors = pytree.tree_leaves(inputs_of(buffers))
        _, clients, width = buffers.batches.y.shape
        plan = buffers.place.new_zeros(AHEAD, PLANNED, clients, width)
        places = torch.arange(AHEAD, device=self.device)[:, None]

        parts = None
        if not for_these:
            if width not in self.for_any_number:
                self.for_any_number[width] = self.parts(buffers, plan, places, traced_for_any_number)
            parts = self.for_any_number[width]
        if parts:
            mark_clients([*tensors, plan], [*self.axes_and_kinds(buffers)[0], 2])
        else:
            parts = self.parts(buffers, plan, places, lambda function, given, _: traced(function, given))
        assert parts is not None

        with torch.no_grad():
            constant = [leaf.clone() for leaf in parts.once(*tensors)]
            ahead = [leaf.clone() for leaf in parts.look_ahead(*tensors, plan, places)]
        mark_clients(constant, parts.once_axes)
        mark_clients(ahead, parts.ahead_axes)

        def foresee() -> None:
            copy_all(ahead, parts.look_ahead(*tensors, plan, places))

        changing = {"w": buffers.w, "velocity": buffers.velocity, "loss": buffers.loss}
        before = tree.map(torch.clone, changing)
        step = captured(lambda: parts.step(*tensors, *ahead, *constant), self.pool)
        tree.map(Tensor.copy_, changing, before)  # warming up and capturing took steps
        foresee = captured(foresee, self.pool)

        def look_ahead(new_plan: Tensor) -> None:
            plan[: len(new_plan)].copy_(new_plan)
            foresee()

        def take(i: int) -> None:
            buffers.place.copy_(places[i])
            step()

        begin = captured(lambda: parts.again(*tensors, *constant), self.pool) if constant else lambda: None
        return Step(begin, look_ahead, take)

    def parts(self, buffers: Buffers, plan: Tensor, places: Tensor, trace: Trace) -> Parts | None:
        """What is to be compiled, as `trace` sees it; None if it cannot."""
        tensors, form = pytree.tree_flatten(inputs_of(buffers))
        axes, kinds = self.axes_and_kinds(buffers)

        def step(*tensors: Tensor) -> None:
            w, velocity, loss, ctx, batches, place = pytree.tree_unflatten(tensors, form)
            self.step(Buffers(w, velocity, loss, Context(**ctx, momentum=buffers.ctx.momentum), batches, place))

        module = trace(step, tensors, axes)
        if module is None:
            return None
        three = split(module, kinds)
        given, foreseen = len(tensors), len(three.ahead_axes)

        def again(*tensors: Tensor) -> None:
            copy_all(tensors[given:], three.once(*tensors[:given]))

        def look_ahead(*tensors: Tensor) -> tuple[Tensor, ...]:
            *inputs, plan, places = tensors
            self.gather(pytree.tree_unflatten(inputs, form)[4], plan)
            if not foreseen:
                return ()
            return vmap(three.ahead, in_dims=(*[None] * (given - 1), 0))(*inputs[:-1], places)

        def at_place(module: fx.GraphModule) -> Callable[..., Any]:
            def call(*tensors: Tensor) -> Any:
                place = tensors[given - 1]
                ahead = [at(leaf, place) for leaf in tensors[given : given + foreseen]]
                return module(*tensors[:given], *ahead, *tensors[given + foreseen :])

            return compiled(call)

        look = trace(look_ahead, [*tensors, plan, places], [*axes, 2, None])
        if look is None:
            return None
        fork = forked(three.step)
        return Parts(
            three.once,
            compiled(again),
            three.once_axes,
            compiled(look),
            [None if axis is None else axis + 1 for axis in three.ahead_axes],  # after that of the places
            self.in_two_branches(fork, at_place) if fork else at_place(three.step),
        )

    def in_two_branches(self, fork: Fork, compile: Callable[[fx.GraphModule], Callable[..., Any]]) -> Callable:
        """The step that was forked."""
        trunk, early, late = map(compile, (fork.trunk, *fork.branches))

        def step(*tensors: Tensor) -> None:
            shared = apart(trunk(*tensors), tensors)
            mark_clients(shared, fork.axes)
            side_by_side(lambda: early(*tensors, *shared), lambda: late(*tensors, *shared), self.side)

        return step

    def axes_and_kinds(self, buffers: Buffers) -> tuple[list[int | None], list[str]]:
        """Of each tensor: along which axis the clients are, and what it is."""
        w, velocity, loss, ctx, batches, place = inputs_of(buffers)
        of_context = [
            ((axis := getattr(self.axes, name)), SHARED if axis is None else OWN, v) for name, v in ctx.items()
        ]
        parts = [(0, WEIGHTS, (w, velocity, loss)), *of_context, (1, BATCH, batches), (None, BATCH, place)]
        leaves = [(axis, kind) for axis, kind, part in parts for _ in pytree.tree_leaves(part)]
        return [axis for axis, _ in leaves], [kind for _, kind in leaves]


def at(stacked: Tensor, place: Tensor) -> Tensor:
    """One of them, by a place that is known on the device alone."""
    return stacked.index_select(0, place).squeeze(0)


def apart(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results, copied where they are inputs: compiled code gives the other factor itself for a product with ones,
    and one branch would change what the other is about to read."""
    places = {leaf.untyped_storage().data_ptr() for leaf in inputs}
    return [leaf.clone() if leaf.untyped_storage().data_ptr() in places else leaf for leaf in results]


def copy_all(mine: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    for leaf, other in zip(mine, new, strict=True):
        leaf.copy_(other)


def inputs_of(buffers: Buffers) -> tuple:
    """What a step is a function of, as a tree of tensors."""
    return buffers.w, buffers.velocity, buffers.loss, tensors_of(buffers.ctx), buffers.batches, buffers.place


def tensors_of(ctx: Context) -> dict:
    """The context as a tree, without what is no tensor."""
    return {name: value for name, value in ctx._asdict().items() if name != "momentum"}


def by_client(f: Callable[..., Tensor], axes: Context, first: Context, *rest: Context) -> Context:
    """The first context, with `f` of all on what differs by client."""
    trees = [tensors_of(ctx) for ctx in (first, *rest)]
    differs = [name for name in trees[0] if getattr(axes, name) == 0]
    return first._replace(**tree.map(f, *({name: one[name] for name in differs} for one in trees)))
