"""Exported runs, read back by the programs that they are for."""

import csv
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from make_runs import make_run
from test_sweep import wait_for

import fedntd
from fedntd import FedntdError
from fedntd.report.export import TRACKERS, names_of, write_rows
from fedntd.runs.reader import Run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    common: dict[str, Any] = {"rounds": 4, "measure__local_every": 2, "federation__clients": 20}
    folder = tmp_path / "runs"
    return [
        make_run(folder / "a", "fedavg", **common),
        make_run(folder / "b", "fedntd", algorithm__beta=0.3, **common),
        make_run(folder / "c", "fedntd", stop=2, status="failed", reason="no luck", **common),
    ]


class TestFiles:
    def test_csv_has_what_was_recorded(self, runs: list[Run], command: Command, tmp_path: Path):
        assert command("export", "runs", "-o", "x.csv")[0] == 0
        with open(tmp_path / "x.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["run"], int(row["round"])) for row in rows] == [
            (run.name, record.round) for run in runs for record in run.records
        ]
        assert [float(row["accuracy"]) for row in rows] == [r.accuracy for run in runs for r in run.records]
        assert json.loads(rows[0]["class_accuracy"]) == runs[0].records[0].class_accuracy
        assert {row["run"]: row["algorithm.beta"] for row in rows} == {"a": "", "b": "0.3", "c": "1.0"}
        assert rows[1]["similarity"] == repr(runs[0].records[1].similarity)
        assert rows[0]["similarity"] == ""  # there is no earlier round

    def test_parquet_and_a_frame(self, runs: list[Run], command: Command, tmp_path: Path):
        pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'fedntd[frames]'")
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedntd[frames]'")
        frame = fedntd.load(tmp_path / "runs")
        assert list(frame["accuracy"]) == [r.accuracy for run in runs for r in run.records]
        assert frame.groupby("run")["round"].max().to_dict() == {"a": 4, "b": 4, "c": 2}
        assert command("export", "runs", "-o", "x.parquet")[0] == 0
        back = pandas.read_parquet(tmp_path / "x.parquet")
        assert list(back.columns) == list(frame.columns)
        assert back["accuracy"].equals(frame["accuracy"])
        assert back["class_accuracy"][0].tolist() == runs[0].records[0].class_accuracy

        single = fedntd.load(tmp_path / "runs", per="run").set_index("run")
        assert single.loc["b", "final"] == runs[1].records[-1].accuracy
        assert single.loc["c", "reason"] == "no luck"
        assert single.loc["a", "federation.clients"] == 20

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ([{}, {"a": 1}], ["{}", "{'a': 1}"]),
            ([[1, "a"], [2]], ["[1, 'a']", "[2]"]),
            ([2**70, 1], [str(2**70), "1"]),
            ([[], [1.5]], [[], [1.5]]),
        ],
    )
    def test_tables_and_lists_among_the_settings(self, runs: list[Run], tmp_path: Path, settings: list, told: list):
        """Values without a Parquet type become text."""
        pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'fedntd[frames]'")
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedntd[frames]'")
        for run, value in zip(runs, settings, strict=False):
            run.settings["algorithm.shares"] = value
        for per in ("round", "run"):
            write_rows(runs[:2], tmp_path / "x.parquet", per)
            back = pandas.read_parquet(tmp_path / "x.parquet").groupby("run")["algorithm.shares"].first()
            assert [one if isinstance(one, str) else one.tolist() for one in back] == told

    def test_a_column_of_words_and_numbers(self, runs: list[Run], tmp_path: Path):
        """Two methods may have a setting of the same name."""
        pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'fedntd[frames]'")
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedntd[frames]'")
        for run, mode in zip(runs, ("fast", 0.5, None), strict=True):
            run.settings["algorithm.mode"] = mode
        write_rows(runs, tmp_path / "x.parquet", "run")
        back = pandas.read_parquet(tmp_path / "x.parquet").set_index("run")
        assert back["algorithm.mode"].fillna("").to_dict() == {"a": "fast", "b": "0.5", "c": ""}
        assert back["final"].dtype == float

    def test_runs_of_one_name_are_told_apart(self, runs: list[Run], command: Command, tmp_path: Path):
        make_run(tmp_path / "more/a", "fedavg", rounds=2)
        make_run(tmp_path / "more/new", "fedavg", rounds=2)
        for per in ("round", "run"):
            assert command("export", "runs", "more", "-o", "x.csv", "--per", per)[0] == 0
            with open(tmp_path / "x.csv", newline="") as file:
                assert {row["run"] for row in csv.DictReader(file)} == {"runs/a", "b", "c", "more/a", "new"}
        paths = [Path("x/a/1"), Path("y/a/1"), Path("y/b/1"), Path("y/../2")]
        assert names_of(paths) == ["x/a/1", "y/a/1", "b/1", "2"]

    def test_mistakes(self, runs: list[Run], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        for arguments, sentence in (
            (("-o", "x.xls"), "x.xls must end in .csv or .parquet"),
            (("-o", "x.csv", "--per", "epoch"), "--per = 'epoch' is not known"),
            (("-o", "x", "--to", "tensorbord"), "did you mean 'tensorboard'"),
            (("-o", "x.csv", "--follow"), "--follow needs --to"),
        ):
            code, _, err = command("export", "runs", *arguments)
            assert code == 2
            assert sentence in err
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(FedntdError, match=r"a frame needs the package pandas: pip install 'fedntd\[frames\]'"):
            fedntd.load(tmp_path / "runs")


tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="TensorBoard is not installed: pip install 'fedntd[tensorboard]'"
)


class TestTrackers:
    @tensorboard
    def test_tensorboard(self, runs: list[Run], command: Command, tmp_path: Path):
        assert command("export", "runs", "--to", "tensorboard", "-o", "logs")[0] == 0
        for run in runs:
            events = event_file(tmp_path / "logs" / run.name)
            told = [(e.step, e.value) for e in events.Scalars("accuracy")]
            assert told == [(r.round, pytest.approx(r.accuracy, abs=1e-6)) for r in run.records]
            assert [e.step for e in events.Scalars("in_local")] == [
                r.round for r in run.records if r.in_local is not None
            ]

    @tensorboard
    def test_tensorboard_of_two_runs_of_one_name(self, runs: list[Run], command: Command, tmp_path: Path):
        make_run(tmp_path / "more/a", "fedavg", rounds=2)
        assert command("export", "runs", "more", "--to", "tensorboard", "-o", "logs")[0] == 0
        for name, rounds in (("runs/a", 4), ("more/a", 2), ("b", 4)):
            events = event_file(tmp_path / "logs" / name)
            assert [e.step for e in events.Scalars("accuracy")] == list(range(1, rounds + 1))

    @tensorboard
    def test_a_place_that_cannot_be_written_to(self, runs: list[Run], command: Command, tmp_path: Path):
        (tmp_path / "file").touch()
        for out in ("/proc/x", "file"):
            code, _, err = command("export", "runs", "--to", "tensorboard", "-o", out)
            assert (code, err.count("\n")) == (2, 1)
            assert f"{out} cannot be written to: " in err

    def test_a_tracker_that_wants_a_login(self, runs: list[Run], command: Command, monkeypatch: pytest.MonkeyPatch):
        def closed(*_: object) -> None:
            raise RuntimeError("No API key configured.\nUse one.")

        monkeypatch.setitem(TRACKERS, "wandb", closed)
        code, _, err = command("export", "runs", "--to", "wandb", "-o", "x")
        assert (code, err.count("\n")) == (2, 1)
        assert "wandb cannot be used: RuntimeError: No API key configured." in err

        monkeypatch.setitem(TRACKERS, "wandb", lambda *_: (closed, closed))  # gone in the middle of it
        code, _, err = command("export", "runs", "--to", "wandb", "-o", "x")
        assert (code, err.count("\n")) == (2, 1)

    def test_wandb_offline(self, runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        pytest.importorskip("wandb", reason="wandb is not installed: pip install 'fedntd[wandb]'")
        code = (
            "from pathlib import Path; from fedntd.report.export import track\n"
            "for _ in range(2):\n"  # the second export replaces the first
            "    list(track([Path('runs/a'), Path('runs/c')], 'wandb', Path('logs'), False))"
        )
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
        monkeypatch.setenv("PYTHONPATH", str(Path(fedntd.__file__).parents[1]))
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=120)
        files = sorted((tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb"))
        assert sorted(file.stem for file in files) == sorted(f"run-{run.key}" for run in (runs[0], runs[2]))
        told = {}
        for file in files:
            name, history = read_wandb(file)
            told[name] = history
        assert told == {
            run.name: [(r.round, pytest.approx(r.accuracy)) for r in run.records] for run in (runs[0], runs[2])
        }

    def test_mlflow(self, runs: list[Run], tmp_path: Path):
        pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'fedntd[mlflow]'")
        code = """
import json
from pathlib import Path
from fedntd.report.export import track
both = [Path("runs/b"), Path("runs/c")]
whole = Path("runs/b/records.jsonl").read_text()
Path("runs/b/records.jsonl").write_text("".join(whole.splitlines(True)[:2]))
Path("runs/b/status.json").write_text('{"status": "running", "reason": ""}')
list(track(both, "mlflow", Path("logs"), False))  # once during the run, and again after it finished
Path("runs/b/records.jsonl").write_text(whole)
Path("runs/b/status.json").write_text('{"status": "finished", "reason": ""}')
list(track(both, "mlflow", Path("logs"), False))
from mlflow import MlflowClient
client = MlflowClient("sqlite:///logs/mlflow.db")
found = client.search_runs([client.get_experiment_by_name("fedntd").experiment_id])
assert len(found) == 2, found
print(json.dumps({
    run.info.run_name: {
        "status": run.info.status,
        "beta": run.data.params["algorithm.beta"],
        "accuracy": sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "accuracy")),
    }
    for run in found
}))
"""
        source = str(Path(fedntd.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": source, "MLFLOW_DISABLE_TELEMETRY": "true"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told = json.loads(done.stdout.splitlines()[-1])
        for run, status in ((runs[1], "FINISHED"), (runs[2], "FAILED")):
            assert told[run.name]["status"] == status
            assert float(told[run.name]["beta"]) == run.config.algorithm.options["beta"]
            assert told[run.name]["accuracy"] == [[r.round, r.accuracy] for r in run.records]

    @tensorboard
    def test_tensorboard_again_shows_each_round_once(self, runs: list[Run], command: Command, tmp_path: Path):
        for _ in range(2):
            assert command("export", "runs", "--to", "tensorboard", "-o", "logs")[0] == 0
        scalars = event_file(tmp_path / "logs" / "a").Scalars("accuracy")
        assert [e.step for e in scalars] == [record.round for record in runs[0].records]

    @tensorboard
    def test_follow_does_not_wait_for_a_run_that_nobody_goes_on_with(
        self, runs: list[Run], command: Command, tmp_path: Path
    ):
        make_run(tmp_path / "runs/cut", "fedavg", rounds=4, stop=2, status="interrupted")
        code, _, err = command("export", "runs", "--to", "tensorboard", "-o", "logs", "--follow")
        assert code == 0
        assert "cut: 2 rounds, interrupted" in err

    @tensorboard
    def test_follow_goes_on_while_the_run_does(
        self, write: Callable[..., Path], start: Callable, command: Command, tmp_path: Path
    ):
        write(settings='federation.rounds = 25\nmodel = { name = "tiny:Net", pause = 0.004 }')
        process = start("sweep", "sweep.toml", "-o", "out")
        wait_for(lambda: (tmp_path / "out" / "run" / "config.toml").exists())
        assert command("export", "out", "--to", "tensorboard", "-o", "logs", "--follow")[0] == 0
        process.communicate(timeout=60)
        events = event_file(tmp_path / "logs" / "run")
        assert [e.step for e in events.Scalars("accuracy")] == list(range(1, 26))

    @tensorboard
    def test_follow_takes_up_runs_that_begin_later(
        self, write: Callable[..., Path], start: Callable, command: Command, tmp_path: Path
    ):
        lines = 'federation.rounds = 10\nmodel = { name = "tiny:Net", pause = 0.01 }'
        write(head="seeds = [0, 1, 2]", settings=lines)
        make_run(tmp_path / "out/seed=2", "fedavg", rounds=4, stop=2, status="failed", reason="no luck")
        process = start("sweep", "sweep.toml", "-o", "out")
        wait_for(lambda: (tmp_path / "out/seed=0/config.toml").exists())
        assert not (tmp_path / "out/seed=1").exists()
        code, out, _ = command("export", "out", "--to", "tensorboard", "-o", "logs", "--follow")
        process.communicate(timeout=60)
        assert (code, out) == (0, "4 runs to logs\n")
        for seed in (0, 1):
            events = event_file(tmp_path / "logs" / f"seed={seed}")
            assert [e.step for e in events.Scalars("accuracy")] == list(range(1, 11))


def event_file(folder: Path) -> Any:
    """Read an event file with TensorBoard's own reader."""
    package = "tensorboard.backend.event_processing.event_accumulator"
    events = import_module(package).EventAccumulator(str(folder))
    events.Reload()
    return events


def read_wandb(file: Path) -> tuple[str, list[tuple[int, float]]]:
    """The run's name, and round and accuracy: wandb's own messages, from its LevelDB log."""
    messages = import_module("wandb.proto.wandb_internal_pb2")
    name, history = "", []
    for data in leveldb_log(file.read_bytes(), header=7):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            name = record.run.display_name
        if record.WhichOneof("record_type") == "history":
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            history.append((row["_step"], row["accuracy"]))
    return name, history


def leveldb_log(content: bytes, header: int, block: int = 32768) -> Iterator[bytes]:
    """Chunks of [checksum 4, length 2, kind 1, data]; kind 1 is whole, 2 to 4 are first, middle and last parts."""
    place, parts = header, b""
    while place + 7 <= len(content):
        if block - place % block < 7:  # too little room for another chunk
            place += block - place % block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""
