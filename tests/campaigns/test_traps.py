"""Run folders from a stranger: no command that reads them imports or calls what their configs name.

Each trap is a run folder whose config names, under one key, code that leaves a mark: a function of the standard
library, or a module in the current folder. All other files of the folder are whole, so that every command gets as far
as it can.
"""

import importlib.util
import json
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from make_runs import exact_run

from fedntd import FedntdError, configure, read_run
from fedntd.analysis.rounds import reopen
from fedntd.cli import main
from fedntd.config.registry import REGISTRIES
from fedntd.config.schema import with_own_code
from fedntd.config.trust import is_of_project
from fedntd.runs.ledger import record
from fedntd.sweep.execute import Child
from started import Started

KEYS = [*REGISTRIES]  # data, partition, model, algorithm, server, auxiliary, robust
PAYLOADS = {
    "system": 'name = "os:system"\ncommand = "touch marked-by-system"',
    "copy": 'name = "shutil:copyfile"\nsrc = "trap.py"\ndst = "marked-by-copy"',
    "module": 'name = "trap:Method"',
    "function": 'name = "trap:leave"\nmark = "marked-by-call"',
}
TRAP = """
from dataclasses import dataclass
from pathlib import Path
from fedntd import FedAvg
Path("marked-by-import").touch()
@dataclass(frozen=True)
class Method(FedAvg):
    def __post_init__(self): Path("marked-by-method").touch()
def leave(mark="marked-by-call", **more): Path(mark).touch()
"""
# packages that commands import when they need them: a file of the same name must not take their place
SHADOWS = ("optuna", "pandas", "pyarrow", "tensorboard", "matplotlib", "jinja2", "sqlalchemy", "sklearn")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `foreign` with a trap for each key and payload, an honest run, a sweep's file and a ledger."""
    place = tmp_path_factory.mktemp("traps")
    honest = exact_run(place / "foreign/honest", [0.1, 0.2, 0.3]).path
    for key in KEYS:
        for name, payload in PAYLOADS.items():
            folder = place / "foreign" / f"{key}-{name}"
            shutil.copytree(honest, folder)
            # data and auxiliary have no further keys
            lines = payload.split("\n")[0] if key in ("data", "auxiliary") else payload
            text = (folder / "config.toml").read_text()
            sections = [part for part in text.split("\n\n") if not part.startswith(f"[{key}]")]
            (folder / "config.toml").write_text("\n\n".join([*sections, f"[{key}]\n{lines}\n"]))
            (place / f"{key}-{name}.toml").write_text(f'base = "foreign/{key}-{name}/config.toml"\n')
    (place / "library").mkdir()
    for folder in (place, place / "library"):  # in the current folder, and as if it were installed
        (folder / "trap.py").write_text(TRAP)
    for package in SHADOWS:
        (place / f"{package}.py").write_text('open("marked-by-shadow", "w").close()\nraise ImportError("a trap")\n')
    (place / "matplotlibrc").write_text("text.usetex: True\n")  # which would run TeX
    methods = ('name = "trap:Method"', 'name = "os:system", command = "touch marked"')
    named = "".join(f"[[runs]]\nalgorithm = {{ {method} }}\n" for method in methods)
    (place / "foreign/sweep.toml").write_text(named)
    (place / "harmless.toml").write_text('[settings]\nalgorithm.name = "fedavg"\nfederation.rounds = 3\n')
    (place / "ledger").mkdir()
    record([place / "foreign" / f"{key}-{name}" for key in KEYS for name in PAYLOADS], place / "ledger")
    return place


@pytest.fixture
def place(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(prepared)
    yield prepared
    for mark in prepared.glob("marked*"):
        mark.unlink()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`fedntd ...` in this process: exit code, and what it said of errors."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["fedntd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def marks(place: Path) -> list[str]:
    return sorted(file.name for file in place.rglob("marked*"))


@pytest.mark.parametrize(
    "arguments",
    [
        "compare foreign",
        "compare foreign --json --by algorithm.name",
        "compare foreign --latex --baseline fedavg --target 20",
        "report foreign -o out/report.html --figures out/figures",
        "export foreign -o rounds.csv",
        "export foreign -o runs.parquet --per run",
        "export foreign --to tensorboard -o logs",
        "leaderboard foreign",
        "leaderboard foreign --of foreign/sweep.toml",
        "leaderboard foreign --of algorithm-module.toml",
        "leaderboard ledger",
        "paper record foreign --ledger recorded",
        "paper page --ledger ledger -o page.md",
        "sweep harmless.toml --dry-run --out foreign",
    ],
)
def test_reading_imports_and_calls_nothing(place: Path, arguments: str):
    process = Started(*arguments.split(), folder=place)
    out, err = process.communicate()
    assert "Traceback" not in out + err
    assert process.returncode == 0 or (process.returncode == 2 and err.count("\n") >= 1)
    assert marks(place) == []
    if arguments == "compare foreign --json --by algorithm.name":  # which shows that traps are read, not left out
        assert {"os:system", "trap:Method"} <= {row["settings"].get("algorithm.name") for row in json.loads(out)}


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_read_as_text(place: Path, key: str, payload: str):
    run = read_run(place / "foreign" / f"{key}-{payload}")
    assert getattr(run.config, key).name == PAYLOADS[payload].split('"')[1]
    assert len(run.records) == 3
    assert marks(place) == []


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("key", KEYS)
def test_training_from_a_foreign_folder_names_its_code_and_wants_trust(
    place: Path, command: Callable[..., tuple[int, str]], key: str, payload: str, monkeypatch: pytest.MonkeyPatch
):
    folder = f"foreign/{key}-{payload}"
    elsewhere = place / "elsewhere"  # so that trap.py is not part of the current project
    elsewhere.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(place / "library"))
    for arguments in (
        f"run --resume --out ../{folder}",
        f"run ../{folder}/config.toml",
        f"sweep ../{key}-{payload}.toml",
        f"data partition ../{folder}/config.toml",
    ):
        code, said = command(*arguments.split())
        assert code == 2
        assert PAYLOADS[payload].split('"')[1] in said
        assert "--trust" in said
    with pytest.raises(FedntdError, match="trust=True"):
        configure(f"../{folder}/config.toml")
    shutil.copy(place / f"{folder}/records.jsonl", place / f"{folder}/checkpoint.safetensors")
    with pytest.raises(FedntdError, match="trust=True"):
        reopen(f"../{folder}")
    (place / f"{folder}/checkpoint.safetensors").unlink()
    assert marks(place) == []


@pytest.mark.parametrize("payload", ["system", "copy", "function"])
@pytest.mark.parametrize("key", KEYS)
def test_even_trusted_code_is_called_only_if_it_is_of_the_right_kind(
    place: Path, key: str, payload: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(place / "library"))
    config = configure(f"foreign/{key}-{payload}/config.toml", trust=True)
    with pytest.raises(FedntdError, match=f"{key}.name = .* (is no|cannot be used)"):
        with_own_code(config)
    assert set(marks(place)) <= {"marked-by-import"}  # of trap.py, which was trusted


def test_code_of_the_current_project_needs_no_word_but_that_in_the_run_folder_does(place: Path, command: Callable):
    shutil.copytree(place / "foreign/algorithm-module", place / "own", dirs_exist_ok=True)
    (place / "own/status.json").write_text('{"status": "running", "reason": ""}')
    code, said = command("run", "own/config.toml", "--set", "federation.rounds=1", "--set", "workers=1", "--out", "new")
    assert (code, "--trust" in said) == (0, False)
    assert "marked-by-method" in marks(place)  # the trap does leave a mark where code is meant to run
    shutil.copy(place / "trap.py", place / "own/inside.py")
    text = (place / "own/config.toml").read_text().replace("trap:Method", "inside:Method")
    (place / "own/config.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place / "own")
        code, said = command("run", "--resume", "--out", ".")
    assert code == 2
    assert "'inside:Method'" in said
    assert not list((place / "own").glob("marked*"))


# --- ways around the question -----------------------------------------------------------------------------------

TRAIN = """
[federation]
rounds = 1
clients = 5
ratio = 0.2
local_epochs = 1
[data]
train_size = 100
"""
HIDDEN = """
[model]
name = "fedntd.rng:torch.fx.graph_module.reduce_graph_module"
import_block = "open('marked-by-code', 'w').close()\\n"
body = { _code = "def forward(self): pass" }
"""


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder, with a stranger's folder two levels down, and a trap as if it were installed."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library/elsewhere.py").write_text(TRAP)
    (tmp_path / "here/got/runs/one").mkdir(parents=True)
    for folder in ("got", "got/runs", "got/runs/one"):
        (tmp_path / "here" / folder / "evil.py").write_text(TRAP)
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def put(folder: Path, text: str, *others: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text)
    for name in others:
        (folder / name).write_text("{}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[algorithm]\nname = ["elsewhere:Method"]', "--trust"),  # a list stands for several runs
        ('algorithm = [{ name = "elsewhere:Method" }]', "--trust"),
        ('[algorithm]\nname = "got.runs.one.evil:Method"', "--trust"),  # a folder is a package, to Python
        ('[algorithm]\nname = "got.runs.evil:Method"', "--trust"),
        ('[algorithm]\nname = "got.evil:Method"', "--trust"),
        (HIDDEN, "leads through the module 'torch'"),
        ('[robust]\nname = "fedntd.cli:sys.modules"', "leads through the module 'sys'"),
    ],
)
def test_no_way_of_writing_a_name_goes_around_the_question(around: Path, command: Callable, text: str, said: str):
    put(around / "got/runs/one", f"{text}\n{TRAIN}", "status.json")
    for arguments in ("run got/runs/one/config.toml --out new", "run --resume --out got/runs/one"):
        code, told = command(*arguments.split())
        assert code == 2
        assert said in told
    assert marks(around) == []


@pytest.mark.parametrize("others", [(), ("environment.json",), ("partition.json",), ("checkpoint.safetensors",)])
def test_a_folder_that_lacks_files_is_not_trusted_for_it(around: Path, command: Callable, others: tuple[str, ...]):
    put(around / "got/runs/one", f'[algorithm]\nname = "elsewhere:Method"\n{TRAIN}', *others)
    code, said = command("run", "--resume", "--out", "got/runs/one")
    assert (code, "--trust" in said) == (2, True)
    if others:
        code, said = command("run", "got/runs/one/config.toml")
        assert (code, "--trust" in said) == (2, True)
    assert marks(around) == []


@pytest.mark.parametrize(
    "text",
    [
        '[settings]\nalgorithm.name = "elsewhere:Method"',
        '[grid]\n"algorithm.name" = ["fedavg", "elsewhere:Method"]',
        '[zip]\n"algorithm.name " = ["elsewhere:Method"]',
        '[[runs]]\nalgorithm = { name = "got.evil:Method" }',
        '[base.algorithm]\nname = "elsewhere:Method"',
        'base = "other.toml"',
        '[search]\nsampler = "grid"\n[search.keys]\nalgorithm.name = ["elsewhere:Method"]',
    ],
)
def test_the_file_in_a_sweeps_folder_is_as_foreign_as_its_runs(around: Path, command: Callable, text: str):
    put(around / "got/runs/one", TRAIN, "status.json")
    (around / "got/runs/sweep.toml").write_text(text)
    (around / "got/runs/other.toml").write_text('[algorithm]\nname = "elsewhere:Method"')
    for dry in ("", " --dry-run"):
        code, said = command(*f"sweep got/runs/sweep.toml --out new{dry}".split())
        assert (code, "--trust" in said) == (2, True)
    assert marks(around) == []


def test_a_key_of_a_sweep_is_not_a_setting_and_its_value(around: Path, command: Callable):
    (around / "sweep.toml").write_text("""[settings]\n'algorithm.name="elsewhere:Method" #' = 0""")
    code, said = command("sweep", "sweep.toml")
    assert code == 2
    assert "is no key of a setting" in said
    assert marks(around) == []


def test_a_worker_of_a_sweep_does_not_take_files_here_for_packages(around: Path):
    """Its current folder comes last, as in the process that started it."""
    (around / "filelock.py").write_text('open("marked-by-shadow", "w").close()')
    child = Child({})
    process = child.started()
    assert process is not None
    child.stop()
    child.join()
    assert process.returncode == 0
    assert marks(around) == []


# --- no question without need -----------------------------------------------------------------------------------


def test_what_is_of_the_project(around: Path, monkeypatch: pytest.MonkeyPatch):
    """Its modules and packages, those without an __init__.py, those in src/, also from a folder of the project."""
    folder = around / "runs/mine"
    for file in ("mine.py", "spaces/inner.py", "package/__init__.py", "src/inside/__init__.py", "study/note.txt"):
        (around / file).parent.mkdir(parents=True, exist_ok=True)
        (around / file).touch()
    monkeypatch.syspath_prepend(str(around / "src"))  # as if it were installed from here
    for name in ("mine:X", "spaces.inner:X", "package:X", "inside:X", "__main__:X", "fedntd.models:X", "not_there:X"):
        assert is_of_project(name, folder), name
    for name in ("elsewhere:X", "os:X", "sys:X", "zipimport:X", "torch.nn:X", "numpy:X", "runs.mine.x:X", ".mine:X"):
        assert not is_of_project(name, folder), name
    assert not is_of_project("inside:X", around / "src/inside/runs/1")
    (around / "pyproject.toml").touch()
    monkeypatch.chdir(around / "study")
    assert is_of_project("inside:X", folder)
    assert not is_of_project("elsewhere:X", folder)


@pytest.mark.parametrize("here", ["/", str(Path(sysconfig.get_path("stdlib")).parent), sys.prefix])
def test_pythons_own_modules_are_of_no_project(here: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(here)
    mine = [name for name in sys.stdlib_module_names if importlib.util.find_spec(name)]
    assert [name for name in mine if is_of_project(f"{name}:X", Path("/nowhere/run"))] == []
