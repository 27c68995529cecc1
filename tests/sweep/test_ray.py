"""`--on ray` on a real local cluster, and a worker killed in the middle."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_sweep import results, statuses, wait_for

from fedntd.config.schema import AuxiliarySettings, Config, Data
from fedntd.data.download import folder_of
from fedntd.runs.reader import read_run
from fedntd.sweep.on_ray import data_folder, dataset_files, train_there
from started import Started

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedntd[ray]'")

Write = Callable[..., Path]
Start = Callable[..., Started]
Command = Callable[..., tuple[int, str, str]]


def ray_workers(sweep: Started, folder: Path) -> list[int]:
    """The processes that hold a run folder's lock, below the sweep's own session."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != sweep.pid:
            try:
                opened = [os.readlink(fd) for fd in (process / "fd").iterdir()]
            except OSError:
                continue
            if any(file.startswith(str(folder)) and file.endswith("/.lock") for file in opened):
                found.append(int(process.name))
    return found


def test_a_killed_worker_is_replaced_and_every_failure_explained(
    write: Write, start: Start, command: Command, tmp_path: Path
):
    write(
        """
[[runs]]
algorithm.name = "fedavg"
[[runs]]
algorithm.name = "fedntd"
[[runs]]
optimiser.lr = 1e38
""",
        head="seeds = [0, 1]",
        settings='federation.rounds = 12\nmodel = { name = "tiny:Net", pause = 0.004 }',
    )
    process = start("sweep", "sweep.toml", "-o", "out", "--on", "ray", "--workers", "2")
    out = tmp_path / "out"
    wait_for(lambda: any(len(records) >= 2 for records in results(out).values()), 150)
    # the worker of a run that has begun: another one may hold a lock and have written nothing yet
    hit = next(name for name, records in results(out).items() if len(records) >= 2)
    killed = ray_workers(process, out / hit)
    assert killed  # the runs are trained by Ray's processes, not by the sweep's
    os.kill(killed[0], signal.SIGKILL)
    said, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    assert "4 of 6 runs finished, 2 failed" in said
    found = statuses(out)
    assert {name for name, status in found.items() if status == "failed"} == {"lr=1e+38,seed=0", "lr=1e+38,seed=1"}
    assert "not finite" in read_run(out / "lr=1e+38,seed=0").reason
    # the run that was hit went on from its checkpoint: started twice, and every round is there once
    starts = {name: len(read_environment(out / name)) for name in found}
    assert max(starts[name] for name, status in found.items() if status == "finished") == 2
    assert {
        tuple(round for round, _ in records) for name, records in results(out).items() if found[name] == "finished"
    } == {tuple(range(1, 13))}
    # with the same result as without Ray
    assert command("sweep", "sweep.toml", "--set", "model.pause=0.0", "-o", "here")[0] == 1
    here = results(tmp_path / "here")
    assert {n: r for n, r in results(out).items() if found[n] == "finished"} == {
        n: r for n, r in here.items() if found[n] == "finished"
    }


def test_an_interrupt_is_no_failure(write: Write, start: Start, tmp_path: Path):
    write(head="seeds = [0, 1]", settings='federation.rounds = 100\nmodel = { name = "tiny:Net", pause = 0.004 }')
    process = start("sweep", "sweep.toml", "-o", "out", "--on", "ray", "--workers", "1")
    wait_for(lambda: any(len(records) >= 2 for records in results(tmp_path / "out").values()), 150)
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: 0 of 2 runs finished, 2 to go" in said
    assert err == "sweep: 2 runs, in 1 group, 200 rounds to go, in out\n"
    assert "failed" not in statuses(tmp_path / "out").values()


def read_environment(folder: Path) -> list:
    return json.loads((folder / "environment.json").read_text())


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Create dataset files in a data folder of the test, and return their names."""
    monkeypatch.setenv("FEDNTD_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name in names:
        (folder / name).write_bytes(name.encode())
    return names


def test_a_cluster_that_is_not_there(write: Callable[..., Path], command: Callable, tmp_path: Path):
    write("")
    code, _, err = command("sweep", "sweep.toml", "-o", "out", "--on", "ray:nowhere")
    assert code == 2
    assert "error: the Ray cluster at nowhere cannot be joined: ValueError: Invalid address format: nowhere" in err
    assert not (tmp_path / "out").exists()


def test_data_is_written_once_a_node(cifar10: list[str]):
    configs = [Config(data=Data(name)) for name in ("cifar10", "cifar10", "fashion-mini", "tiny:points")]
    files = dataset_files(configs)
    assert sorted(files) == sorted(f"cifar10/cifar-10-batches-bin/{name}" for name in cifar10)
    assert dataset_files([Config(auxiliary=AuxiliarySettings("cifar10"))]) == files

    there = data_folder(files)
    made = {file: file.stat().st_mtime_ns for file in there.rglob("*.bin")}
    assert {file.name: file.read_bytes() for file in made} == {name: name.encode() for name in cifar10}
    assert data_folder(files) == there
    assert {file: file.stat().st_mtime_ns for file in made} == made


def test_a_dataset_that_is_not_sent_is_that_of_the_node(
    cifar10: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "data/cinic10").mkdir()
    (tmp_path / "data/cinic10/image").touch()
    files = dataset_files([Config(data=Data("cifar10"))])

    def train(group: object) -> Iterator[dict]:
        yield {"cinic10": (folder_of("cinic10") / "image").exists(), "sent": folder_of("cifar10").parent}

    monkeypatch.setattr("fedntd.sweep.on_ray.train_group", train)
    for _ in range(2):  # a worker trains several groups
        (seen,) = train_there([], files, str(tmp_path))
        assert seen == {"cinic10": True, "sent": data_folder(files)}
        assert os.environ["FEDNTD_DATA"] == str(tmp_path / "data")
