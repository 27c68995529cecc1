"""[search]: Optuna's choices as ordinary runs."""

import io
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_sweep import results, statuses, wait_for

from fedntd import FedntdError
from fedntd.runs.reader import read_run
from fedntd.runs.record import read_records
from fedntd.sweep.pictures import search_pictures
from fedntd.sweep.search import read_search
from started import Started

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'fedntd[sweep]'")

Write = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]


def study(out: Path) -> Any:
    return optuna.load_study(study_name="search", storage=f"sqlite:///{out}/search.db")


def test_a_grid_tries_each_point_once_and_finds_the_best(write: Write, command: Command, tmp_path: Path):
    write(
        '[search]\nsampler = "grid"\npruner = "none"\nmeasure = "last10"\nbatch = 3\n'
        "[search.keys]\noptimiser.lr = [0.001, 0.1]\nalgorithm.beta = [0.1, 1.0]\n",
        head="seeds = [0, 1]",
    )
    code, out, err = command("sweep", "sweep.toml", "-o", "out", "--json")
    assert code == 0, err
    told = json.loads(out)
    trials = study(tmp_path / "out").trials
    points = {(t.params["optimiser.lr"], t.params["algorithm.beta"]): t.value for t in trials}
    assert sorted(points) == [(0.001, 0.1), (0.001, 1.0), (0.1, 0.1), (0.1, 1.0)]
    assert len(trials) == told["trials"] == 4
    for (lr, beta), value in points.items():  # the mean over seeds of the mean of the last rounds
        accuracies = [
            np.mean(
                [r.accuracy for r in read_records(tmp_path / f"out/lr={lr:g},beta={beta:g},seed={seed}/records.jsonl")]
            )
            for seed in (0, 1)
        ]
        assert value == pytest.approx(np.mean(accuracies))
    best = max(points, key=lambda point: points[point])
    assert told["last10"] == points[best]

    # again: nothing is left to do
    code, out, _ = command("sweep", "sweep.toml", "-o", "out", "--json")
    assert code == 0
    assert json.loads(out) == told


def test_a_plan_is_printed_and_nothing_written(write: Write, command: Command, tmp_path: Path):
    write("[search]\ntrials = 5\nbatch = 2\n[search.keys]\noptimiser.lr = [0.01, 0.1]\n", head="seeds = [0, 1]")
    code, out, err = command("sweep", "sweep.toml", "--dry-run")
    assert code == 0
    assert "5 trials by tpe × 2 seeds, at most 30 rounds" in err
    assert re.fullmatch(r"about [\d.]+ m?s and [\d.]+ GB if no trial is stopped; nothing was written\n", out)
    _, out, _ = command("sweep", "sweep.toml", "--dry-run", "--json")
    assert json.loads(out) == {"trials": 5, "seeds": 2, "rounds": 3}
    assert not (tmp_path / "runs").exists()


def test_what_a_trial_is_doing_is_seen_in_a_terminal(
    write: Write, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    screen = io.StringIO()
    monkeypatch.setattr("fedntd.sweep.search.stderr", Console(file=screen, force_terminal=True, width=100))
    write('[search]\nsampler = "grid"\n[search.keys]\noptimiser.lr = [0.01, 0.1]\n')
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    seen = screen.getvalue()
    assert seen.count("1/1 finished") >= 2
    assert all(f"\nlr={lr} " in seen and f"optimiser.lr={lr}  final" in seen for lr in (0.01, 0.1))


def test_pictures_have_the_scale_of_the_search_and_its_last_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    search = optuna.create_study(storage=f"sqlite:///{tmp_path}/search.db", study_name="search", direction="maximize")
    kinds, states = optuna.distributions, optuna.trial.TrialState
    space = {"a": kinds.FloatDistribution(0.001, 1.0, log=True), "b": kinds.FloatDistribution(1.0, 2.0)}
    for a, state in ((0.01, "COMPLETE"), (0.05, "COMPLETE"), (0.06, "PRUNED"), (0.07, "WAITING")):
        value = 10 * a if state == "COMPLETE" else None
        trial = optuna.trial.create_trial(
            params={"a": a, "b": 1.5}, distributions=space, value=value, state=states[state]
        )
        search.add_trial(trial)
    figures: list[Any] = []
    monkeypatch.setattr("fedntd.sweep.pictures.as_png", lambda figure: str(figures.append(figure)))
    search_pictures(tmp_path)
    trials, slices = figures
    assert trials.axes[0].lines[1].get_xdata().tolist() == [0, 1, 2]  # the best so far, up to the one that was pruned
    assert [ax.get_xscale() for ax in slices.axes] == ["log", "linear"]


def test_a_damaged_study_is_one_sentence(write: Write, command: Command, tmp_path: Path):
    write('[search]\nsampler = "random"\ntrials = 2\n[search.keys]\noptimiser.lr = { low = 0.01, high = 0.1 }\n')
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    played = results(tmp_path / "out")
    file = tmp_path / "out/search.db"
    file.write_text("not a database at all")
    for arguments in (("sweep", "sweep.toml", "-o", "out"), ("report", "out", "-o", "page.html")):
        code, _, err = command(*arguments)
        assert code == 2
        assert "out/search.db cannot be read (DatabaseError: (sqlite3.DatabaseError) file is not a database)" in err
        assert err.splitlines()[-1].endswith("runs that are there are not trained again")
    file.write_bytes(b"")  # a search that was killed as it began
    assert command("report", "out", "-o", "page.html")[0] == 0
    file.unlink()
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("out/*/records.jsonl"))]
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    assert results(tmp_path / "out") == played
    assert before == [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("out/*/records.jsonl"))]


def test_pruned_by_round_and_shown_in_the_report(write: Write, command: Command, tmp_path: Path):
    write(
        '[search]\nsampler = "random"\ntrials = 12\nwarmup = 1\nseed = 3\n'
        "[search.keys]\noptimiser.lr = { low = 1e-6, high = 1.0, log = true }\n",
        settings="federation.rounds = 6",
    )
    code, out, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 0, err
    trials = study(tmp_path / "out").trials
    pruned = [t for t in trials if t.state.name == "PRUNED"]
    assert pruned
    for trial in pruned:
        (run,) = [
            read_run(tmp_path / "out" / name)
            for name in statuses(tmp_path / "out")
            if read_run(tmp_path / "out" / name).config.optimiser.lr == trial.params["optimiser.lr"]
        ]
        last = max(trial.intermediate_values)
        assert run.status == "pruned"
        assert (len(run.records), run.records[-1].accuracy) == (last, trial.intermediate_values[last])
        assert 1 < last < 6
        earlier = [
            t.intermediate_values[last] for t in trials if t.number < trial.number and t.state.name == "COMPLETE"
        ]
        best_so_far = max(value for step, value in trial.intermediate_values.items() if step <= last)
        assert best_so_far < np.percentile(earlier, 50)  # what the median pruner says it does
    assert f"{12 - len(pruned)} trials finished, {len(pruned)} pruned, 0 failed" in out

    pictures = search_pictures(tmp_path / "out")
    assert [heading for heading, _, _ in pictures] == ["Trials", "Each setting by itself"]
    assert command("report", "out", "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert all(f'src="data:image/png;base64,{image}"' in page for _, image, _ in pictures)


def test_killed_and_started_again(write: Write, command: Command, start: Callable[..., Started], tmp_path: Path):
    """The unfinished trial resumes with the same values, in the same folder, and each round counts once."""
    write(
        '[search]\nsampler = "random"\ntrials = 3\npruner = "none"\n'
        "[search.keys]\noptimiser.lr = [0.01, 0.02, 0.03, 0.05]\n",
        settings='federation.rounds = 8\nmodel = { name = "tiny:Net", pause = 0.004 }',
    )
    process = start("sweep", "sweep.toml", "-o", "out")
    out = tmp_path / "out"
    wait_for(lambda: sum(map(len, results(out).values())) >= 3)
    process.kill()
    process.communicate(timeout=60)
    (cut,) = [name for name, records in results(out).items() if 0 < len(records) < 8]
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 0, err
    assert set(statuses(out).values()) == {"finished"}
    assert [round for round, _ in results(out)[cut]] == list(range(1, 9))
    states = [(t.state.name, t.params["optimiser.lr"]) for t in study(out).trials]
    assert [state for state, _ in states].count("COMPLETE") == 3
    assert [state for state, _ in states].count("FAIL") == 1  # the one that was abandoned
    abandoned = next(lr for state, lr in states if state == "FAIL")
    assert ("COMPLETE", abandoned) in states


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_longer_search_draws_other_values(sampler: str, write: Write, command: Command, tmp_path: Path):
    """The same values as if all trials had been asked for at once."""
    keys = "[search.keys]\noptimiser.lr = { low = 0.01, high = 0.1 }\n"
    asked = f'[search]\nsampler = "{sampler}"\ntrials = TRIALS\n{keys}'
    write(asked.replace("TRIALS", "4"))
    assert command("sweep", "sweep.toml", "-o", "whole")[0] == 0
    for trials in (2, 4):
        write(asked.replace("TRIALS", str(trials)))
        assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    values = [trial.params["optimiser.lr"] for trial in study(tmp_path / "out").trials]
    assert len(set(values)) == 4
    assert values == [trial.params["optimiser.lr"] for trial in study(tmp_path / "whole").trials]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            "optimiser.momentum = { low = 0.5, high = 1.5 }",
            "optimiser.momentum must be at least 0 and below 1, not 1.5",
        ),
        ("optimiser.momentum = [0.5, 0.9, 1.5]", "optimiser.momentum must be at least 0 and below 1, not 1.5"),
        ('algorithm = { beta = [1.0], name = ["fedntd", "fedavg"] }', "beta is not a setting of algorithm 'fedavg'"),
        ('partition = [{ name = "iid" }]', "the list of 'partition' may hold only text, numbers, true and false"),
        ("seed = [1, 2]", "each trial is run with all seeds; list them as seeds = [0, 1]"),
        (
            "optimiser.lr = { low = 0.1, high = 0.01 }",
            "'optimiser.lr' cannot be searched over: `low <= high` must hold",
        ),
        (
            "optimiser.lr = { low = 0.1, high = 1.0, log = true, step = 0.1 }",
            "`step` is not supported when `log` is true",
        ),
        ("optimiser.lr = { low = 1, high = 2, step = 0 }", "`step > 0` must hold"),
    ],
)
def test_values_that_no_run_can_have(keys: str, sentence: str, write: Write, command: Command, tmp_path: Path):
    write(f"[search.keys]\n{keys}\n")
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (tmp_path / "out").exists()


def test_values_that_do_not_go_together_fail_their_trial(write: Write, command: Command, tmp_path: Path):
    keys = "optimiser.nesterov = [false, true]\noptimiser.momentum = [0.9, 0.0]"
    write(f'[search]\nsampler = "random"\ntrials = 12\n[search.keys]\n{keys}\n')
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 1
    assert "nesterov=true, optimiser.momentum=0  failed: optimiser.nesterov needs optimiser.momentum above 0" in err
    states = {
        (t.params["optimiser.nesterov"], t.params["optimiser.momentum"]): t.state.name
        for t in study(tmp_path / "out").trials
    }
    assert states == {(n, m): "FAIL" if n and not m else "COMPLETE" for n in (False, True) for m in (0.9, 0.0)}
    # the summary explains it, also when there is nothing left to do
    code, out, _ = command("sweep", "sweep.toml", "-o", "out")
    failed = [t.number for t in study(tmp_path / "out").trials if t.state.name == "FAIL"]
    numbers = ("trials " if len(failed) > 1 else "trial ") + ", ".join(map(str, failed))
    assert code == 1
    assert f"failed: {numbers}: optimiser.nesterov needs optimiser.momentum above 0\n" in out


def test_an_empty_section_is_no_sweep(write: Write, command: Command):
    write("[search]\n")
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 2
    assert "[search.keys] names nothing to search over" in err


def test_many_keys_have_folders_that_a_file_system_takes(write: Write, command: Command, tmp_path: Path):
    keys = [f"optimiser.{key} = [0.123456]" for key in ("lr", "momentum", "weight_decay", "decay", "proximal", "clip")]
    keys += [f"algorithm.{key} = [0.123456]" for key in ("beta", "tau")]
    keys += [f"federation.{key} = [3]" for key in ("rounds", "local_epochs", "batch_size", "clients")]
    write('[search]\nsampler = "grid"\n[search.keys]\n' + "\n".join(keys) + '\npartition.name = ["iid"]\n')
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    (name,) = statuses(tmp_path / "out")
    assert len(name) < 120


def test_two_searches_do_not_share_a_folder(
    write: Write, command: Command, start: Callable[..., Started], tmp_path: Path
):
    write(
        '[search]\nsampler = "random"\ntrials = 2\n[search.keys]\noptimiser.lr = [0.01, 0.02]\n',
        settings='federation.rounds = 500\nmodel = { name = "tiny:Net", pause = 0.004 }',
    )
    first = start("sweep", "sweep.toml", "-o", "out", "--set", "seed=3")
    wait_for(lambda: bool(results(tmp_path / "out")))
    code, _, err = command("sweep", "sweep.toml", "-o", "out", "--set", "seed=3")
    assert code == 2
    assert "another sweep is working on out" in err
    assert [trial.state.name for trial in study(tmp_path / "out").trials] == ["RUNNING"]
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "go on with: fedntd sweep sweep.toml -o out --set seed=3\n" in err


def test_trials_of_a_batch_that_chose_the_same_share_their_runs(write: Write, command: Command, tmp_path: Path):
    """Even if they fail. Values that only look the same have their own runs."""
    asked = '[search]\nsampler = "random"\ntrials = 3\nbatch = 3\n[search.keys]\noptimiser.lr = [{}]\n'
    write(asked.format("0.01"), head="seeds = [0, 1]")
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    assert statuses(tmp_path / "out") == {"lr=0.01,seed=0": "finished", "lr=0.01,seed=1": "finished"}
    values = [trial.value for trial in study(tmp_path / "out").trials]
    assert values == [values[0]] * 3

    write(asked.format("1e38"))
    assert command("sweep", "sweep.toml", "-o", "failed")[0] == 1
    assert [trial.state.name for trial in study(tmp_path / "failed").trials] == ["FAIL"] * 3
    assert "not finite" in read_run(tmp_path / "failed/lr=1e+38").reason

    write(asked.format("0.01, 0.010000001").replace("random", "grid"))
    assert command("sweep", "sweep.toml", "-o", "near")[0] == 0
    assert [*statuses(tmp_path / "near").values()] == ["finished", "finished"]
    assert [trial.params["optimiser.lr"] for trial in study(tmp_path / "near").trials] == [0.01, 0.010000001]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"sampler": "tpr", "keys": {"together": [1]}}, "search.sampler = 'tpr' is not known; did you mean 'tpe'"),
        ({"trails": 3}, "unknown key 'search.trails'; did you mean 'trials'"),
        ({}, "[search.keys] names nothing to search over"),
        ({"keys": {"together": 3}}, "'together' must be a list, or a range"),
        ({"keys": {"together": {"low": 3, "hi": 4}}}, "'together' must be a list, or a range"),
        ({"sampler": "grid", "keys": {"together": {"low": 3, "high": 4}}}, "a grid needs a list for 'together'"),
        ({"keys": {"a.b": [1], "a": {"b": [2]}}}, "search.keys: 'a.b' is given twice, once as a table and once in"),
        ({"trials": 0, "keys": {"together": [1]}}, "search.trials must be a whole number from 1"),
        ({"measure": "loss", "keys": {"together": [1]}}, "search.measure = 'loss' is not known"),
        ({"sampler": 3, "keys": {"together": [1]}}, "search.sampler must be of type str, not 3"),
        ({"keys": {"together": {"low": "a", "high": 4}}}, "search.keys.together.low must be of type float, not 'a'"),
    ],
)
def test_a_mistake_is_one_sentence(table: dict, sentence: str):
    with pytest.raises(FedntdError) as raised:
        read_search(table)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_search_does_not_go_on_with_other_choices(sampler: str, write: Write, command: Command, tmp_path: Path):
    asked = f'[search]\nsampler = "{sampler}"\ntrials = {{}}\n[search.keys]\noptimiser.lr = [{{}}]\n'
    write(asked.format(1, "0.01"))
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    before = (tmp_path / "out/sweep.toml").read_text()
    write(asked.format(2, "0.01, 0.02"))
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 2
    assert "choices of 'optimiser.lr' are not those that the search.db there began with; choose another" in err
    assert (tmp_path / "out/sweep.toml").read_text() == before
    assert len(study(tmp_path / "out").trials) == 1


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"rest": 'measure = "best"'}, "began with another measure"),
        ({"head": "seeds = [0, 1]"}, "began with another list of seeds"),
        ({"settings": "federation.rounds = 4"}, "began with another base or other settings"),
    ],
)
def test_trials_of_another_kind_are_not_mixed(
    changed: dict, sentence: str, write: Write, command: Command, tmp_path: Path
):
    keys = "\n[search.keys]\noptimiser.lr = [0.01]\n"
    write(f"[search]\ntrials = 1{keys}")
    assert command("sweep", "sweep.toml", "-o", "out")[0] == 0
    write(f"[search]\ntrials = 2\n{changed.pop('rest', '')}{keys}", **changed)
    code, _, err = command("sweep", "sweep.toml", "-o", "out")
    assert code == 2
    assert f"the search.db there {sentence}; choose another --out" in err
