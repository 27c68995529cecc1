"""Train the groups of a sweep: in this process, or in several worker processes.

`train_group` trains one group, in whichever process it is called, and yields events as small tables:

    {"run": name, "round": 3, "accuracy": 0.41, "forgetting": 0.1, "seconds": 0.8}
    {"run": name, "failed": "the global weights are not finite after round 4; ..."}

Events are sent through pipes as JSON. `until_settled` handles errors that break a whole group. A run that it does not
report as failed has finished.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedntd.config.toml import from_table, to_table
from fedntd.errors import FedntdError, reason
from fedntd.runs.record import Record, RunFolder, Taken
from fedntd.simulation.together import federate_together
from fedntd.sweep.jobs import Job, status

Event = dict[str, Any]
Group = Sequence[Job]
Train = Callable[[Group], Iterator[Event]]


class Died(Exception):
    """The process that trained a group is gone."""


def train_group(group: Group) -> Generator[Event]:
    """Train runs together, each resumed from its folder. If a run fails, its folder records why and the others go on.

    A run that another process is training is reported as failed here, but its folder is left to that process.
    """
    together = federate_together([job.config for job in group], [job.folder for job in group], resume=True)
    failed = {}
    try:
        for i, outcome in together:
            if isinstance(outcome, FedntdError) and not isinstance(outcome, Taken):
                failed[i] = str(outcome)
            yield event_of(group[i].name, outcome)
    finally:
        together.close()  # saves the state of unfinished runs and unlocks the folders
        for i, why in failed.items():
            failure(group[i], why)


def event_of(run: str, outcome: Record | FedntdError) -> Event:
    if isinstance(outcome, FedntdError):
        return {"run": run, "failed": str(outcome)}
    return {"run": run, **{name: getattr(outcome, name) for name in ("round", "accuracy", "forgetting", "seconds")}}


def until_settled(train: Train, group: Group, tries: int = 2) -> Generator[Event]:
    """Train a group until each of its runs has finished or failed.

    What breaks a whole group (a killed process, a bug in a method) may be caused by one run or by the size of the
    group. So the error is printed and the halves are tried next, down to single runs, which resume from their
    checkpoints. A single run whose process dies is tried once more.
    """
    failed = set()
    try:
        for event in train(group):
            if "failed" in event:
                failed.add(event["run"])
            yield event
    except Exception as error:
        left = [job for job in group if job.name not in failed and status(job.folder) != "finished"]
        middle = -(-len(left) // 2)
        if len(left) > 1:
            warning = f"a group of {len(left)} runs broke off: {reason_of(error)}; its halves are tried"
            print(warning, file=sys.stderr, flush=True)
            yield from until_settled(train, left[:middle], tries)
            yield from until_settled(train, left[middle:], tries)
        elif left and isinstance(error, Died) and tries > 1:
            yield from until_settled(train, left, tries - 1)
        elif left:
            yield failure(left[0], reason_of(error))


def failure(job: Job, why: str) -> Event:
    """Record in the run's folder why it failed; create the folder if the run failed before it had one."""
    with suppress(FedntdError):  # another process may hold the folder, or the disk be full: reported already
        exists = (job.folder / "config.toml").exists()
        with RunFolder(job.folder, job.config, resume=exists) as folder:
            if not exists:
                folder.start([], np.zeros((0, 0), dtype=int), torch.device("cpu"), job.config.precision)
            folder.put_status("failed", why)
    return {"run": job.name, "failed": why}


def reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, FedntdError | Died) else reason(error)


# --- in this process --------------------------------------------------------------------------------------------


def here(groups: Sequence[Group]) -> Generator[Event]:
    for group in groups:
        yield from until_settled(train_group, group)


# --- side by side -----------------------------------------------------------------------------------------------


class Worker:
    """Trains one group at a time and can be stopped: a process on this machine, or a task on a cluster."""

    def train(self, group: Group) -> Iterator[Event]:
        raise NotImplementedError

    def stop(self) -> None:
        """Save the state of unfinished runs and end; `train` then returns or raises."""

    def join(self) -> None:
        """Wait until the worker has ended."""


def side_by_side(groups: Sequence[Group], workers: Sequence[Worker]) -> Generator[Event]:
    """Train groups on several workers, which take them from a queue. Closing the generator stops the workers."""
    todo: queue.SimpleQueue[Group] = queue.SimpleQueue()
    for group in groups:
        todo.put(group)
    events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
    stopping = threading.Event()

    def serve(worker: Worker) -> None:
        def train(group: Group) -> Iterator[Event]:
            yield from worker.train(group)
            if stopping.is_set():
                raise Stopped

        try:
            while not stopping.is_set():
                for event in until_settled(train, todo.get_nowait()):
                    if stopping.is_set():
                        break
                    events.put(event)
        except (queue.Empty, Stopped):
            pass
        except BaseException as error:
            events.put(error)
        finally:
            worker.stop()
            worker.join()
            events.put(None)

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        serving = len(threads)
        while serving:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            serving -= event is None
            if event is not None:
                yield event
    finally:
        stopping.set()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


class Stopped(BaseException):
    """The sweep was interrupted: nothing is tried again."""


class Child(Worker):
    """A child process (worker.py) that reads groups as lines of JSON and answers with events."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.lock = threading.Lock()

    def train(self, group: Group) -> Iterator[Event]:
        process = self.started()
        if process is None:
            raise Stopped
        assert process.stdin
        assert process.stdout
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([to_line(job) for job in group]) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            event = json.loads(line)
            if event.get("done"):
                return
            if "broken" in event:
                raise FedntdError(event["broken"])
            yield event
        code = process.wait()
        close(process)
        if self.stopped:
            raise Stopped
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        memory = "; perhaps the machine ran out of memory" if code == -9 else ""
        raise Died(f"the process that trained it {how}{memory}")

    def started(self) -> subprocess.Popen[str] | None:
        with self.lock:
            if self.stopped:
                return None
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(
                    # -P: the current folder comes last there, as it does here
                    [sys.executable, "-P", "-m", "fedntd.sweep.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C in a terminal is for the sweep, which then stops its workers
                    env=os.environ | self.environment | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                )
            return self.process

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            if self.process is not None and self.process.stdin:
                with suppress(OSError):
                    self.process.stdin.close()

    def join(self) -> None:
        if self.process is not None:
            self.process.wait()
            close(self.process)


def close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(OSError):  # unsent data for a process that is gone
                pipe.close()


def to_line(job: Job) -> dict[str, Any]:
    """A job as a JSON table. Settings that are None are left out, as in a config file."""
    table = {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in to_table(job.config).items()
        if value is not None
    }
    return {"name": job.name, "folder": str(job.folder.absolute()), "config": table}


def from_line(line: dict[str, Any]) -> Job:
    return Job(line["name"], from_table(line["config"]), Path(line["folder"]))


def in_processes(groups: Sequence[Group], workers: int) -> Generator[Event]:
    """Train groups in child processes. Each gets one of the visible GPUs, in turn, or its share of the CPU cores."""
    gpus = visible_gpus()
    environments = [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {} for i in range(workers)]
    yield from side_by_side(share_cores(groups, workers), [Child(environment) for environment in environments])


def share_cores(groups: Sequence[Group], workers: int) -> list[Group]:
    """Limit runs whose `workers` is 0 (all cores) to an equal share of the cores."""
    share = max(1, (os.cpu_count() or 1) // workers)
    return [
        [replace(job, config=replace(job.config, workers=job.config.workers or share)) for job in group]
        for group in groups
    ]


def visible_gpus() -> list[str]:
    """The visible GPUs, named as in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and torch.cuda.device_count():
        return named.split(",")[: torch.cuda.device_count()]
    return [str(i) for i in range(torch.cuda.device_count())]
