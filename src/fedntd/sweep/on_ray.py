"""`--on ray`: train groups as tasks of a Ray cluster, either a running one or one that is started here.

Tasks write records and checkpoints to the sweep's folder, which all nodes must share. Dataset files are put into Ray's
object store once, and each node writes them once to a folder of its own.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedntd.config.schema import Config
from fedntd.data import download
from fedntd.data.download import either
from fedntd.errors import FedntdError, require
from fedntd.report.export import need
from fedntd.support.files import whole
from fedntd.sweep.execute import (
    Died,
    Event,
    Group,
    Stopped,
    Worker,
    from_line,
    reason_of,
    share_cores,
    side_by_side,
    to_line,
    train_group,
)

Files = dict[str, bytes]  # path in the data folder -> content


def on_ray(groups: Sequence[Group], out: Path, address: str | None, workers: int) -> Generator[Event]:
    """Train the groups on the cluster at `address` (or RAY_ADDRESS), or else on a local one with `workers` processes.

    Connects at once, so that errors come before anything is written.
    """
    ray = need("ray", "ray", "--on ray")
    address = address or os.environ.get("RAY_ADDRESS")
    cores = os.cpu_count() or 1
    started = {"address": address} if address else {"address": "local", "num_cpus": workers or cores}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Tip: ", FutureWarning
            )  # about tasks without GPUs; ours say what they need
            ray.init(
                **started, include_dashboard=False if not address else None, log_to_driver=False, logging_level="ERROR"
            )
    except (
        ConnectionError,
        RuntimeError,
        ValueError,
    ) as error:  # no cluster there, another version, or a malformed address
        where = f"the Ray cluster at {address} cannot be joined" if address else "Ray cannot be started here"
        raise FedntdError(f"{where}: {reason_of(error)}") from error
    return on_cluster(ray, groups, out, address, workers)


def on_cluster(ray: Any, groups: Sequence[Group], out: Path, address: str | None, workers: int) -> Generator[Event]:
    try:
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        slots = workers or gpus or int(resources.get("CPU", 1))
        require(slots > 0, f"the Ray cluster at {address} has neither CPUs nor GPUs")
        data = ray.put(dataset_files(job.config for group in groups for job in group))
        task = ray.remote(num_cpus=0 if gpus else 1, num_gpus=min(1, gpus / slots), max_retries=0)(train_there)
        tasks = [RayWorker(ray, task, data, out) for _ in range(min(slots, max(1, len(groups))))]
        if not address:
            groups = share_cores(groups, slots)
        yield from side_by_side(groups, tasks)
    finally:
        ray.shutdown()


class RayWorker(Worker):
    """Sends groups to the cluster one after the other and yields their events."""

    def __init__(self, ray: Any, task: Any, data: Any, out: Path) -> None:
        self.ray, self.task, self.data, self.out = ray, task, data, out
        self.going: Any = None
        self.stopped = False

    def train(self, group: Group) -> Iterator[Event]:
        lines = [to_line(job) for job in group]
        self.going = self.task.options(num_returns="streaming").remote(lines, self.data, str(self.out.absolute()))
        try:
            for ref in self.going:
                event = self.ray.get(ref)
                if "broken" in event:
                    raise FedntdError(event["broken"])
                yield event
        except self.ray.exceptions.RayError as error:  # the worker or its node is gone
            if self.stopped:  # by us
                raise Stopped from None
            raise Died(f"the Ray worker that trained it is gone ({type(error).__name__})") from error
        finally:
            self.going = None

    def stop(self) -> None:
        self.stopped, going = True, self.going
        if going is not None:
            self.ray.cancel(going, force=False)  # raises KeyboardInterrupt in the task, which saves the state


def train_there(lines: list[dict[str, Any]], data: Files, out: str) -> Iterator[Event]:
    """The task that runs on a node: train one group."""
    try:
        require(
            Path(out).is_dir(), f"{os.uname().nodename} does not see {out}; put --out on a path that all nodes share"
        )
        with sent_along(data):
            yield from train_group([from_line(line) for line in lines])
    except Exception as error:
        yield {"broken": reason_of(error)}


@contextmanager
def sent_along(data: Files) -> Iterator[None]:
    """Read datasets from the files that were sent, while this worker trains one group."""
    before = os.environ.get("FEDNTD_DATA")
    if data:
        os.environ["FEDNTD_DATA"] = str(data_folder(data))
    try:
        yield
    finally:
        os.environ.pop("FEDNTD_DATA", None)
        if before is not None:
            os.environ["FEDNTD_DATA"] = before


def data_folder(data: Files) -> Path:
    """A folder on this node with the dataset files, written by the first worker that needs it.

    It also links to the other datasets that the node has.
    """
    own = download.data_folder().absolute()
    listing = repr((str(own), sorted((name, len(content)) for name, content in data.items())))
    key = hashlib.sha256(listing.encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"fedntd-data-{os.getuid()}-{key}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / ".lock"):
        for name, content in data.items():
            file = folder / name
            if not file.exists():
                with whole(file, locked=True) as aside:
                    aside.write_bytes(content)
        for dataset in own.iterdir() if own.is_dir() else ():
            if dataset.is_dir() and not (folder / dataset.name).exists():
                (folder / dataset.name).symlink_to(dataset)
    return folder


def dataset_files(configs: Iterable[Config]) -> Files:
    """Read the files of the datasets in the data folder.

    Datasets under `data.path`, and CINIC-10 with its many files, are not sent: all nodes must share their folders.
    """
    found: Files = {}
    wanted = {part.name for config in configs for part in (config.data, config.auxiliary) if not part.path}
    for name in sorted(wanted & set(download.SOURCES) - {"cinic10"}):
        for folder, files in download.present(name, download.folder_of(name))[:1]:
            for file in files:
                there = either(folder, file)
                found[str(Path(name) / folder.relative_to(download.folder_of(name)) / there.name)] = there.read_bytes()
    return found
