"""`fedntd sweep` in real processes: finished, failed, interrupted, killed and started again."""

import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from fedntd.runs.reader import is_locked, read_run
from fedntd.runs.record import RunFolder, read_records
from fedntd.sweep.execute import train_group
from fedntd.sweep.jobs import jobs, read_sweep, status
from fedntd.sweep.show import Board, Row, live_table
from started import Started

Write = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
Start = Callable[..., Started]

GRID = '[grid]\nalgorithm.name = ["fedavg", "fedntd"]\n'


def statuses(out: Path) -> dict[str, str]:
    return {file.parent.name: read_run(file.parent).status for file in sorted(out.glob("*/config.toml"))}


def results(out: Path) -> dict[str, list[tuple[int, float]]]:
    return {
        file.parent.name: [(r.round, r.accuracy) for r in read_records(file)] for file in out.glob("*/records.jsonl")
    }


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def test_a_plan_is_printed_and_nothing_written(write: Write, command: Command, tmp_path: Path):
    write(GRID, head="seeds = [0, 1]")
    code, out, err = command("sweep", "sweep.toml", "--dry-run")
    assert code == 0
    assert "sweep: 4 runs, in 2 groups, 12 rounds to go, in runs/sweep" in err
    assert re.search(r"fedavg,seed=0 …( fedavg,seed=1)? +2 +– +6 +[\d.]+ (ms|s|min) +[\d.]+ GB", out)
    assert not (tmp_path / "runs").exists()
    code, out, _ = command("sweep", "sweep.toml", "--dry-run", "--json")
    assert json.loads(out) == [["fedavg,seed=0", "fedavg,seed=1"], ["fedntd,seed=0", "fedntd,seed=1"]]


@pytest.mark.parametrize("rest", [GRID, "[search]\ntrials = 1\n[search.keys]\noptimiser.lr = [0.1]"])
def test_a_plan_tells_of_a_run_that_fails(rest: str, write: Write, command: Command, tmp_path: Path):
    if "search" in rest:
        pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'fedntd[sweep]'")
    write(rest.replace("fedavg", "tiny:Buggy"), settings='algorithm.name = "tiny:Buggy"')
    code, out, _ = command("sweep", "sweep.toml", "--dry-run")
    assert code == 0
    assert re.search(
        r"a (run of group 1|trial) failed when it was tried: ZeroDivisionError: a bug of the method \(tiny.py", out
    )
    assert "nothing was written" in out
    assert not (tmp_path / "runs").exists()


def test_the_time_left_is_told_by_the_rounds_after_the_first(monkeypatch: pytest.MonkeyPatch):
    """A minute until the first round, in which a GPU compiles; then a second for each."""
    board = Board({name: Row(name, 100) for name in ("a", "b")}, started=0.0)

    def headline_after(seconds: float, name: str, round: int) -> str:
        monkeypatch.setattr(time, "monotonic", lambda: seconds)
        board.take({"run": name, "round": round, "accuracy": 0.25, "forgetting": 0.125, "seconds": 1.0})
        return board.headline()

    assert headline_after(60.0, "a", 1) == "0/2 finished, 1 running, 1 waiting, 1.0 min"
    assert headline_after(61.0, "b", 1) == "0/2 finished, 2 running, 1.0 min, about 3.3 min left"  # 198 rounds to go
    assert headline_after(90.0, "a", 30) == "0/2 finished, 2 running, 1.5 min, about 2.8 min left"  # 30 s for 30, 169


@pytest.mark.parametrize("width", [80, 160])
def test_the_live_table(width: int):
    board = Board({f"fedntd,seed={i}": Row(f"fedntd,seed={i}", 4) for i in range(30)})
    for i in range(3):
        board.take({"run": f"fedntd,seed={i}", "round": 4 - i, "accuracy": 0.25, "forgetting": 0.125, "seconds": 1.0})
    board.take({"run": "fedntd,seed=3", "failed": "no luck"})
    console = Console(file=io.StringIO(), width=width, height=20, force_terminal=True)
    lines = ["".join(part.text for part in line) for line in console.render_lines(live_table(board, console))]
    assert len(lines) <= 20
    assert {len(line) for line in lines} == {width}
    rows = [" ".join(line.replace("━", "").replace("╸", "").replace("╺", "").split()) for line in lines]
    assert set(rows[2:6]) == {
        "fedntd,seed=1 3/4 25.00 0.125 running",
        "fedntd,seed=2 2/4 25.00 0.125 running",
        "fedntd,seed=3 0/4 – – failed",
        "fedntd,seed=0 4/4 25.00 0.125 finished",
    }
    assert rows[-3] == "and 18 more"
    assert rows[-1].startswith("1/30 finished, 1 failed, 2 running, 26 waiting, ")
    *_, last = console.render_lines(live_table(board, console), pad=False)
    assert sum(part.cell_length for part in last) < width - 2  # there is room for a ^C


def test_data_that_some_method_lacks_is_told_at_once(write: Write, command: Command, tmp_path: Path):
    write('[grid]\nalgorithm.name = ["fedavg", "feddf"]\n')
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 2
    assert "algorithm 'feddf' learns from samples that belong to no client" in err
    assert not (tmp_path / "out").exists()


BUG = "ZeroDivisionError: a bug of the method (tiny.py, line 60)"


def test_failed_runs_are_explained_and_the_others_go_on(write: Write, command: Command, tmp_path: Path):
    write(
        """
[[runs]]
optimiser.lr = [0.1, 1e38]
[[runs]]
algorithm.name = "tiny:Buggy"
[[runs]]
partition = { name = "sharding", s = 500 }
""",
        head="seeds = [0, 1]",
    )
    code, out, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 1
    folder = tmp_path / "out"
    good = ["lr=0.1,seed=0", "lr=0.1,seed=1"]
    assert {name for name, status in statuses(folder).items() if status == "finished"} == set(good)
    assert "not finite" in read_run(folder / "lr=1e+38,seed=0").reason
    assert read_run(folder / "Buggy,seed=1").reason == BUG
    assert read_run(folder / "sharding,s=500,seed=0").reason.startswith("partition.s = 500: the smallest class")
    assert "2 of 8 runs finished, 6 failed" in out
    assert f"failed: Buggy,seed=0, Buggy,seed=1: {BUG}" in out
    assert f"a group of 2 runs broke off: {BUG}; its halves are tried" in err
    assert re.search(r"\[ ?\d/8\] lr=0.1,seed=0 +finished  accuracy \d+\.\d\d %  F -?\d\.\d{3}", err)

    # again: what is finished stays as it is, what failed is tried again; the summary tells both
    before = {name: (folder / name / "records.jsonl").stat().st_mtime_ns for name in good}
    code, out, _ = command("sweep", "sweep.toml", "-o", "out")
    assert code == 1
    assert "2 of 8 runs finished (2 of them before), 6 failed" in out
    assert before == {name: (folder / name / "records.jsonl").stat().st_mtime_ns for name in good}

    # compare and report take the folder, failed runs included
    code, out, _ = command("compare", "out")
    assert code == 0
    assert "ZeroDivisionError" in out.replace("\n", "")
    assert command("report", "out", "-o", "page.html")[0] == 0


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "records.jsonl", "environment.json", "partition.json"])
def test_a_damaged_file_is_told_with_what_to_delete(name: str, write: Write, command: Command, tmp_path: Path):
    write(head="seeds = [0, 1]")
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    hurt, whole = tmp_path / "out/seed=0", tmp_path / "out/seed=1"
    played = results(tmp_path / "out")
    (hurt / "status.json").write_text('{"status": "running", "reason": ""}')  # as a kill leaves it
    (hurt / name).write_text("dam\n")
    code, out, _ = command("sweep", "sweep.toml", "-o", "out")
    assert code == 1
    assert "put a copy back, or delete out/seed=0 to start this run anew" in out
    shutil.rmtree(hurt)
    before = (whole / "records.jsonl").stat().st_mtime_ns
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    assert results(tmp_path / "out") == played
    assert (whole / "records.jsonl").stat().st_mtime_ns == before


def test_a_longer_sweep_keeps_what_is_there(write: Write, command: Command, tmp_path: Path):
    write(GRID, head="seeds = [0]")
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    assert sorted(results(tmp_path / "out")) == ["fedavg", "fedntd"]
    write(GRID, head="seeds = [0, 1]")  # the names now have the seed too, but the runs are the same
    code, out, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 0
    assert "4 of 4 runs finished (2 of them before)" in out
    assert "4 runs, 2 of them finished, in 2 groups, 6 rounds to go" in err
    assert sorted(results(tmp_path / "out")) == ["fedavg", "fedavg,seed=1", "fedntd", "fedntd,seed=1"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_interrupted_and_started_again(workers: str, write: Write, command: Command, start: Start, tmp_path: Path):
    settings = 'federation.rounds = 6\nmodel = { name = "tiny:Net", pause = 0.004 }'
    write(GRID, head="seeds = [0, 1]", settings=settings)
    assert command("sweep", "sweep.toml", "--set", "optimiser.lr=0.02", "-o", "whole")[0] == 0

    asked = ("sweep", "sweep.toml", "--set", "optimiser.lr=0.02", "--workers", workers, "-o", "cut")
    process = start(*asked)
    cut = tmp_path / "cut"
    wait_for(lambda: sum(map(len, results(cut).values())) >= 8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: " in out
    assert f"go on with: fedntd {' '.join(asked)}\n" in out  # without --set, it would train other runs
    found = statuses(cut)
    assert set(found.values()) <= {"finished", "interrupted"}
    assert "interrupted" in found.values()

    code, out, _ = command(*asked)
    assert code == 0
    assert "4 of 4 runs finished" in out
    assert results(cut) == results(tmp_path / "whole")


def test_killed_and_started_again(write: Write, command: Command, start: Start, tmp_path: Path):
    """kill -9 of the sweep itself: its workers save their runs and end by themselves."""
    write(GRID, head="seeds = [0, 1]", settings='federation.rounds = 6\nmodel = { name = "tiny:Net", pause = 0.004 }')
    process = start("sweep", "sweep.toml", "--workers", "2", "-o", "out")
    out = tmp_path / "out"
    wait_for(lambda: sum(map(len, results(out).values())) >= 6)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(is_locked(file.parent) for file in out.glob("*/config.toml")))
    assert "interrupted" in statuses(out).values()
    code, _, err = command("sweep", "sweep.toml", "--workers", "2", "-o", "out")
    assert code == 0, err
    assert set(statuses(out).values()) == {"finished"}
    assert {len(records) for records in results(out).values()} == {6}


def test_a_worker_that_dies_is_replaced(write: Write, command: Command, tmp_path: Path):
    """If the process is killed once, its run resumes. If it is killed every time, only that run fails."""
    write(
        f"""
[[runs]]
algorithm = {{ name = "tiny:Fatal", lives = "{tmp_path}/once", times = 1 }}
[[runs]]
algorithm = {{ name = "tiny:Fatal", lives = "{tmp_path}/always", times = 99 }}
[[runs]]
algorithm.name = "fedavg"
"""
    )
    code, out, err = command("sweep", "sweep.toml", "--workers", "2", "-o", "out")
    assert code == 1, err
    found = statuses(tmp_path / "out")
    assert sorted(found.values()) == ["failed", "finished", "finished"]
    (bad,) = (name for name, status in found.items() if status == "failed")
    assert "always" in bad
    assert "the process that trained it was ended by signal 9" in read_run(tmp_path / "out" / bad).reason
    assert "2 of 3 runs finished, 1 failed" in out


def test_processes_and_one_process_agree(write: Write, command: Command, tmp_path: Path):
    write(GRID, head="seeds = [0, 1]")
    assert command("sweep", "sweep.toml", "-o", "one", "--json")[0] == 0
    code, out, _ = command("sweep", "sweep.toml", "-o", "two", "--workers", "2", "--json")
    assert code == 0
    assert {(row["run"], row["status"]) for row in json.loads(out)} == {
        (f"{name},seed={seed}", "finished") for name in ("fedavg", "fedntd") for seed in (0, 1)
    }
    assert results(tmp_path / "one") == results(tmp_path / "two")


def test_two_sweeps_do_not_share_a_folder(write: Write, command: Command, start: Start, tmp_path: Path):
    write(GRID, settings='federation.rounds = 500\nmodel = { name = "tiny:Net", pause = 0.004 }')
    first = start("sweep", "sweep.toml", "-o", "out")
    wait_for(lambda: bool(results(tmp_path / "out")))
    before = (tmp_path / "out/sweep.toml").read_text()
    write(GRID)
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 2
    assert "another sweep is working on out" in err
    assert (tmp_path / "out/sweep.toml").read_text() == before
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130


def test_a_run_that_another_process_trains_is_not_marked_as_failed(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """For example when a job array is submitted again while some tasks are still running."""
    monkeypatch.setattr("fedntd.runs.record.PATIENCE", 0.0)
    (job,) = jobs(read_sweep(write()).runs, tmp_path / "out")
    with RunFolder(job.folder, job.config, resume=False) as theirs:
        theirs.start([], np.zeros((0, 0), dtype=int), torch.device("cpu"), "fp32")
        mine = train_group([job])
        assert "another process is writing" in next(mine)["failed"]
        theirs.put_status("finished")
    assert [*mine] == []
    assert status(job.folder) == "finished"


@pytest.mark.parametrize("more", [(), ("--on", "slurm")])
def test_a_full_disk_leaves_no_half_of_a_file(
    more: tuple[str, ...], write: Write, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The sweep file and the script of an earlier start stay as they were."""
    assert command("sweep", str(write()), "--out", "out", "--on", "slurm")[0] == 0
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}

    def copy_some(_: Path, there: Path) -> None:
        there.write_text("hal")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", copy_some)
    code, _, err = command("sweep", str(write()), "--out", "out", *more)
    assert code == 2
    assert "out/sweep.toml cannot be written: No space left on device" in err
    kept = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert kept.items() - {(tmp_path / "out/.sweep-lock", b"")} == before.items()


def test_a_folder_that_is_a_file(write: Write, command: Command, tmp_path: Path):
    write(GRID)
    (tmp_path / "out").write_text("mine")
    for out, sentence in (
        ("out", "out is a file, not a folder; choose another --out"),
        ("out/a", "out/a cannot be written to: Not a directory; choose another --out"),
    ):
        code, _, err = command("sweep", "sweep.toml", "-o", out)
        assert code == 2
        assert err.endswith(f"error: {sentence}\n")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("rest", ["", "[search]\ntrials = 1\n[search.keys]\noptimiser.lr = [0.1]"])
def test_what_a_method_prints_does_not_come_between_the_answer(rest: str, write: Write, command: Command):
    if rest:
        pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'fedntd[sweep]'")
    write(rest, settings='algorithm.name = "tiny:Talkative"\nfederation.rounds = 1')
    code, out, err = command("sweep", "sweep.toml", "-o", "out", "--json")
    assert code == 0, err
    assert json.loads(out)
    assert "here I am" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sweep", "none.toml"), "there is no config file none.toml"),
        (("sweep", "sweep.toml", "--on", "rai"), "--on = 'rai' is not known; did you mean 'ray'"),
        (("sweep", "sweep.toml", "--on", "here:1"), "--on here:1: only ray takes an address"),
        (("sweep", "sweep.toml", "--on", "slurm", "--workers", "4"), "each task is one process"),
        (("sweep", "sweep.toml", "--part", "3/2"), "--part takes I/N"),
        (("sweep", "sweep.toml", "--workers", "-1"), "--workers must be at least 0"),
        (("sweep", "sweep.toml", "--set", "data.name=cifar10"), "fedntd data get cifar10"),
        (
            ("sweep", "sweep.toml", "--set", "optimiser.lr=[0.1, 0.2]"),
            "optimiser.lr must be of type float, not [0.1, 0.2]; a list of values to try goes into [grid]",
        ),
        (("sweep", "sweep.toml", "--set", "device=cuda:99"), "device = 'cuda:99' cannot be used here"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    write: Write,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("FEDNTD_DATA", str(tmp_path / "empty"))
    write(GRID)
    code, _, err = command(*arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert sorted(os.listdir(tmp_path)) == ["base.toml", "sweep.toml"]
