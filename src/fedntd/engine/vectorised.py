"""The vectorised engine: trains the whole cohort in one step.

Weights, momentum and state of all clients are stacked. One step of one client is `local_step`, the same function that
the sequential engine calls; here it is vectorised over clients. On a GPU it is traced and compiled (tracing.py), and
captured as a CUDA graph for each number of clients. In a round the host only replays these graphs: images, plans,
weights and counts stay on the device.

The samples of several steps are gathered and augmented together, before these steps. On a GPU, everything else that
does not depend on the trained weights, such as a teacher's logits, is computed ahead as well.

Clients with different numbers of samples need different numbers of steps. The cohort is sorted by number of steps, most
first, and each step trains only the clients that have steps left, rounded up to one of a few sizes. A client without a
batch keeps its weights. A short batch is padded with a real sample and masked.

The clients may belong to several runs, each with its own global weights, learning rate and hyper-parameters.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.config.schema import Optimiser
from fedntd.data.augment import Draws
from fedntd.data.device import DevicePart
from fedntd.engine.base import Task, Trained, map_leaves
from fedntd.engine.buffers import Buffers, OwnBatch, by_client, tensors_of
from fedntd.engine.compiler import AHEAD, PLANNED, Compiler, Prefetch, Step
from fedntd.engine.devices import to_device
from fedntd.engine.forking import clone_aliased
from fedntd.engine.plan import Plan, busy, rounded_up, stretches
from fedntd.engine.testing import TEST_BATCH, Counts, count_batch, in_batches, summed
from fedntd.engine.training import local_step, mean_over_samples
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights

# The client axis of each part of a context. Clients differ in their state and class counts; with several runs, also in
# the global weights, the broadcast, the learning rate and the hyper-parameters.
OF_ONE_RUN = Context(w_g=None, shared=None, own=0, lr=None, momentum=None, counts=0, values=None)  # pyright: ignore
OF_SEVERAL = Context(w_g=0, shared=0, own=0, lr=0, momentum=None, counts=0, values=0)  # pyright: ignore


@dataclass(eq=False)
class Vectorised:
    """Trains the clients of a cohort, of one run or several, in one vectorised step."""

    algorithm: FedAvg
    model: Model
    optimiser: Optimiser
    train_part: DevicePart
    test_part: DevicePart
    classes: int
    together: int = 0  # clients trained in one step; 0: all, or as many as fit into memory
    several_runs: bool = False

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.on_gpu = self.train_part.device.type == "cuda"
        self.axes = OF_SEVERAL if self.several_runs else OF_ONE_RUN
        self.tested_together = 0  # models tested in one step; 0: all
        # Without BatchNorm it does not matter which samples share a batch, and large batches are faster on a GPU.
        self.test_batch = TEST_BATCH if self.model.masked or not self.on_gpu else 5 * TEST_BATCH
        self.forget()

    def forget(self) -> None:
        """Free everything that is kept from round to round."""
        self.buffers: dict[tuple[int, int], Buffers] = {}  # by numbers of clients and of samples
        self.prefetches: dict[tuple[int, int], Prefetch] = {}  # by the same numbers
        self.steps: dict[tuple[int, int, int], Step] = {}  # by numbers of clients (trained, all) and of samples
        self.tests: dict[int, Callable[[Weights], list[Tensor]]] = {}  # by number of models
        device = self.train_part.device
        self.compiler = Compiler(self.gather, self.step, self.axes, device, self.notes) if self.compiles() else None

    def compiles(self) -> bool:
        """Whether steps are compiled. A method of its own, so that tests can compile on a CPU."""
        return self.on_gpu

    # --- training -----------------------------------------------------------------------------------------------

    def prepare(self, tasks: list[Task]) -> "Prepared":
        """Sort the clients by their number of steps, cut them into chunks, and send each chunk's plan to the device."""
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i].plan.steps)
        size = self.together or len(tasks)
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        back = to_device(np.argsort(order), self.train_part.device) if order != sorted(order) else None
        return Prepared(tasks, [self.pack(chunk, [tasks[i].plan for i in chunk]) for chunk in chunks], back)

    def train(self, prepared: "Prepared", contexts: list[Context], measure: bool) -> Trained:
        """Train the client of every task, and with `measure` test its model afterwards.

        If memory runs out, the cohort is trained again in chunks of half the size.
        """
        while True:
            try:
                return self.train_chunks(prepared, contexts, measure)
            except torch.OutOfMemoryError:
                largest = len(prepared.chunks[0].members)
            # outside of `except`, where the error still holds references to tensors
            require(largest > 1, "one client's training does not fit into the device's memory; a smaller "
                    "federation.batch_size or model may")  # fmt: skip
            self.together = largest // 2
            self.forget()
            self.give_back_memory()
            prepared = self.prepare(prepared.tasks)

    def give_back_memory(self) -> None:
        gc.collect()  # engines of former runs are part of reference cycles, and may hold the memory needed here
        if self.on_gpu:
            torch.cuda.empty_cache()

    def train_chunks(self, prepared: "Prepared", contexts: list[Context], measure: bool) -> Trained:
        trained = []
        for chunk in prepared.chunks:
            tasks = [prepared.tasks[i] for i in chunk.members]
            ctx = stack_contexts([contexts[i] for i in chunk.members], self.axes)
            trained.append(self.train_chunk(tasks, chunk, ctx, measure))
        whole = trained[0] if len(trained) == 1 else map_leaves(lambda *leaves: torch.cat(leaves), *trained)
        back = prepared.back
        return whole if back is None else map_leaves(lambda leaf: leaf.index_select(0, back), whole)

    def train_chunk(self, tasks: list[Task], chunk: "Chunk", ctx: Context, measure: bool) -> Trained:
        buffers = self.buffers_for(len(tasks), chunk.plan.shape[-1], ctx)
        prefetch, last = self.prefetch_for(buffers), None
        buffers.load(ctx)
        prefetch.begin()
        for start, sizes in stretches(chunk.sizes, len(buffers.batches.y)):
            prefetch.look_ahead(chunk.plan[start : start + sum(sizes)])
            for clients in sizes:
                step = self.step_for(clients, buffers)
                if step is not last:
                    step.begin()
                step.take()
                last = step
        measured = self.measure(buffers.w, ctx, [task.plan for task in tasks])
        result = Result(buffers.w, chunk.steps, buffers.loss / chunk.steps, measured)
        up, own = vmap(self.finish, in_dims=(0, self.axes))(result, ctx)
        # uploads and states may be the trained weights themselves, which the next chunk overwrites
        overwritten = tree.leaves(buffers.w)
        up, own = (tree.map(lambda leaf: clone_aliased([leaf], overwritten)[0], part) for part in (up, own))
        if not measure:
            return Trained(up, own, result.loss, None, None)
        test = self.counts_of(buffers.w)
        return Trained(up, own, result.loss, test, self.count_own(buffers.w, [task.owned for task in tasks]))

    def finish(self, result: Result, ctx: Context) -> Upload:
        return self.algorithm.with_values(ctx.values).finish(result, ctx)

    def buffers_for(self, clients: int, width: int, like: Context) -> Buffers:
        """The buffers for this many clients and samples in a batch, with a context like this one."""
        key = clients, width
        if key not in self.buffers:
            w = tree.map(lambda leaf: leaf.new_empty(clients, *leaf.shape[self.several_runs :]), like.w_g)
            ctx = like._replace(**tree.map(torch.clone, tensors_of(like)))
            place = torch.zeros(1, dtype=torch.int64, device=self.train_part.device)
            sample = self.train_part.plain(place)
            shape = AHEAD * clients, width
            x, y = (empty_stack(shape, leaf[0]) for leaf in (sample.x, sample.y))
            batches = OwnBatch(x, y, torch.zeros_like(y, dtype=torch.bool))
            loss = ctx.class_counts().new_zeros(clients)
            self.buffers[key] = Buffers(w, tree.zeros_like(w), loss, ctx, batches, place)
        return self.buffers[key]

    def pack(self, members: list[int], plans: list[Plan]) -> "Chunk":
        """Pack the plans of all clients of a chunk into one tensor, so that one copy sends them to the device."""
        # Rounded up, because every width is compiled separately and rounds of small clients would all differ.
        width = rounded_up(max(min(plan.batch_size, plan.epoch_size) for plan in plans), plans[0].batch_size)
        steps = np.array([plan.steps for plan in plans])
        sizes = np.array(busy(steps))
        first = np.cumsum(sizes) - sizes  # the first slot of each step
        packed = np.zeros((sizes.sum(), PLANNED, width), dtype=np.int64)
        for k, plan in enumerate(plans):
            packed[first[sizes > k] + k, 0] = plan.samples[0]  # padding is a real sample
            step, place = plan.places()
            packed[first[step] + k, 0, place] = plan.samples
            packed[first[step] + k, 1, place] = 1
            for i, draws in enumerate(plan.draws or ()):
                packed[first[step] + k, 2 + i, place] = draws
        device = self.train_part.device
        return Chunk(members, sizes.tolist(), to_device(packed, device), to_device(steps, device, self.model.storage))

    def step_for(self, clients: int, buffers: Buffers) -> Step:
        """The step that trains the first `clients` of the buffers."""
        key = clients, len(buffers.loss), buffers.batches.y.shape[1]
        if key not in self.steps:
            self.steps[key] = self.make_step(buffers, buffers.first(clients, self.axes))
        return self.steps[key]

    def make_step(self, whole: Buffers, buffers: Buffers) -> Step:
        if self.compiler:
            # Most rounds of most runs only need the step for the whole cohort. A single client cannot use code that is
            # compiled for several, because the compiler treats an axis of length 1 as a special case.
            exact_size = len(buffers.loss) in (1, len(whole.loss))
            return self.compiler.make(buffers, self.prefetch_for(whole), exact_size)

        def take() -> None:
            self.step(buffers)
            buffers.place.add_(len(buffers.loss))

        return Step(lambda: None, take)

    def prefetch_for(self, buffers: Buffers) -> Prefetch:
        key = len(buffers.loss), buffers.batches.y.shape[1]
        if key not in self.prefetches:
            self.prefetches[key] = self.make_prefetch(buffers)
        return self.prefetches[key]

    def make_prefetch(self, buffers: Buffers) -> Prefetch:
        if self.compiler:
            return self.compiler.prefetch(buffers)

        def look_ahead(plan: Tensor) -> None:
            self.gather(buffers.batches, plan)
            buffers.place.zero_()

        return Prefetch(buffers.reset, look_ahead, [], [])

    def gather(self, batches: OwnBatch, plan: Tensor) -> None:
        """Load the samples of a plan [slot, PLANNED, sample], augmented as planned, into the first slots."""
        sample, real, *draws = plan.transpose(0, 1).flatten(1)
        flat, shape = self.train_part.gather(sample, Draws(*draws)), (len(plan), plan.shape[2])
        planned = flat.x.unflatten(0, shape), flat.y.unflatten(0, shape), real.view(shape) > 0
        for leaf, new in zip(batches, planned, strict=True):
            leaf[: len(plan)].copy_(new)

    def step(self, b: Buffers) -> None:
        """`local_step` of all clients at once. Changes the buffers in place."""
        batch = b.batch()

        def client_step(
            w: Weights, velocity: Weights, batch: OwnBatch, ctx: Context
        ) -> tuple[Weights, Weights, Tensor]:
            algorithm = self.algorithm.with_values(ctx.values)
            return local_step(algorithm, self.model, self.optimiser, w, velocity, Batch(*batch), ctx)

        cohort_step = vmap(client_step, in_dims=(0, 0, 0, self.axes), randomness="error")
        w, velocity, loss = cohort_step(b.w, b.velocity, batch, b.ctx)
        has_batch = batch.real.any(1)

        def update(old: Tensor, new: Tensor) -> Tensor:
            return old.copy_(torch.where(has_batch.view(-1, *[1] * (old.ndim - 1)), new, old))

        tree.map(update, b.w, w)
        tree.map(update, b.velocity, velocity)
        update(b.loss, b.loss + loss)

    def measure(self, w: Weights, ctx: Context, plans: list[Plan]) -> dict:
        """The algorithm's pass after training, if it has one: each model on samples of its own client."""
        if not self.algorithm.measure_samples:
            return {}

        def measure_client(w: Weights, ctx: Context, *batch: Tensor) -> Tree:
            return self.algorithm.with_values(ctx.values).measure(self.model, w, Batch(*batch), ctx)

        samples = [plan.first_samples(self.algorithm.measure_samples) for plan in plans]
        batches = self.own_batches(samples, plans[0].batch_size)
        measure_all = vmap(measure_client, in_dims=(0, self.axes, 0, 0, 0))
        return mean_over_samples(((batch.real.sum(1), measure_all(w, ctx, *batch)) for batch in batches), over=vmap)

    def own_batches(self, samples: list[NDArray[np.int64]], size: int) -> Iterator["OwnBatch"]:
        """Each client's own samples in batches, x [client, sample, ...]: not augmented, padded and masked."""
        longest = max(map(len, samples))
        padded = np.stack([np.concatenate([s, np.repeat(s[:1], longest - len(s))]) for s in samples])
        mask = np.arange(longest) < np.array([len(s) for s in samples])[:, None]
        index, real = (to_device(a, self.train_part.device) for a in (padded, mask))
        for columns in in_batches(longest, size):
            flat, shape = self.train_part.plain(index[:, columns].flatten()), index[:, columns].shape
            yield OwnBatch(flat.x.unflatten(0, shape), flat.y.unflatten(0, shape), real[:, columns])

    # --- testing ------------------------------------------------------------------------------------------------

    def test(self, models: list[Weights]) -> list[Counts]:
        """Test each model on the whole test part, as many at once as fit into memory."""
        while True:
            size = min(self.tested_together or len(models), len(models))
            try:
                parts = [self.counts_of(tree.stack(models[i : i + size])) for i in range(0, len(models), size)]
                return [Counts(*row) for part in parts for row in zip(*part, strict=True)]
            except torch.OutOfMemoryError:
                pass
            require(size > 1, "one model's test does not fit into the device's memory; a smaller one may")
            self.tested_together = size // 2
            self.tests.clear()
            self.give_back_memory()

    @torch.no_grad()
    def counts_of(self, w: Weights) -> Counts:
        """Test stacked models on the whole test part. On a GPU the test is compiled for their number."""
        if not self.compiler:
            return self.count_stacked(w)
        models = len(next(iter(w.values())))
        if models not in self.tests:
            self.tests[models] = self.compiler.test(self.count_planned, w, self.test_plan())
        return Counts(*self.tests[models](w))

    def count_stacked(self, w: Weights) -> Counts:
        batches = in_batches(len(self.test_part), self.test_batch)
        return summed([self.count_batch(w, self.test_part.plain(places)) for places in batches])

    def count_planned(self, w: Weights, places: Tensor, real: Tensor | None = None) -> Counts:
        return self.count_batch(w, self.test_part.plain(places)._replace(mask=real))

    def count_batch(self, w: Weights, batch: Batch) -> Counts:
        """Test stacked models on the same batch."""
        return vmap(lambda model: count_batch(self.model, model, batch, self.classes))(w)

    def test_plan(self) -> list[tuple[Tensor, ...]]:
        """The test part in batches of one size, since each size would be compiled.

        A batch is the indices of its samples, followed by a mask of the real ones if the last batch is padded.
        """
        samples = len(self.test_part)
        batches = -(-samples // self.test_batch)
        # with BatchNorm, use the same batches as the sequential engine
        size = min(self.test_batch, samples) if self.model.masked else -(-samples // batches)
        places = torch.arange(batches * size, device=self.test_part.device)
        columns = [places.clamp(max=samples - 1), places < samples][: 1 if len(places) == samples else 2]
        return list(zip(*(column.split(size) for column in columns), strict=True))

    @torch.no_grad()
    def count_own(self, w: Weights, owned: list[NDArray[np.int64]]) -> Counts:
        """Test each model on its own client's training samples, in the same batches as the sequential engine."""
        count_all = vmap(lambda w, *batch: count_batch(self.model, w, Batch(*batch), self.classes))
        return summed([count_all(w, *batch) for batch in self.own_batches(owned, TEST_BATCH)])


class Chunk(NamedTuple):
    """Clients that are trained together, sorted by number of steps, most first."""

    members: list[int]  # the clients' positions among the tasks
    sizes: list[int]  # number of clients that each step trains
    plan: Tensor  # [slot, PLANNED, sample], on the device
    steps: Tensor  # number of steps of each client, on the device


class Prepared(NamedTuple):
    """The tasks of a round, in chunks whose plans are on the device."""

    tasks: list[Task]
    chunks: list[Chunk]
    back: Tensor | None  # the position of each task in the concatenated chunks; None if the order is the same


def stack_contexts(contexts: list[Context], axes: Context) -> Context:
    return by_client(lambda *leaves: torch.stack(leaves), axes, *contexts)


def empty_stack(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An empty tensor [*shape, *like.shape], each entry of which has the memory layout of `like`."""
    outer = np.cumprod([like.numel(), *shape[:0:-1]]).tolist()[::-1]
    size = (*shape, *like.shape)
    return torch.empty_strided(size, (*outer, *like.stride()), dtype=like.dtype, device=like.device)
