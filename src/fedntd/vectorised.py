"""The whole cohort in one step: weights, momentum and state of all clients are stacked and trained together.

One step of one client is `local_step`, the very function that the loop calls; here it is vectorised over clients. On
a GPU it is traced, compiled (tracing.py), and captured as a CUDA graph for each number of clients; replaying those is
all that the host does in a round: images, plans, weights and counts stay on the device.

Clients of different sizes need different numbers of steps. The cohort is sorted by them, and each step trains only the
prefix that is still busy, rounded up to one of a few sizes; a client without a batch keeps its weights. A short batch
is filled up with a real sample, and masked.

The clients may belong to several runs, each with its own global weights, learning rate and hyper-parameters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.config import Optimiser
from fedntd.data.augment import Draws
from fedntd.data.device import DevicePart
from fedntd.engines import Task, Trained, on_each_leaf
from fedntd.errors import require
from fedntd.local import local_step, mean_over_samples
from fedntd.metrics import TEST_BATCH, Counts, count_batch, in_batches
from fedntd.models.functional import Batch, Model
from fedntd.plan import Plan
from fedntd.tracing import Split, compiled, mark_clients, split, traced, traced_for_any_number
from fedntd.tree import Tree, Weights

T = TypeVar("T")

# what differs by client: its own state, and how many samples of each class it has; and what differs by run
OF_ONE_RUN = Context(w_g=None, shared=None, own=0, lr=None, momentum=None, counts=0, values=None)  # pyright: ignore
OF_SEVERAL = Context(w_g=0, shared=0, own=0, lr=0, momentum=None, counts=0, values=0)  # pyright: ignore
PLANNED = 2 + len(Draws._fields)  # what the plan says of a sample: its place, whether it is real, how it is augmented


@dataclass(frozen=True)
class Buffers:
    """What a step reads and changes, always at the same addresses, since CUDA graphs remember those."""

    w: Weights  # [client, ...], as are velocity, loss, and what of the context differs by client
    velocity: Weights
    loss: Tensor
    ctx: Context

    def first(self, clients: int, axes: Context) -> "Buffers":
        """Views of the first so many clients."""

        def cut(leaf: Tensor) -> Tensor:
            return leaf[:clients]

        ctx = by_client(cut, axes, self.ctx)
        return Buffers(tree.map(cut, self.w), tree.map(cut, self.velocity), cut(self.loss), ctx)

    def load(self, ctx: Context) -> None:
        """Begin a round: everybody at the global weights, without momentum."""
        tree.map(lambda mine, new: mine.copy_(new.expand_as(mine)), self.w, ctx.w_g)
        tree.map(Tensor.zero_, self.velocity)
        self.loss.zero_()
        tree.map(Tensor.copy_, tensors_of(self.ctx), tensors_of(ctx))


@dataclass
class Vectorised:
    algorithm: FedAvg
    model: Model
    optimiser: Optimiser
    train_part: DevicePart
    test_part: DevicePart
    classes: int
    together: int = 0  # clients in one step; 0: all of them, or as many as memory holds
    several_runs: bool = False

    def __post_init__(self) -> None:
        require(
            not self.model.has_dropout,
            "engine = 'vectorised' cannot train a network with dropout, whose draws the loop could not repeat; "
            "use engine = 'sequential'",
        )
        self.on_gpu = self.train_part.device.type == "cuda"
        self.axes = OF_SEVERAL if self.several_runs else OF_ONE_RUN
        # without BatchNorm it does not matter which samples share a batch, and a GPU likes large ones
        self.test_batch = TEST_BATCH if self.model.masked or not self.on_gpu else 5 * TEST_BATCH
        self.forget()

    def forget(self) -> None:
        """Let go of all that is kept from round to round."""
        self.buffers: dict[int, Buffers] = {}  # by number of clients
        self.steps: dict[tuple[int, ...], Step] = {}  # by numbers of clients (all, and those in it) and of samples
        self.for_any_number: dict[int, tuple[Split, Callable[..., None]] | None] = {}  # by number of samples
        self.tests: dict[int, tuple[Weights, torch.cuda.CUDAGraph, Counts]] = {}  # by number of models
        # graphs are replayed one after the other and leave nothing behind in it, so they can share their memory
        self.pool = torch.cuda.graph_pool_handle() if self.on_gpu else None

    # --- training -----------------------------------------------------------------------------------------------

    def prepare(self, tasks: list[Task]) -> "Prepared":
        """Sort the clients by their number of steps, cut them into chunks, and send each chunk's plan to the device."""
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i].plan.steps)
        size = self.together or len(tasks)
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        return Prepared(tasks, chunks, [self.pack([tasks[i].plan for i in chunk]) for chunk in chunks])

    def train(self, prepared: "Prepared", contexts: list[Context], measure: bool) -> Trained:
        """Train every task's client; `measure` its model afterwards. What does not fit into memory is done in parts."""
        while True:
            try:
                return self.train_chunks(prepared, contexts, measure)
            except torch.OutOfMemoryError:
                largest = len(prepared.chunks[0])
                require(largest > 1, "one client's training does not fit into the device's memory; a smaller "
                        "federation.batch_size or model may")  # fmt: skip
                self.together = largest // 2
            self.forget()
            if self.on_gpu:
                torch.cuda.empty_cache()
            prepared = self.prepare(prepared.tasks)

    def train_chunks(self, prepared: "Prepared", contexts: list[Context], measure: bool) -> Trained:
        order = [i for chunk in prepared.chunks for i in chunk]
        # copies from the host wait for all that was launched before them, so they come first
        back = torch.tensor(np.argsort(order), device=self.train_part.device)
        trained = []
        for chunk, plan in zip(prepared.chunks, prepared.plans, strict=True):
            tasks = [prepared.tasks[i] for i in chunk]
            trained.append(self.train_chunk(tasks, plan, stacked([contexts[i] for i in chunk], self.axes), measure))
        whole = trained[0] if len(trained) == 1 else on_each_leaf(lambda *leaves: torch.cat(leaves), *trained)
        return whole if order == sorted(order) else on_each_leaf(lambda leaf: leaf.index_select(0, back), whole)

    def train_chunk(self, tasks: list[Task], plan: Tensor, ctx: Context, measure: bool) -> Trained:
        buffers = self.buffers_for(len(tasks), ctx)
        buffers.load(ctx)
        steps = np.array([task.plan.steps for task in tasks])
        made = torch.tensor(steps, dtype=self.model.storage, device=self.train_part.device)
        last = None
        for s in range(len(plan)):
            clients = rounded_up(int((steps > s).sum()), len(tasks))
            step = self.step_for(clients, buffers, plan.shape[-1])
            if step is not last:
                step.begin()
            step.take(plan[s, :, :clients])
            last = step
        measured = self.measure(buffers.w, ctx, [task.plan for task in tasks])
        result = Result(buffers.w, made, buffers.loss / made, measured)
        up, own = vmap(self.finish, in_dims=(0, self.axes))(result, ctx)
        own = tree.map(torch.clone, own)  # it may be the trained weights themselves, which the next chunk overwrites
        if not measure:
            return Trained(up, own, result.loss, None, None)
        test = self.counts_of(buffers.w)
        return Trained(up, own, result.loss, test, self.count_own(buffers.w, [task.owned for task in tasks]))

    def finish(self, result: Result, ctx: Context) -> Upload:
        return self.algorithm.with_values(ctx.values).finish(result, ctx)

    def buffers_for(self, clients: int, like: Context) -> Buffers:
        if clients not in self.buffers:
            w = tree.map(lambda leaf: leaf.new_empty(clients, *leaf.shape[self.several_runs :]), like.w_g)
            ctx = like._replace(**tree.map(torch.clone, tensors_of(like)))
            self.buffers[clients] = Buffers(w, tree.zeros_like(w), ctx.class_counts().new_zeros(clients), ctx)
        return self.buffers[clients]

    def pack(self, plans: list[Plan]) -> Tensor:
        """All of a round's choices as one tensor [step, what, client, sample], so that one copy sends them."""
        width = max(min(plan.batch_size, plan.epoch_size) for plan in plans)
        packed = np.zeros((plans[0].steps, PLANNED, len(plans), width), dtype=np.int64)
        for k, plan in enumerate(plans):
            packed[:, 0, k] = plan.samples[0]  # what is not planned below is filled up with a real sample
            step, place = plan.places()
            packed[step, 0, k, place] = plan.samples
            packed[step, 1, k, place] = 1
            for i, draws in enumerate(plan.draws or ()):
                packed[step, 2 + i, k, place] = draws
        tensor = torch.from_numpy(packed)
        return tensor.pin_memory().to(self.train_part.device, non_blocking=True) if self.on_gpu else tensor

    def step_for(self, clients: int, buffers: Buffers, width: int) -> "Step":
        """What trains the first `clients` of the buffers by one step, given their part of the plan."""
        key = (len(buffers.loss), clients, width)
        if key not in self.steps:
            part = buffers.first(clients, self.axes)
            plain = Step(lambda: None, lambda plan: self.step(part, plan))
            self.steps[key] = self.captured(part, width) if self.on_gpu else plain
        return self.steps[key]

    def captured(self, buffers: Buffers, width: int) -> "Step":
        """The step on `buffers`, compiled and captured as a graph."""
        step, plan, begin = self.compiled(buffers, width)
        begin()
        changing = {"w": buffers.w, "velocity": buffers.velocity, "loss": buffers.loss}
        before = tree.map(torch.clone, changing)
        with torch.no_grad():
            graph, _ = graph_of(step, self.pool)
        tree.map(Tensor.copy_, changing, before)  # warming up and capturing took steps

        def replay(new_plan: Tensor) -> None:
            plan.copy_(new_plan)
            graph.replay()

        return Step(begin, replay)

    def compiled(self, buffers: Buffers, width: int) -> tuple[Callable[[], None], Tensor, Callable[[], None]]:
        """The step on `buffers`; the plan that it reads; and what must be done before the first of several.

        For the whole cohort (in most rounds of most runs nothing else is needed) and for a single client it is compiled
        with just these sizes; for all numbers between, together, if that can be done.
        """
        clients = len(buffers.loss)
        plan = torch.zeros((PLANNED, clients, width), dtype=torch.int64, device=self.train_part.device)
        plan[1] = 1  # all samples are real
        arguments = (buffers.w, buffers.velocity, buffers.loss, tensors_of(buffers.ctx), plan)
        differs = [(0, arguments[:3]), *((getattr(self.axes, k), v) for k, v in arguments[3].items()), (1, plan)]
        axes = [axis for axis, tensors in differs for _ in pytree.tree_leaves(tensors)]
        changes = [part is not arguments[3] for part in arguments for _ in pytree.tree_leaves(part)]
        tensors, form = pytree.tree_flatten(arguments)

        def on_tensors(*tensors: Tensor) -> None:
            w, velocity, loss, ctx, plan = pytree.tree_unflatten(tensors, form)
            self.step(Buffers(w, velocity, loss, Context(**ctx, momentum=buffers.ctx.momentum)), plan)

        shared = None
        if clients > 1 and clients not in self.buffers:
            if width not in self.for_any_number:
                module = traced_for_any_number(on_tensors, tensors, axes)
                parts = split(module, changes) if module else None
                self.for_any_number[width] = parts and (parts, compiled(parts.step))
            shared = self.for_any_number[width]
        if shared:
            parts, step = shared
            mark_clients(tensors, axes)
        else:
            parts = split(traced(on_tensors, tensors), changes)
            step = compiled(parts.step)
        with torch.no_grad():
            kept = [leaf.clone() for leaf in parts.once(*tensors)]
        if shared:
            mark_clients(kept, parts.axes)

        @torch.no_grad()
        def begin() -> None:
            for mine, new in zip(kept, parts.once(*tensors), strict=True):
                mine.copy_(new)

        return lambda: step(*tensors, *kept), plan, begin

    def step(self, b: Buffers, plan: Tensor) -> None:
        """`local_step` of all clients at once; the buffers change in place."""
        sample, real, *draws = plan.flatten(1)
        flat = self.train_part.gather(sample, Draws(*draws))
        shape = plan.shape[1:]
        batch = OwnBatch(flat.x.unflatten(0, shape), flat.y.unflatten(0, shape), real.view(shape) > 0)

        def one(w: Weights, velocity: Weights, batch: OwnBatch, ctx: Context) -> tuple[Weights, Weights, Tensor]:
            algorithm = self.algorithm.with_values(ctx.values)
            return local_step(algorithm, self.model, self.optimiser, w, velocity, Batch(*batch), ctx)

        every = vmap(one, in_dims=(0, 0, 0, self.axes), randomness="error")
        w, velocity, loss = every(b.w, b.velocity, batch, b.ctx)
        busy = batch.real.any(1)

        def update(old: Tensor, new: Tensor) -> Tensor:
            return old.copy_(torch.where(busy.view(-1, *[1] * (old.ndim - 1)), new, old))

        tree.map(update, b.w, w)
        tree.map(update, b.velocity, velocity)
        update(b.loss, b.loss + loss)

    def measure(self, w: Weights, ctx: Context, plans: list[Plan]) -> dict:
        """The algorithm's pass after training, if it has one: each model on some of its own client's samples."""
        if not self.algorithm.measure_samples:
            return {}

        def one(w: Weights, ctx: Context, *batch: Tensor) -> Tree:
            return self.algorithm.with_values(ctx.values).measure(self.model, w, Batch(*batch), ctx)

        parts = []
        some = [plan.some(self.algorithm.measure_samples) for plan in plans]
        for batch in self.own_batches(some, plans[0].batch_size):
            means = vmap(one, in_dims=(0, self.axes, 0, 0, 0))(w, ctx, *batch)
            parts.append((batch.real.sum(1), means))
        return vmap(mean_over_samples)(parts)

    def own_batches(self, samples: list[NDArray[np.int64]], size: int) -> Iterator["OwnBatch"]:
        """Each client's own samples, not augmented, in batches: x [client, sample, ...]; filled up and masked."""
        longest = max(map(len, samples))
        padded = np.stack([np.concatenate([s, np.repeat(s[:1], longest - len(s))]) for s in samples])
        mask = np.arange(longest) < np.array([len(s) for s in samples])[:, None]
        index, real = (torch.from_numpy(a).to(self.train_part.device, non_blocking=True) for a in (padded, mask))
        for columns in in_batches(longest, size):
            flat, shape = self.train_part.plain(index[:, columns].flatten()), index[:, columns].shape
            yield OwnBatch(flat.x.unflatten(0, shape), flat.y.unflatten(0, shape), real[:, columns])

    # --- testing ------------------------------------------------------------------------------------------------

    def test(self, models: list[Weights]) -> list[Counts]:
        """Each of the models on the whole test part."""
        counts = self.counts_of(tree.stack(models))
        return [Counts(*(leaf[i] for leaf in counts)) for i in range(len(models))]

    def counts_of(self, w: Weights) -> Counts:
        """Several models on the whole test part; on a GPU through a graph captured for their number."""
        if not self.on_gpu:
            return self.count_stacked(w)
        models = len(next(iter(w.values())))
        if models not in self.tests:
            kept = tree.map(torch.clone, w)
            self.tests[models] = kept, *graph_of(lambda: self.count_stacked(kept), self.pool)
        kept, graph, counts = self.tests[models]
        tree.map(Tensor.copy_, kept, w)
        graph.replay()
        return Counts(*map(torch.clone, counts))

    @torch.no_grad()
    def count_stacked(self, w: Weights) -> Counts:
        """Several models on the whole test part."""
        count_all = vmap(lambda w, batch: count_batch(self.model, w, batch, self.classes), in_dims=(0, None))
        batches = in_batches(len(self.test_part), self.test_batch)
        return summed([count_all(w, self.test_part.plain(places)) for places in batches])

    @torch.no_grad()
    def count_own(self, w: Weights, owned: list[NDArray[np.int64]]) -> Counts:
        """Each model on its own client's training samples, in the batches that the loop would use."""
        count_all = vmap(lambda w, *batch: count_batch(self.model, w, Batch(*batch), self.classes))
        return summed([count_all(w, *batch) for batch in self.own_batches(owned, TEST_BATCH)])


class OwnBatch(NamedTuple):
    """A batch of every client's own: all are [client, sample, ...]."""

    x: Tensor
    y: Tensor
    real: Tensor


class Step(NamedTuple):
    begin: Callable[[], None]  # before the first of several in a row
    take: Callable[[Tensor], None]  # with a part of the plan


class Prepared(NamedTuple):
    tasks: list[Task]
    chunks: list[list[int]]  # numbers of tasks that are trained together, those with most steps first
    plans: list[Tensor]  # of each chunk, on the device


def summed(counts: list[Counts]) -> Counts:
    return Counts(*(torch.stack(column).sum(0) for column in zip(*counts, strict=True)))


def tensors_of(ctx: Context) -> dict:
    """The context as a tree, without what is no tensor."""
    return {name: value for name, value in ctx._asdict().items() if name != "momentum"}


def by_client(f: Callable[..., Tensor], axes: Context, first: Context, *rest: Context) -> Context:
    """The first context, with `f` of all on what differs by client."""
    trees = [tensors_of(ctx) for ctx in (first, *rest)]
    differs = [name for name in trees[0] if getattr(axes, name) == 0]
    return first._replace(**tree.map(f, *({name: one[name] for name in differs} for one in trees)))


def stacked(contexts: list[Context], axes: Context) -> Context:
    return by_client(lambda *leaves: torch.stack(leaves), axes, *contexts)


def graph_of(function: Callable[[], T], pool: Any) -> tuple[torch.cuda.CUDAGraph, T]:
    """A CUDA graph of what `function` does, and what it returns: tensors that each replay fills anew."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph, result


def rounded_up(busy: int, clients: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: few sizes to compile, and at most half of a step for nothing."""
    size = next(size for power in range(64) for size in (2**power, 3 * 2**power // 2) if size >= busy)
    return min(size, clients)
