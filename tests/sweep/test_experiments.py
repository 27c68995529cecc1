"""The shipped sweep files: each begins with its command, and all of its runs are valid."""

from pathlib import Path

import pytest

from fedntd import ALGORITHMS
from fedntd.config.schema import AuxiliarySettings
from fedntd.sweep.jobs import read_sweep
from fedntd.sweep.search import read_search

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SWEEPS = [file for file in sorted(EXPERIMENTS.glob("*.toml")) if file.read_text().startswith("# fedntd sweep")]


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in SWEEPS])
def test_its_first_line_is_its_command_and_its_runs_are_valid(file: Path):
    assert file.read_text().splitlines()[0] == f"# fedntd sweep experiments/{file.name}"
    sweep = read_sweep(file)
    assert sweep.runs or read_search(sweep.search or {}).trials


def test_the_papers_candidates():
    """The table of hyper-parameters in the paper's appendix."""
    runs = read_sweep(EXPERIMENTS / "paper-search.toml").runs
    tried: dict[str, set] = {}
    for run in runs:
        options = run.config.algorithm.options
        tried.setdefault(run.config.algorithm.name, set()).add(
            tuple(options[key] for key in ("s", "lam", "mu", "tau") if key in options)
        )
    assert tried["fedcurv"] == {(s, lam) for s in (250, 500) for lam in (0.1, 0.5, 1.0)}
    assert tried["fedprox"] == {(0.1,), (0.5,), (1.0,)}
    assert tried["moon"] == {(mu, tau) for mu in (0.1, 0.5, 1.0) for tau in (0.1, 0.5, 1.0)}
    assert len(runs) == 3 * (2 + 6 + 3 + 9)  # three seeds


def test_the_leaderboard_has_one_protocol():
    runs = read_sweep(EXPERIMENTS / "leaderboard.toml").runs
    partitions = {(run.config.partition.name, *run.config.partition.options.values()) for run in runs}
    methods = {run.config.algorithm.name for run in runs}
    assert methods == set(ALGORITHMS) - {"fedalign"}
    assert len(partitions) == 4
    assert len(runs) == len(methods) * len(partitions) * 3
    protocols = {(c.federation, c.optimiser, c.data, c.model.name) for c in (run.config for run in runs)}
    assert len(protocols) == 1
    unlabelled = {(run.config.algorithm.name, run.config.auxiliary) for run in runs if run.config.auxiliary.name}
    assert unlabelled == {(name, AuxiliarySettings("cifar100", samples=5000)) for name in ("feddf", "fedbe")}
