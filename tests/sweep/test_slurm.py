"""`--on slurm`: the script that it writes, run as SLURM would run it."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from test_sweep import GRID, statuses


def test_the_tasks_of_the_array_train_all_runs(
    write: Callable[..., Path], command: Callable, tmp_path: Path, environment: dict[str, str]
):
    write(GRID, head="seeds = [0, 1]")
    code, out, _ = command("sweep", "sweep.toml", "--out", "out", "--on", "slurm", "--set", "federation.rounds=2")
    assert code == 0
    assert "job array of 2 tasks: sbatch out/slurm.sh" in out
    script = tmp_path / "out" / "slurm.sh"
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=sweep\n#SBATCH --array=0-1\n")
    (log,) = re.findall(r"^#SBATCH --output=(.*)/%a.log$", text, re.MULTILINE)
    assert Path(log).is_dir()
    for line in re.findall(r"^#+SBATCH.*$", text, re.MULTILINE):  # sbatch takes all of a line for options
        assert re.fullmatch(r"##?SBATCH --[a-z-]+=\S+", line)

    subprocess.run(["bash", "-n", script], check=True)
    tasks = [
        subprocess.Popen(
            ["bash", script],
            cwd="/",
            env=os.environ | environment | {"SLURM_ARRAY_TASK_ID": str(i)},
            stderr=-3,
            stdout=-3,
        )
        for i in range(2)
    ]
    assert [task.wait(timeout=120) for task in tasks] == [0, 0]
    assert statuses(tmp_path / "out") == {
        f"{name},seed={seed}": "finished" for name in ("fedavg", "fedntd") for seed in (0, 1)
    }
    code, out, _ = command("sweep", "sweep.toml", "--out", "out", "--set", "federation.rounds=2")
    assert "4 of 4 runs finished (4 of them before)" in out


def test_odd_names_are_quoted(write: Callable[..., Path], command: Callable, tmp_path: Path):
    write(GRID, name="my 50%.toml")
    code, out, _ = command("sweep", "my 50%.toml", "--out", "the 50% out", "--on", "slurm", "--json")
    assert code == 0
    assert json.loads(out) == {"tasks": 2, "submit": "sbatch 'the 50% out/slurm.sh'"}
    text = (tmp_path / "the 50% out/slurm.sh").read_text()
    (log,) = re.findall(r"^#SBATCH --output=(.*)$", text, re.MULTILINE)
    assert shlex.split(log) == [f"{tmp_path}/the 50%% out/logs/%a.log"]  # %% is SLURM's word for %


def test_a_device_of_the_nodes_need_not_be_here(write: Callable[..., Path], command: Callable, tmp_path: Path):
    write(GRID, head="seeds = [0, 1]")
    asked = ("sweep", "sweep.toml", "--out", "out", "--set", "device=cuda:99", "--set", "precision=tf32")
    assert command(*asked)[0] == 2
    assert not (tmp_path / "out").exists()
    assert command(*asked, "--on", "slurm")[0] == 0
    assert "--set device=cuda:99" in (tmp_path / "out/slurm.sh").read_text()


def test_trust_is_handed_on(write: Callable[..., Path], command: Callable, tmp_path: Path):
    """Else the tasks would ask for what was said already."""
    write(GRID)
    for options, trusted in (((), False), (("--trust",), True)):
        assert command("sweep", "sweep.toml", "--out", "out", "--on", "slurm", *options)[0] == 0
        assert (" --trust " in (tmp_path / "out" / "slurm.sh").read_text()) == trusted
