"""The sequential engine: trains the clients one by one, on a CPU several in parallel."""

import ctypes
import os
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context
from fedntd.config.schema import Optimiser
from fedntd.data.device import DevicePart
from fedntd.engine.base import Task, Trained
from fedntd.engine.testing import TEST_BATCH, Counts, count, in_batches, summed
from fedntd.engine.training import train_one
from fedntd.models.functional import Model
from fedntd.tree import Weights

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Sequential:
    """Trains the clients one by one; on a CPU, each of several workers trains one client at a time.

    Workers are threads, each with its own copy of the network. Every client is computed by a single thread, so the
    results do not depend on the number of workers, and two clients on two cores are faster than one client on both.
    """

    algorithm: FedAvg
    model: Model
    optimiser: Optimiser
    train_part: DevicePart
    test_part: DevicePart
    classes: int
    workers: int = 0

    def __post_init__(self) -> None:
        self.on_gpu = self.train_part.device.type != "cpu"
        # dropout draws from one generator for the whole process
        in_parallel = not self.on_gpu and not self.model.has_dropout
        self.workers = (self.workers or os.cpu_count() or 1) if in_parallel else 1
        self.notes: list[str] = []  # this engine has no slower path to note
        self.models: queue.SimpleQueue[Model] = queue.SimpleQueue()  # copies that no worker is using
        keep_freed_memory()

    def prepare(self, tasks: list[Task]) -> list[Task]:
        return tasks

    def train(self, prepared: list[Task], contexts: list[Context], measure: bool) -> Trained:
        """Train the client of every task, and with `measure` test its model afterwards."""
        tasks = prepared
        # clients with most steps first, so that the workers finish at about the same time
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i].plan.steps)
        results = self.run_in_parallel(lambda model, i: self.train_one(model, tasks[i], contexts[i], measure), order)
        up, own, loss, test, train = zip(*(results[i] for i in np.argsort(order)), strict=True)
        return Trained(
            tree.stack(up),
            tree.stack(own),
            torch.stack(loss),
            Counts(*map(torch.stack, zip(*test, strict=True))) if measure else None,
            Counts(*map(torch.stack, zip(*train, strict=True))) if measure else None,
        )

    def train_one(self, model: Model, task: Task, ctx: Context, measure: bool) -> Trained:
        result, (up, own) = train_one(self.algorithm, model, self.optimiser, self.train_part, task, ctx)
        if not measure:
            return Trained(up, own, result.loss, None, None)
        test = count(model, result.w, self.test_part, in_batches(len(self.test_part)), self.classes)
        owned = torch.from_numpy(task.owned).to(self.train_part.device).split(TEST_BATCH)
        train = count(model, result.w, self.train_part, owned, self.classes)
        return Trained(up, own, result.loss, test, train)

    def test(self, models: list[Weights]) -> list[Counts]:
        """Test each model on the whole test part, with the batches shared among the workers."""
        return [self.test_one(w) for w in models]

    def test_one(self, w: Weights) -> Counts:
        def count_one(model: Model, places: slice) -> Counts:
            return count(model, w, self.test_part, [places], self.classes)

        return summed(self.run_in_parallel(count_one, in_batches(len(self.test_part))))

    def run_in_parallel(self, work: Callable[[Model, T], R], items: Sequence[T]) -> list[R]:
        """Call `work` with a free model for each item. Returns the results in the order of the items."""

        def work_on(item: T) -> R:
            try:
                model = self.models.get_nowait()
            except queue.Empty:
                model = self.model.copy()
            try:
                return work(model, item)
            finally:
                self.models.put(model)

        if self.on_gpu:
            return [work_on(item) for item in items]
        with (
            one_thread_each(),
            ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            return list(pool.map(work_on, items))


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let torch use a single thread for each operation, since clients are spread over the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Tell glibc to keep the pages of freed tensors.

    By default it returns those of large tensors to the system at once. Getting them back, zeroed, takes up to a third
    of a training step on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # names and numbers from malloc.h
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, 1 << 30)
    mallopt(arena_max, 1)  # separate arenas for threads are small and would fall back to mmap
