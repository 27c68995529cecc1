"""Compiles the training step of a cohort for a GPU, captures it as CUDA graphs and replays them.

A step is split into three stages (tracing.py):

- `once`: what depends on the context alone, computed at the start of a sequence of steps;
- `ahead`: what depends on the context and the samples, such as a teacher's logits, computed for several steps at once;
- `step`: the rest.

The third stage is then forked (forking.py), so that most weights are updated while the backward pass continues.

Batches lie in slots: first those of the first step's clients, then those of the second step's, and so on. Prefetching
works slot by slot and does not need to know which client a slot belongs to. It therefore always processes as many slots
as keep a GPU busy, even if the steps train different numbers of clients.
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
from fedntd.engine.cuda_graphs import capture, pool_on, side_by_side, urgent_stream_on
from fedntd.engine.forking import clone_aliased, find_fork
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

PLANNED = 2 + len(Draws._fields)  # numbers in a plan for each sample: its index, whether it is real, its augmentation
MOST_SLOTS_FORKED_TWICE = 500  # the slots of 50 clients; with more, the gradient of a single layer fills a GPU
AHEAD = 10  # steps of the whole cohort that are prefetched together: enough to fill a GPU, few enough to store


class Step(NamedTuple):
    """A training step for the clients of some buffers."""

    begin: Callable[[], None]  # call before the first of several steps
    take: Callable[[], None]  # one step, on the next slots


class Prefetch(NamedTuple):
    """The work done before several steps, for every slot."""

    begin: Callable[[], None]  # call at the start of a round
    look_ahead: Callable[[Tensor], None]  # fill the slots according to this plan
    shapes: list[torch.Size]  # of the results for one client's batch
    results: list[Tensor]  # of every slot: [slot, ...]


class Parts(NamedTuple):
    """The compiled stages of a step. Each takes the tensors of the buffers (`StepInputs`), then the arguments below."""

    once: Callable[..., tuple[Tensor, ...]]  # no further arguments; returns what depends on the context alone
    refresh: Callable[..., None]  # the results of `once`, which it overwrites with new ones
    once_axes: list[int | None]  # the client axis of each result of `once`
    step: Callable[..., None]  # the prefetched results of every slot, then the results of `once`


Trace = Callable[[Callable[..., Any], Sequence[Tensor], Sequence[int | None]], fx.GraphModule | None]


@dataclass
class Compiler:
    """Compiles and captures training steps, prefetching, and tests of models."""

    gather: Callable[[OwnBatch, Tensor], None]  # loads the samples of a plan [slot, PLANNED, sample] into the batches
    step: Callable[[Buffers], None]  # one training step; changes the buffers in place
    axes: Context  # for each part of a context its client axis, None if all clients share it
    device: torch.device
    notes: list[str]  # where a slower path has to be taken, and why

    def __post_init__(self) -> None:
        self.for_any_number: dict[int, Parts | None] = {}  # by number of samples in a batch
        self.for_one: dict[int, Split] = {}  # likewise
        self.pool = pool_on(self.device)
        # For two nested forks of at most three branches each. All steps share these streams, because every stream keeps
        # its own freed memory.
        self.sides = [[urgent_stream_on(self.device) for _ in range(2)] for _ in range(2)]

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def prefetch(self, buffers: Buffers) -> Prefetch:
        """Capture the prefetching of all slots of these buffers."""
        slots, width = buffers.batches.y.shape
        single = buffers.first(1, self.axes)
        stages = self.split_for_one(single)
        if not stages.ahead_shapes:
            self.note("only samples are prepared for several steps ahead: all else needs the weights in training")
        tensors, form = pytree.tree_flatten(StepInputs.of(single))
        plan = buffers.place.new_zeros(slots, PLANNED, width)
        places = torch.arange(slots, device=self.device)[:, None]

        def compute_ahead(*tensors: Tensor) -> tuple[Tensor, ...]:
            *inputs, plan, places = tensors
            self.gather(pytree.tree_unflatten(inputs, form).batches, plan)
            if not stages.ahead_shapes:
                return ()
            # Vectorise one client's step over its last input, `place`: each slot takes its turn as the current one.
            return vmap(stages.ahead, in_dims=(*[None] * (len(inputs) - 1), 0))(*inputs[:-1], places)

        arguments = *tensors, plan, places
        compute_ahead = compiled(traced(compute_ahead, arguments))
        with torch.no_grad():  # as during capture; with gradients enabled, it would be compiled a second time
            results = [leaf.clone() for leaf in compute_ahead(*arguments)]

        def fill_slots() -> None:
            copy_all(results, compute_ahead(*arguments))
            buffers.place.zero_()

        fill_slots = capture(fill_slots, self.pool)

        def look_ahead(new_plan: Tensor) -> None:
            plan[: len(new_plan)].copy_(new_plan)
            fill_slots()

        return Prefetch(capture(buffers.reset, self.pool), look_ahead, stages.ahead_shapes, results)

    def test(
        self, count: Callable[..., Sequence[Tensor]], w: Weights, batches: Sequence[Sequence[Tensor]]
    ) -> Callable[[Weights], list[Tensor]]:
        """Capture a test of stacked models like `w`.

        Returns a function of the models. It returns `count(models, *batch)` summed over the batches, all of which must
        have the same shape.
        """
        kept = tree.map(torch.clone, w)
        models, form = pytree.tree_flatten(kept)

        def count_batch(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(count(pytree.tree_unflatten(tensors[: len(models)], form), *tensors[len(models) :]))

        count_batch = compiled(traced(count_batch, [*models, *batches[0]]))

        def count_all() -> list[Tensor]:
            counts = [count_batch(*models, *batch) for batch in batches]
            return [torch.stack(column).sum(0) for column in zip(*counts, strict=True)]

        sums = count_all()
        replay = capture(lambda: copy_all(sums, count_all()), self.pool)

        def test(w: Weights) -> list[Tensor]:
            tree.copy_(kept, w)
            replay()
            return [leaf.clone() for leaf in sums]

        return test

    def split_for_one(self, buffers: Buffers) -> Split:
        """The stages of a single client's step. Its `ahead` stage is what is prefetched for every slot."""
        width = buffers.batches.y.shape[1]
        if width not in self.for_one:
            tensors, _ = pytree.tree_flatten(StepInputs.of(buffers))
            module = traced(self.function_of(buffers), tensors)
            self.for_one[width] = split(module, self.axes_and_kinds(buffers)[1])
        return self.for_one[width]

    def make(self, buffers: Buffers, prefetch: Prefetch, exact_size: bool) -> Step:
        """Capture the step on `buffers`.

        With `exact_size` it is compiled for this number of clients. Otherwise the code compiled for any number of
        clients is used, if the step can be traced that way.
        """
        tensors = pytree.tree_leaves(StepInputs.of(buffers))
        prefetched = [leaf[:] for leaf in prefetch.results]
        clients, width = len(buffers.loss), buffers.batches.y.shape[1]
        parts = None
        if not exact_size:
            if width not in self.for_any_number:
                self.for_any_number[width] = self.parts(buffers, prefetch, traced_for_any_number)
            parts = self.for_any_number[width]
        if parts:
            mark_clients(tensors, self.axes_and_kinds(buffers)[0])
            by_slot = [*buffers.batches, *prefetched]
            mark_clients(by_slot, [0] * len(by_slot))  # cohorts of other sizes have other numbers of slots
        else:
            parts = self.parts(buffers, prefetch, lambda function, tensors, _: traced(function, tensors))
        assert parts is not None

        with torch.no_grad():
            constants = [leaf.clone() for leaf in parts.once(*tensors)]
        mark_clients(constants, parts.once_axes)

        def take() -> None:
            parts.step(*tensors, *prefetched, *constants)
            buffers.place.add_(clients)

        # The warm-up before a capture takes real steps: undo them. Start them at the first slot, since the current one
        # may be the last.
        changing = {"w": buffers.w, "velocity": buffers.velocity, "loss": buffers.loss, "place": buffers.place}
        before = tree.map(torch.clone, changing)
        buffers.place.zero_()
        take = capture(take, self.pool)
        tree.map(Tensor.copy_, changing, before)
        # torch warns if an empty graph is captured
        begin = capture(lambda: parts.refresh(*tensors, *constants), self.pool) if constants else lambda: None
        return Step(begin, take)

    def parts(self, buffers: Buffers, prefetch: Prefetch, trace: Trace) -> Parts | None:
        """Trace, split, fork and compile the step on `buffers`; None if `trace` returns None."""
        tensors, form = pytree.tree_flatten(StepInputs.of(buffers))
        index: StepInputs = pytree.tree_unflatten(range(len(tensors)), form)  # of each input among the tensors
        axes, kinds = self.axes_and_kinds(buffers)
        if len(buffers.loss) == 1:
            stages = self.split_for_one(buffers)
        else:
            module = trace(self.function_of(buffers), tensors, axes)
            if module is None:
                self.note("a step is compiled anew for each number of clients: it cannot be traced for any number")
                return None
            stages = split(module, kinds, lambda shapes: are_stacked(shapes, prefetch.shapes))
        inputs, prefetched = len(tensors), len(prefetch.shapes)

        def refresh(*tensors: Tensor) -> None:
            copy_all(tensors[inputs:], stages.once(*tensors[:inputs]))

        def compile_on_slots(module: fx.GraphModule) -> Callable[..., Any]:
            """Compile `module` together with the selection of the current slots' prefetched results."""

            def call(*tensors: Tensor) -> Any:
                # The first tensor is a weight: [client, ...]. The compiled graph has its inputs in the order in which
                # they are first read here, so another tensor would change the graph.
                clients = len(tensors[0])
                slots = tensors[index.place] + torch.arange(clients, device=self.device)  # pyright: ignore
                # not strict: if `split` has refused to prefetch, ahead_shapes is empty and nothing is selected
                selection = zip(
                    tensors[inputs : inputs + prefetched], prefetch.shapes, stages.ahead_shapes, strict=False
                )
                ahead = [merge_clients(leaf.index_select(0, slots), single, shape) for leaf, single, shape in selection]
                ahead = map(with_layout, ahead, stages.ahead_layouts)
                return module(*tensors[:inputs], *ahead, *tensors[inputs + prefetched :])

            return compiled(call)

        forks = 2 if len(buffers.batches.y) <= MOST_SLOTS_FORKED_TWICE else 1
        step = self.compile_forked(stages.step, compile_on_slots, forks)
        return Parts(stages.once, compiled(refresh), stages.once_axes, step)

    def function_of(self, buffers: Buffers) -> Callable[..., None]:
        """The step on `buffers` as a function of the tensors in `StepInputs`."""
        _, form = pytree.tree_flatten(StepInputs.of(buffers))

        def step(*tensors: Tensor) -> None:
            inputs: StepInputs = pytree.tree_unflatten(tensors, form)
            self.step(inputs.buffers(buffers.ctx.momentum))

        return step

    def compile_forked(
        self, module: fx.GraphModule, compile_part: Callable[..., Callable], most_forks: int, whole: bool = True
    ) -> Callable:
        """Compile a step as a trunk and branches where it can be forked, at most `most_forks` deep.

        `whole` says that `module` is a whole step, not a branch of one.
        """
        fork = find_fork(module) if most_forks else None
        if not fork:
            if whole:
                self.note("weights are updated after the whole backward pass: the step cannot be forked")
            return compile_part(module)
        main_update, rest, *small_updates = fork.branches
        rest = self.compile_forked(rest, compile_part, most_forks - 1, whole=False)
        trunk, branches = compile_part(fork.trunk), [compile_part(main_update), rest, *map(compile_part, small_updates)]

        def step(*tensors: Tensor) -> None:
            shared = clone_aliased(trunk(*tensors), tensors)
            mark_clients(shared, fork.axes)
            side_by_side([partial(branch, *tensors, *shared) for branch in branches], self.sides[most_forks - 1])

        return step

    def axes_and_kinds(self, buffers: Buffers) -> tuple[list[int | None], list[str]]:
        """The client axis and the kind (see tracing.py) of each tensor in `StepInputs`."""
        inputs = StepInputs.of(buffers)
        context_parts = [
            ((axis := getattr(self.axes, name)), SHARED if axis is None else OWN, v) for name, v in inputs.ctx.items()
        ]
        trained = inputs.w, inputs.velocity, inputs.loss
        parts = [(0, WEIGHTS, trained), *context_parts, (None, BATCH, (inputs.batches, inputs.place))]
        leaves = [(axis, kind) for axis, kind, part in parts for _ in pytree.tree_leaves(part)]
        return [axis for axis, _ in leaves], [kind for _, kind in leaves]


def are_stacked(shapes: Sequence[torch.Size], single_shapes: Sequence[torch.Size]) -> bool:
    """Whether several clients' results are one client's results stacked along an axis that has length 1 there.

    This fails where the client axis is merged with another one: the order within the merged axis is not known.
    """
    if [len(shape) for shape in shapes] != [len(single) for single in single_shapes]:
        return False
    pairs = list(zip(shapes, single_shapes, strict=True))
    grown = [[axis for axis, length in enumerate(shape) if length != single[axis]] for shape, single in pairs]
    return all(len(axes) == 1 and single[axes[0]] == 1 for axes, (_, single) in zip(grown, pairs, strict=True))


def merge_clients(results: Tensor, single: torch.Size, shape: torch.Size) -> Tensor:
    """Stack one-client results along the axis in which their shape, `single`, differs from `shape`.

    `results` is [client, *single]. If the two shapes are equal, there is one client.
    """
    if single == shape:
        return results.squeeze(0)
    axis = next(a for a, length in enumerate(shape) if length != single[a])
    return results.squeeze(axis + 1).movedim(0, axis)


def with_layout(tensor: Tensor, axes: list[int]) -> Tensor:
    """The same values, with the axes in this order in memory."""
    return tensor.permute(axes).contiguous().permute([axes.index(axis) for axis in range(len(axes))])


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
