"""How a GPU takes the training steps of a cohort: compiled, captured as CUDA graphs, and replayed.

A step is split in three (tracing.py): what depends on the context alone is computed when a run of steps begins; what
depends on it and on the samples, such as the answers of a teacher, for several steps ahead; only the rest in each step.
And that forks (forking.py): most weights are updated beside the rest of the backward pass.

To look ahead, a GPU needs no clients, only batches: these lie in slots, as many as keep it busy, those of a step's
clients in turn and one step after the other, whether or not the steps train equally many clients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.data.augment import Draws
from fedntd.engine.buffers import Buffers, OwnBatch, StepInputs
from fedntd.engine.cuda_graphs import captured, pool_on, side_by_side, urgent_stream_on
from fedntd.engine.forking import clone_aliased, forked
from fedntd.engine.tracing import (
    BATCH,
    OWN,
    SHARED,
    WEIGHTS,
    Split,
    compiled,
    mark_clients,
    split,
    traced,
    traced_for_any_number,
)
from fedntd.tree import Weights

PLANNED = 2 + len(Draws._fields)  # what a plan says of a sample: its place, whether it is real, how it is augmented
MOST_SLOTS_FORKED_TWICE = 500  # those of 50 clients; with more, each layer's gradient fills a GPU by itself
AHEAD = 10  # steps of the whole cohort whose samples are gathered together: enough to fill a GPU, few enough to keep


class Step(NamedTuple):
    """How to train the clients of some buffers."""

    begin: Callable[[], None]  # before the first of several steps
    take: Callable[[], None]  # the step on the next slots


class Prefetch(NamedTuple):
    """What is done before several steps: for every slot, whichever client's it is."""

    begin: Callable[[], None]  # a round, before all else
    look_ahead: Callable[[Tensor], None]  # at the plan of the next slots
    shapes: list[torch.Size]  # of what follows from one client's batch
    results: list[Tensor]  # that, of every slot: [slot, ...]


class Parts(NamedTuple):
    """What a step is made of. All take the tensors of the buffers (`StepInputs`), and what is said here."""

    once: Callable[..., tuple[Tensor, ...]]  # what follows from the context alone
    again: Callable[..., None]  # what `once` gave: computes it anew
    once_axes: list[int | None]  # along which the clients are
    step: Callable[..., None]  # what was prefetched for every slot, what `once` gave


Trace = Callable[[Callable[..., Any], Sequence[Tensor], Sequence[int | None]], fx.GraphModule | None]


@dataclass
class Compiler:
    """Makes steps out of two functions, which change the buffers in place; and tests of models."""

    gather: Callable[[OwnBatch, Tensor], None]  # the samples of a plan [slot, what, sample], into the batches
    step: Callable[[Buffers], None]
    axes: Context  # what of a context differs by client
    device: torch.device
    notes: list[str]  # where a slower way has to be gone

    def __post_init__(self) -> None:
        self.for_any_number: dict[int, Parts | None] = {}  # by number of samples
        self.for_one: dict[int, Split] = {}  # likewise
        self.pool = pool_on(self.device)
        # for two forks of at most three branches each; shared by all steps, since each keeps freed memory
        self.sides = [[urgent_stream_on(self.device) for _ in range(2)] for _ in range(2)]

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def prefetch(self, buffers: Buffers) -> Prefetch:
        """For the slots of these buffers."""
        slots, width = buffers.batches.y.shape
        one = buffers.first(1, self.axes)
        three = self.split_for_one(one)
        if not three.ahead_shapes:
            self.note("only samples are prepared for several steps ahead: all else needs the weights in training")
        tensors, form = pytree.tree_flatten(StepInputs.of(one))
        plan = buffers.place.new_zeros(slots, PLANNED, width)
        places = torch.arange(slots, device=self.device)[:, None]

        def look(*tensors: Tensor) -> tuple[Tensor, ...]:
            *inputs, plan, places = tensors
            self.gather(pytree.tree_unflatten(inputs, form).batches, plan)
            if not three.ahead_shapes:
                return ()
            # of every slot: its place stands in for the step's, which is the last of a step's inputs
            return vmap(three.ahead, in_dims=(*[None] * (len(inputs) - 1), 0))(*inputs[:-1], places)

        given = *tensors, plan, places
        look = compiled(traced(look, given))
        with torch.no_grad():  # as when it is captured: it would be compiled for each
            results = [leaf.clone() for leaf in look(*given)]

        def fetch_ahead() -> None:
            copy_all(results, look(*given))
            buffers.place.zero_()

        fetch_ahead = captured(fetch_ahead, self.pool)

        def look_ahead(new_plan: Tensor) -> None:
            plan[: len(new_plan)].copy_(new_plan)
            fetch_ahead()

        return Prefetch(captured(buffers.reset, self.pool), look_ahead, three.ahead_shapes, results)

    def test(
        self, count: Callable[..., Sequence[Tensor]], w: Weights, batches: Sequence[Sequence[Tensor]]
    ) -> Callable[[Weights], list[Tensor]]:
        """What `count(models, *batch)` gives for models like these, summed over the batches, all of one shape."""
        kept = tree.map(torch.clone, w)
        models, form = pytree.tree_flatten(kept)

        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(count(pytree.tree_unflatten(tensors[: len(models)], form), *tensors[len(models) :]))

        one = compiled(traced(one, [*models, *batches[0]]))

        def every() -> list[Tensor]:
            return [torch.stack(same).sum(0) for same in zip(*(one(*models, *batch) for batch in batches), strict=True)]

        sums = every()
        take = captured(lambda: copy_all(sums, every()), self.pool)

        def counted(w: Weights) -> list[Tensor]:
            tree.copy_(kept, w)
            take()
            return [leaf.clone() for leaf in sums]

        return counted

    def split_for_one(self, buffers: Buffers) -> Split:
        """A single client's step: what it can fetch_ahead is prefetched for every slot."""
        width = buffers.batches.y.shape[1]
        if width not in self.for_one:
            tensors, _ = pytree.tree_flatten(StepInputs.of(buffers))
            module = traced(self.function_of(buffers), tensors)
            self.for_one[width] = split(module, self.axes_and_kinds(buffers)[1])
        return self.for_one[width]

    def make(self, buffers: Buffers, prefetch: Prefetch, for_these: bool) -> Step:
        """The step on `buffers`: compiled `for_these` sizes, or for any number of clients, if that can be done."""
        tensors = pytree.tree_leaves(StepInputs.of(buffers))
        prefetched = [leaf[:] for leaf in prefetch.results]
        clients, width = len(buffers.loss), buffers.batches.y.shape[1]
        parts = None
        if not for_these:
            if width not in self.for_any_number:
                self.for_any_number[width] = self.parts(buffers, prefetch, traced_for_any_number)
            parts = self.for_any_number[width]
        if parts:
            mark_clients(tensors, self.axes_and_kinds(buffers)[0])
            by_slot = [*buffers.batches, *prefetched]
            mark_clients(by_slot, [0] * len(by_slot))  # of which cohorts of other sizes have other numbers
        else:
            parts = self.parts(buffers, prefetch, lambda function, given, _: traced(function, given))
        assert parts is not None

        with torch.no_grad():
            constant = [leaf.clone() for leaf in parts.once(*tensors)]
        mark_clients(constant, parts.once_axes)

        def take() -> None:
            parts.step(*tensors, *prefetched, *constant)
            buffers.place.add_(clients)

        changing = {"w": buffers.w, "velocity": buffers.velocity, "loss": buffers.loss, "place": buffers.place}
        before = tree.map(torch.clone, changing)
        buffers.place.zero_()  # warming up takes steps, and the slots of the next ones may be the last
        take = captured(take, self.pool)
        tree.map(Tensor.copy_, changing, before)
        # an empty graph would be warned of
        begin = captured(lambda: parts.again(*tensors, *constant), self.pool) if constant else lambda: None
        return Step(begin, take)

    def parts(self, buffers: Buffers, prefetch: Prefetch, trace: Trace) -> Parts | None:
        """What is to be compiled, as `trace` sees it; None if it cannot."""
        tensors, form = pytree.tree_flatten(StepInputs.of(buffers))
        at: StepInputs = pytree.tree_unflatten(range(len(tensors)), form)  # where each of them is among the tensors
        axes, kinds = self.axes_and_kinds(buffers)
        if len(buffers.loss) == 1:
            three = self.split_for_one(buffers)
        else:
            module = trace(self.function_of(buffers), tensors, axes)
            if module is None:
                self.note("a step is compiled anew for each number of clients: it cannot be traced for any number")
                return None
            three = split(module, kinds, lambda shapes: are_stacked(shapes, prefetch.shapes))
        given, prefetched = len(tensors), len(prefetch.shapes)

        def again(*tensors: Tensor) -> None:
            copy_all(tensors[given:], three.once(*tensors[:given]))

        def of_these(module: fx.GraphModule) -> Callable[..., Any]:
            def call(*tensors: Tensor) -> Any:
                clients = len(tensors[at.loss])  # pyright: ignore[reportArgumentType]
                slots = tensors[at.place] + torch.arange(clients, device=self.device)  # pyright: ignore
                # nothing if what can be prefetched is not what was
                each = zip(tensors[given : given + prefetched], prefetch.shapes, three.ahead_shapes, strict=False)
                ahead = [stacked(leaf.index_select(0, slots), one, shape) for leaf, one, shape in each]
                ahead = map(laid_out, ahead, three.ahead_layouts)
                return module(*tensors[:given], *ahead, *tensors[given + prefetched :])

            return compiled(call)

        forks = 2 if len(buffers.batches.y) <= MOST_SLOTS_FORKED_TWICE else 1
        return Parts(three.once, compiled(again), three.once_axes, self.in_branches(three.step, of_these, forks))

    def function_of(self, buffers: Buffers) -> Callable[..., None]:
        """The step as a function of tensors."""
        _, form = pytree.tree_flatten(StepInputs.of(buffers))

        def step(*tensors: Tensor) -> None:
            inputs: StepInputs = pytree.tree_unflatten(tensors, form)
            self.step(inputs.buffers(buffers.ctx.momentum))

        return step

    def in_branches(
        self, module: fx.GraphModule, compile: Callable[..., Callable], most_forks: int, whole: bool = True
    ) -> Callable:
        """The compiled step, forked where it can be."""
        fork = forked(module) if most_forks else None
        if not fork:
            if whole:
                self.note("weights are updated after the whole backward pass: the step cannot be forked")
            return compile(module)
        most, rest, *few = fork.branches
        rest = self.in_branches(rest, compile, most_forks - 1, whole=False)
        trunk, branches = compile(fork.trunk), [compile(most), rest, *map(compile, few)]

        def step(*tensors: Tensor) -> None:
            shared = clone_aliased(trunk(*tensors), tensors)
            mark_clients(shared, fork.axes)
            side_by_side([partial(branch, *tensors, *shared) for branch in branches], self.sides[most_forks - 1])

        return step

    def axes_and_kinds(self, buffers: Buffers) -> tuple[list[int | None], list[str]]:
        """Of each tensor: along which axis the clients are, and what it is."""
        inputs = StepInputs.of(buffers)
        of_context = [
            ((axis := getattr(self.axes, name)), SHARED if axis is None else OWN, v) for name, v in inputs.ctx.items()
        ]
        trained = inputs.w, inputs.velocity, inputs.loss
        parts = [(0, WEIGHTS, trained), *of_context, (None, BATCH, (inputs.batches, inputs.place))]
        leaves = [(axis, kind) for axis, kind, part in parts for _ in pytree.tree_leaves(part)]
        return [axis for axis, _ in leaves], [kind for _, kind in leaves]


def are_stacked(shapes: Sequence[torch.Size], of_one: Sequence[torch.Size]) -> bool:
    """Whether these shapes of several clients' results are those of one, with an axis of length 1 that has grown.

    Where it is merged with another, it is not known which of the two comes first.
    """
    if [len(shape) for shape in shapes] != [len(one) for one in of_one]:
        return False
    grown = [
        [a for a, length in enumerate(shape) if length != one[a]] for shape, one in zip(shapes, of_one, strict=True)
    ]
    return all(len(axes) == 1 and one[axes[0]] == 1 for axes, one in zip(grown, of_one, strict=True))


def stacked(results: Tensor, one: torch.Size, shape: torch.Size) -> Tensor:
    """Results [client, ...], each of the shape `one`, as those of several, like those of this `shape`."""
    if one == shape:
        return results.squeeze(0)
    axis = next(a for a, length in enumerate(shape) if length != one[a])
    return results.squeeze(axis + 1).movedim(0, axis)


def laid_out(tensor: Tensor, axes: list[int]) -> Tensor:
    """The same, with its axes in this order in memory."""
    return tensor.permute(axes).contiguous().permute([axes.index(axis) for axis in range(len(axes))])


def copy_all(mine: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    for leaf, other in zip(mine, new, strict=True):
        leaf.copy_(other)
