"""The command line as a user or a script meets it: what is printed where, and with which exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedntd import ALGORITHMS, __version__, configure
from fedntd.cli import main
from fedntd.data.download import folder_of
from fedntd.runs.reader import read_run

QUICK_NETWORK = "model.name=stateful:Little"
QUICK = [
    *("federation.rounds=2", "federation.ratio=0.02", "federation.local_epochs=1", "measure.local_every=0"),
    QUICK_NETWORK,
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(few_test_images: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FEDNTD_DATA", raising=False)


def fedntd(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command and return its exit code."""
    monkeypatch.setattr("sys.argv", ["fedntd", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def train(monkeypatch: pytest.MonkeyPatch, out: str, *settings: str, more: tuple[str, ...] = ()) -> int:
    chosen = [part for setting in (*QUICK, *settings) for part in ("--set", setting)]
    return fedntd(monkeypatch, "run", "demo", *chosen, "--out", out, *more)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert fedntd(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith(f"fedntd {__version__}, torch {torch.__version__}, Python 3.")


def test_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    done = subprocess.run([sys.executable, "-m", "fedntd", "data", "list", "--json"], capture_output=True, text=True)
    fedntd(monkeypatch, "data", "list", "--json")
    assert done.stdout == capsys.readouterr().out


@pytest.mark.parametrize(("out", "code", "said"), [(None, 0, ""), ("/dev/full", 2, "error: .*No space left on device")])
def test_an_odd_locale_or_a_full_disk_is_no_traceback(out: str | None, code: int, said: str):
    """The output has characters that ASCII lacks."""
    with open(out or "printed", "w") as printed:
        environment = os.environ | {"PYTHONIOENCODING": "ascii"}
        command = [sys.executable, "-m", "fedntd", "algorithms"]
        done = subprocess.run(command, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == code
    assert re.fullmatch(said, done.stderr.strip())


def test_run_compare_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert train(monkeypatch, "runs/a", "algorithm.name=fedavg") == 0
    captured = capsys.readouterr()
    lines = captured.err.splitlines()  # in a pipe: a plain line for each round, on stderr
    assert re.fullmatch(
        r"fedavg on fashion-mini  round 1/2  accuracy \d+\.\d\d %  F -?\d\.\d{3}  \d+\.\d\d s", lines[0]
    )
    assert lines[1].startswith("fedavg on fashion-mini  round 2/2")
    assert "run folder: runs/a" in captured.out

    assert train(monkeypatch, "runs/b", more=("--json",)) == 0
    result = json.loads(capsys.readouterr().out)  # stdout is JSON alone
    assert result["final"] == read_run(Path("runs/b")).records[-1].accuracy

    assert fedntd(monkeypatch, "compare", "runs", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in rows] == ["fedavg", "fedntd"]
    assert fedntd(monkeypatch, "compare", "runs/a", "runs/b") == 0
    table = capsys.readouterr().out
    assert "fedavg" in table
    assert f"{100 * rows[0]['final']:.2f}" in table

    assert fedntd(monkeypatch, "report", "runs", "-o", "page.html", "--figures", "figures") == 0
    assert str(Path("page.html").resolve()) in capsys.readouterr().out.replace("\n", "")
    assert "<html" in Path("page.html").read_text()
    assert {f.suffix for f in Path("figures").iterdir()} == {".png", ".pdf"}

    again = ("run", "--resume", "--out", "runs/a", "--set", "federation.rounds=3")
    assert fedntd(monkeypatch, *again) == 2  # its network comes from a module outside the current folder
    assert "runs/a/config.toml would import code" in capsys.readouterr().err
    assert fedntd(monkeypatch, *again, "--trust") == 0
    assert [r.round for r in read_run(Path("runs/a")).records] == [1, 2, 3]


def test_verbose_tells_how_a_run_is_computed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert train(monkeypatch, "runs/a", "engine=vectorised", more=("--verbose",)) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if " engine, " in line]
    assert len(said) == 1  # not after each round
    assert re.fullmatch(r"vectorised engine, CPU .*, fp32", said[0])
    assert read_run(Path("runs/a")).environment["engine"] == "vectorised"


def test_a_run_without_a_name_gets_the_next_free_one(monkeypatch: pytest.MonkeyPatch):
    chosen = [part for setting in QUICK for part in ("--set", setting)]
    for _ in range(2):
        assert fedntd(monkeypatch, "run", "demo", *chosen) == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["demo-fedntd-seed0", "demo-fedntd-seed0-2"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "dmo"), "'dmo' is neither a config file nor a preset; did you mean 'demo'?"),
        (("run", "none.toml"), "there is no config file none.toml"),
        (("run", "demo", "--set", "federation.cilents=3"), "did you mean 'clients'"),
        (("run", "demo", "--set", "federation.clients=7000"), "federation.clients = 7000"),
        (("run", "demo", "--set", f"federation.local_epochs={10**12}"), "with this data, at most 16666666 can"),
        (("run", "demo", "--set", "seeds=[]"), "the list of 'seed' is empty"),
        (("run", "demo", "--set", "algorithm.beta=[]"), "the list of 'algorithm.beta' is empty"),
        (("run", "demo", "--set", "model.name=os:getcwd"), "model.name = 'os:getcwd' is no model"),
        (("run", "cifar10-s2"), "fedntd data get cifar10"),
        (("run", "--resume"), "--resume needs --out DIR"),
        (("run", "--resume", "--out", "none"), "there is no run to resume in none"),
        (("run", "demo", "--out", "/proc/foo"), "/proc/foo cannot be written to: No such file or directory; choose"),
        (("run", "demo", "--out", sys.executable), "cannot be written to: File exists; choose another folder"),
        (("compare", "none"), "there is no folder none"),
        (("report", "."), ". is neither a run folder nor a folder of run folders"),
        (("data", "get", "imagenet"), "imagenet"),
        (("data", "partition", "demo", "-o", "x.gif2"), "x.gif2 cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FEDNTD_DATA", "empty")
    assert fedntd(monkeypatch, *arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert sentence in errors
    assert not list(Path().rglob("*.part*"))
    assert not Path("runs").exists()


def test_a_diverged_run_exits_with_1_and_keeps_its_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert train(monkeypatch, "runs/a", "optimiser.lr=1e30") == 1
    assert "failed: the global weights are not finite after round" in capsys.readouterr().err
    assert read_run(Path("runs/a")).status == "failed"
    assert fedntd(monkeypatch, "compare", "runs/a") == 0
    assert "failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "content"),
    [("status.json", "{"), ("records.jsonl", ""), ("environment.json", "[{}]"), ("config.toml", "seed = ")],
)
def test_one_damaged_run_does_not_hide_the_others(
    file: str, content: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert train(monkeypatch, "runs", "seeds=[0,1]", "algorithm.name=fedavg") == 0
    Path("runs/seed=1", file).write_text(content)
    capsys.readouterr()
    commands = [("report", "-o", "r.html"), ("leaderboard",), ("export", "-o", "e.csv"), ("compare", "--json")]
    if file == "environment.json":
        commands = commands[:2]  # the others do without it
    for name, *options in commands:
        assert fedntd(monkeypatch, name, "runs", *options) == 0
        said = capsys.readouterr()
        assert re.fullmatch(rf"left out: runs/seed=1/{file} .*; put a copy back\n", said.err)
        assert fedntd(monkeypatch, name, "runs", "runs/seed=1", *options) == 2  # it was asked for
        assert capsys.readouterr().err.startswith(f"error: runs/seed=1/{file} ")
    Path("runs/seed=0", file).write_text(content)
    assert fedntd(monkeypatch, "report", "runs") == 2
    assert capsys.readouterr().err.endswith("error: there is no run in runs that can be read\n")


def test_partition_as_numbers_and_as_a_picture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert fedntd(monkeypatch, "data", "partition", "demo", "--json", "-o", "p.png") == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["counts"]) == 100
    assert {sum(row) for row in shown["counts"]} == {60}
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert fedntd(monkeypatch, "data", "partition", "demo", "-o", "p.png") == 0
    assert "samples a client: 60 to 60" in capsys.readouterr().out


def test_names_in_brackets_are_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for place in (f"{part}/{name}" for part in ("train", "test") for name in ("[b]a", "[i]b")):
        Path("images", place).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), color=i).save(Path("images", place, f"{i}.png"))
    own = ("data.name=folder", "data.path=images", "partition.name=iid", "federation.clients=2", "federation.ratio=1.0")
    settings = [word for setting in own for word in ("--set", setting)]
    assert fedntd(monkeypatch, "data", "partition", "demo", *settings) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["client", "[b]a", "[i]b", "all"]

    Path("[red]/mnist").mkdir(parents=True)
    Path("[red]/mnist/train-images-idx3-ubyte").touch()
    monkeypatch.setenv("FEDNTD_DATA", "[red]")
    assert fedntd(monkeypatch, "data", "list") == 0
    assert "[red]/mnist" in capsys.readouterr().out


def test_a_method_in_the_current_folder_can_be_named(monkeypatch: pytest.MonkeyPatch):
    Path("half_step.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedntd import FedAvg, tree\n"
        "@dataclass(frozen=True)\n"
        "class HalfStep(FedAvg):\n"
        "    factor: float = 0.5\n"
        "    def aggregate(self, w_g, server, up, p, fraction):\n"
        "        step = tree.scale(self.factor, tree.weighted_mean(up['delta'], p))\n"
        "        return tree.add(w_g, step), {}\n"
    )
    assert train(monkeypatch, "runs/half", "algorithm.name=half_step:HalfStep", "algorithm.factor=0.25") == 0
    assert read_run(Path("runs/half")).config.algorithm.options == {"factor": 0.25}


def test_the_file_of_a_sweep_is_told_from_that_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Path("many.toml").write_text('base = "demo"\nseeds = [0, 1]\n')
    assert fedntd(monkeypatch, "run", "many.toml") == 2
    assert "many.toml is the file of a sweep; train it with: fedntd sweep many.toml" in capsys.readouterr().err


OWN = """
from dataclasses import dataclass
from torch import nn
from fedntd import Dataset, FedAvg
def data() -> Dataset: return open("scans.csv")
def deal(labels, clients, rng): return [labels.nothere]
def nobody(labels, clients, rng): return None
@dataclass(frozen=True)
class Typo(FedAvg):
    def loss(self, model, w, batch, ctx): return ctx.weights
@dataclass(frozen=True)
class Many(FedAvg):
    def loss(self, model, w, batch, ctx): return model(w, batch).logits.sum(1)
class Closed(nn.Flatten):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(784, 10)
    def forward(self, input): return self.head(super().forward(input)).detach()
"""


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("data.name=own:data", r"the data loader 'data' failed: FileNotFoundError: .*scans.csv' \(own\.py, line 5\)"),
        ("partition.name=own:deal", r"partition 'own:deal' failed: AttributeError: .*'nothere' \(own\.py, line 6\)"),
        ("partition.name=own:nobody", r"partition 'own:nobody' failed: TypeError: 'NoneType' object is not iterable"),
        ("algorithm.name=own:Typo", r"algorithm 'own:Typo' cannot train this model: .*'weights' \(own\.py, line 10\)"),
        ("algorithm.name=own:Many", r"the loss of algorithm 'own:Many' must be one number, .*, not \[2\]"),
        ("model.name=own:Closed", "the loss of algorithm 'fedntd' does not depend on the model's weights"),
        ("algorithm.name=thawed:Typo", "algorithm.name = 'thawed:Typo' cannot be imported: TypeError: .*frozen"),
        ("model.name=cut:Net", r"model.name = 'cut:Net' cannot be imported: SyntaxError: .*\(cut\.py, line 1\)"),
    ],
)
def test_an_error_in_code_of_ones_own_is_one_sentence_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], setting: str, sentence: str
):
    Path("own.py").write_text(OWN)
    Path("thawed.py").write_text(OWN.replace("(frozen=True)", ""))
    Path("cut.py").write_text("class Net(")
    assert fedntd(monkeypatch, "run", "demo", "--set", setting) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(sentence, said)
    assert not Path("runs").exists()


OWN_SERVER = """
from dataclasses import dataclass
from fedntd import FedAvg, tree
@dataclass(frozen=True)
class Key(FedAvg):
    def aggregate(self, w_g, server, up, p, fraction): return tree.add(w_g, up["detla"]), {}
@dataclass(frozen=True)
class Late(FedAvg):
    def loss(self, model, w, batch, ctx): return super().loss(model, w, batch, ctx) / (len(batch.y) < 3 or "x")
@dataclass(frozen=True)
class Alone(FedAvg):
    def aggregate(self, w_g, server, up, p, fraction): return w_g
@dataclass(frozen=True)
class Stacked(FedAvg):
    def aggregate(self, w_g, server, up, p, fraction): return tree.add(w_g, up["delta"]), {}
@dataclass(frozen=True)
class Bare(FedAvg):
    def aggregate(self, w_g, server, up, p, fraction): return next(iter(w_g.values())), {}
@dataclass(frozen=True)
class Fewer(FedAvg):
    def aggregate(self, w_g, server, up, p, fraction): return dict(list(w_g.items())[1:]), {}
@dataclass(frozen=True)
class Number(FedAvg):
    def aggregate(self, w_g, server, up, p, fraction): return w_g, {"rounds": 3}
@dataclass(frozen=True)
class Branch(FedAvg):
    def loss(self, model, w, batch, ctx): return super().loss(model, w, batch, ctx) * (2 if batch.x.sum() > 1 else 1)
"""


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("Key", r"code of your own failed: KeyError: 'detla' \(server\.py, line 6\)"),
        ("Late", r"code of your own failed: TypeError: .* \(server\.py, line 9\)"),
        ("Alone", "aggregate of algorithm 'server:Alone' must return the new weights and the server's new state"),
        ("Stacked", r"must return weights of the same names and shapes: .* of shape \[.*\], not \[2, .*\]"),
        ("Bare", r"must return weights of the same names and shapes: weights/.* of shape \[.*\], not None"),
        ("Fewer", r"must return weights of the same names and shapes: .* of shape \[.*\], not None"),
        ("Number", "must return tensors, in dicts; state/rounds is 3"),
        ("Branch", r"failed: RuntimeError: vmap.* \(server\.py, line 27\); engine = 'sequential' can run it"),
    ],
)
def test_a_mistake_that_shows_in_the_first_round_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str, sentence: str
):
    Path("server.py").write_text(OWN_SERVER)
    engine = "vectorised" if method == "Branch" else "sequential"
    assert train(monkeypatch, "runs/a", f"algorithm.name=server:{method}", f"engine={engine}") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(sentence, said)


def test_a_mistake_of_fedntds_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedntd.cli.bench.measure_speed", lambda: eval("1 / 0"))
    monkeypatch.setattr("fedntd.errors.OTHERS", ("/",))  # all of it is
    monkeypatch.setattr("sys.argv", ["fedntd", "bench"])
    with pytest.raises(ZeroDivisionError):
        main()


def test_algorithms_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert fedntd(monkeypatch, "algorithms", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(ALGORITHMS)
    weights = 4 * 2_156_490
    assert rows["scaffold"]["state_bytes"] == rows["scaffold"]["extra_up_bytes"] == weights
    assert rows["fedntd"]["extra_forwards"] == 1
    assert rows["fedntd"]["state_bytes"] == rows["fedntd"]["extra_up_bytes"] == rows["fedntd"]["extra_down_bytes"] == 0
    assert fedntd(monkeypatch, "algorithms") == 0
    assert "8.6 MB" in capsys.readouterr().out


def test_bench_measures_each_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """With a small network instead of the demo's."""
    monkeypatch.setattr("fedntd.simulation.speed.settings", lambda: [("cpu", "sequential", "bf16")])
    monkeypatch.setattr(
        "fedntd.simulation.speed.configure", lambda name, given: configure(name, [*given, QUICK_NETWORK])
    )
    assert fedntd(monkeypatch, "bench", "--json") == 0
    (speed,) = json.loads(capsys.readouterr().out)
    assert (speed["engine"], speed["precision"]) == ("sequential", "bf16")
    assert speed["samples_per_second"] * speed["round"] == pytest.approx(10 * 60 * 3)  # clients x samples x epochs


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("compare",),
        ("report",),
        ("algorithms",),
        ("bench",),
        *(("data", c) for c in ("list", "get", "check", "partition")),
    ],
)
def test_every_command_has_help_with_an_example(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert fedntd(monkeypatch, *command, "--help") == 0
    assert f"Example: fedntd {' '.join(command)}" in capsys.readouterr().out


def test_lists_are_several_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Two seeds by two values, one of which diverges: four folders, the others finished, exit code 1."""
    settings = ("seeds=[0,1]", "optimiser.lr=[0.01,1e30]", "engine=vectorised")
    assert train(monkeypatch, "runs/grid", *settings) == 1
    captured = capsys.readouterr()
    assert captured.err.count("failed:") == 2
    assert "fedntd on fashion-mini, seed=1,optimiser.lr=0.01  round 2/2" in captured.err
    assert "run folders in: runs/grid" in captured.out
    status = {path.parent.name: read_run(path.parent).status for path in Path("runs/grid").glob("*/config.toml")}
    assert status == {
        "seed=0,optimiser.lr=0.01": "finished",
        "seed=1,optimiser.lr=0.01": "finished",
        "seed=0,optimiser.lr=1e+30": "failed",
        "seed=1,optimiser.lr=1e+30": "failed",
    }


def test_a_listed_name_keeps_the_options_that_came_with_it(monkeypatch: pytest.MonkeyPatch):
    """As when the name is set by itself. The other names do not get these options."""
    Path("base.toml").write_text('algorithm.beta = 0.3\npartition = { name = "sharding", s = 3 }\n')
    names = ('algorithm.name=["fedavg","fedntd"]', 'partition.name=["sharding","iid"]', "algorithm.name=fedavg")
    for given in (names[:1], names[1:]):
        settings = ("federation.rounds=1", "federation.ratio=0.01", "data.train_size=1000", QUICK_NETWORK, *given)
        sets = [word for setting in settings for word in ("--set", setting)]
        assert fedntd(monkeypatch, "run", "base.toml", *sets, "--out", "runs") == 0
    found = {path.parent.name: read_run(path.parent).settings for path in Path("runs").glob("*/config.toml")}
    assert found["algorithm.name=fedntd"]["algorithm.beta"] == 0.3
    assert "algorithm.beta" not in found["algorithm.name=fedavg"]
    assert found["partition.name=sharding"]["partition.s"] == 3
    assert "partition.s" not in found["partition.name=iid"]


def test_lists_of_paths_and_tables_have_folders_that_can_be_read_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    data = folder_of("fashion-mini")
    Path("b_c").symlink_to(data)
    Path("b").mkdir()
    Path("b/c").symlink_to(data)
    lists = ('data.path=["b/c","b_c"]', 'partition=[{name="iid"},{name="lda",alpha=0.5}]')
    for more in ((), ("--resume",)):
        assert train(monkeypatch, "runs", *lists, more=more) == 0
        capsys.readouterr()
        assert fedntd(monkeypatch, "compare", "runs", "--json") == 0
        found = {one["path"] for row in json.loads(capsys.readouterr().out) for one in row["members"]}
        assert len(found) == len(list(Path("runs").iterdir())) == 4
