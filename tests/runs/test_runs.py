"""Run folders as others see them."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from fedntd import Config, Dataset, FedntdError, federate
from fedntd.config.registry import Choice
from fedntd.config.schema import Data, with_own_code
from fedntd.config.toml import from_table
from fedntd.runs.reader import COLUMNS, find_runs, read_run
from fedntd.sweep.jobs import status

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]


def test_while_it_runs_it_is_running(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    rounds = federate(make_config(), blobs, tiny_net(), out=tmp_path / "run")
    next(rounds)
    assert read_run(tmp_path / "run").status == "running"
    rounds.close()
    assert read_run(tmp_path / "run").status == "interrupted"


def test_columns_are_those_of_the_records(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """Lines may be written by us, by another program, or end with an unfinished one."""
    records = list(federate(make_config(), blobs, tiny_net(), out=tmp_path / "run"))
    wanted = {name: [getattr(record, name) for record in records] for name in COLUMNS}
    file = tmp_path / "run/records.jsonl"
    whole = file.read_text()
    assert read_run(tmp_path / "run").columns == wanted
    file.write_text(whole + whole.splitlines()[0][:-1])
    assert read_run(tmp_path / "run").columns == wanted
    file.write_text("".join(json.dumps(json.loads(line), separators=(",", ":")) + "\n" for line in whole.splitlines()))
    assert read_run(tmp_path / "run").columns == wanted
    file.write_text(whole.replace('"accuracy": ', '"accuracy": x', 1))
    with pytest.raises(FedntdError, match=r"records\.jsonl, line 1, is not a record: .*; put a copy back"):
        _ = read_run(tmp_path / "run").columns


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: file.write_bytes(b"\xff\xfe\n\n"), "cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read: .*Is a directory"),
        (lambda file: file.write_text(re.sub('("accuracy": )[^,]*', r"\1null", file.read_text())), "is not a number"),
    ],
)
def test_damaged_records_are_one_sentence(
    damage: Callable[[Path], object],
    sentence: str,
    tmp_path: Path,
    blobs: Dataset,
    tiny_net: Net,
    make_config: MakeConfig,
):
    list(federate(make_config(), blobs, tiny_net(), out=tmp_path / "run"))
    damage(tmp_path / "run/records.jsonl")
    told = rf"records\.jsonl.*{sentence}.*; put a copy back, or leave out this run"
    with pytest.raises(FedntdError, match=told):
        _ = read_run(tmp_path / "run").columns
    if "number" not in sentence:
        with pytest.raises(FedntdError, match=told):
            _ = read_run(tmp_path / "run").records


def test_a_finished_run_has_all_its_rounds(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """Otherwise it would be missing from a mean, or count with an early round, unnoticed."""
    rounds = federate(make_config(), blobs, tiny_net(), out=tmp_path / "run")
    file = tmp_path / "run/records.jsonl"
    next(rounds)
    rounds.close()
    assert read_run(tmp_path / "run").rounds == 1
    whole = [*federate(make_config(), blobs, tiny_net(), out=tmp_path / "run", resume=True)]
    lines = file.read_text().splitlines(keepends=True)
    for content, left in ((lines[:1], 1), ([], 0)):
        file.write_text("".join(content))
        for what in ("records", "columns"):
            with pytest.raises(FedntdError, match=rf"has {left} of the {len(whole) + 1} rounds .* put a copy back"):
                getattr(read_run(tmp_path / "run"), what)


def test_runs_are_found_by_their_folder_or_by_the_one_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a/1", "a/2", "b", "a/2/deeper", "a/notes"):
        (tmp_path / name).mkdir(parents=True)
        if name != "a/notes":
            (tmp_path / name / "config.toml").touch()
    around, one = tmp_path / "a", tmp_path / "a/2"
    assert find_runs([around, tmp_path / "b", one]) == [tmp_path / "a/1", one, tmp_path / "b"]
    assert find_runs([one, around]) == [one, tmp_path / "a/1"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a")
    assert find_runs([one, Path("a"), tmp_path / "link"]) == [one, Path("a/1")]  # by another path, the same run
    with pytest.raises(FedntdError, match="notes is neither a run folder nor a folder of run folders"):
        find_runs([tmp_path / "b", tmp_path / "a/notes"])
    with pytest.raises(FedntdError, match="there is no folder"):
        find_runs([tmp_path / "c"])


@pytest.mark.parametrize(
    ("name", "content", "missing"),
    [
        ("status.json", "{}", "status and reason"),
        ("status.json", "[]", "status and reason"),
        ("environment.json", "[]", "entry"),
        ("environment.json", "{}", "entry"),
        ("environment.json", "[{}]", "entry with started"),
        ("partition.json", "{}", "classes and counts"),
    ],
)
def test_a_damaged_file_is_named(
    name: str, content: str, missing: str, tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    folder = tmp_path / "run"
    list(federate(make_config(), blobs, tiny_net(), out=folder))
    (folder / name).write_text(content)
    with pytest.raises(FedntdError, match=f"{name} is damaged: it has no {missing}"):
        _ = (run := read_run(folder)).environment, run.classes
    assert status(folder) == ("interrupted" if name == "status.json" else "finished")


@pytest.fixture
def of_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose method and data come from a module that no longer exists."""
    module = tmp_path / "gone_since.py"
    module.write_text(
        "import torch\n"
        "from dataclasses import dataclass\n"
        "from fedntd import Dataset, FedAvg, from_tensors\n"
        "@dataclass(frozen=True)\n"
        "class Own(FedAvg):\n"
        "    mu: float = 0.1\n"
        "def images() -> Dataset:\n"
        "    x, y = torch.zeros(40, 1, 16, 16, dtype=torch.uint8), torch.arange(40) % 10\n"
        "    return from_tensors('images', (x, y), (x, y))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = {"algorithm": {"name": "gone_since:Own"}, "data": {"name": "gone_since:images"}, "partition": {"name": "iid"}}
    config = from_table({**own, "federation": {"clients": 2, "ratio": 0.5, "rounds": 1, "local_epochs": 1}})
    list(federate(config, out=tmp_path / "run"))
    assert read_run(tmp_path / "run").config == with_own_code(config)
    module.unlink()
    monkeypatch.delitem(sys.modules, "gone_since")
    return tmp_path / "run"


def test_who_looks_at_a_run_needs_no_code_of_its_own(of_own_code: Path):
    config = read_run(of_own_code).config
    assert config.algorithm == Choice("gone_since:Own", {"mu": 0.1})
    assert config.data == Data("gone_since:images")
    with pytest.raises(FedntdError, match=r"'gone_since:.*' cannot be imported"):
        list(federate(config, out=of_own_code, resume=True))


def test_what_else_is_wrong_with_its_settings_is_told(of_own_code: Path):
    file = of_own_code / "config.toml"
    file.write_text(file.read_text().replace("rounds = 1", "rounds = 0"))
    with pytest.raises(FedntdError, match=r"federation\.rounds must be at least 1, not 0; put a copy back"):
        read_run(of_own_code)
