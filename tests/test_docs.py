"""The documentation does what it says: its commands and code run, its links lead somewhere, its tables are complete.

A comment before a fenced block in README.md or docs/*.md says what is to be done with the block:

    <!-- tested -->         run it (sh, python), in the order of the page and in one folder of its own
    <!-- file: NAME -->     write it to NAME in that folder, for the blocks after it
    <!-- source: PATH -->   it must stand, word for word, in the file PATH of this repository
"""

import dataclasses
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fedntd
from fedntd import ALGORITHMS, cli
from fedntd.algorithms.released import RELEASED
from fedntd.algorithms.robust import ROBUST
from fedntd.config.presets import TABLE1, WHOLE, preset
from fedntd.config.registry import Choice, resolve
from fedntd.config.schema import Config
from fedntd.config.toml import flat, from_table, read
from fedntd.data.partition import PARTITIONS
from fedntd.models import MODELS
from few_images import leave_few_test_images
from started import Started

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXPERIMENTS = [file for file in sorted((ROOT / "experiments").glob("*.toml")) if "# fedntd run" in file.read_text()]


class Block(NamedTuple):
    what: str  # tested, file, source
    name: str
    language: str
    text: str


def marked_blocks(page: Path) -> list[Block]:
    pattern = r"^<!-- (tested|file|source)(?:: (\S+))? -->\n```(\w+)\n(.*?)^```$"
    return [Block(*found) for found in re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)]


def with_marks(*whats: str) -> list[Any]:
    pages = [page for page in PAGES if any(block.what in whats for block in marked_blocks(page))]
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.mark.usefixtures("few_test_images")
@pytest.mark.parametrize("page", with_marks("tested"))
def test_what_is_shown_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for Python started in that folder
    for what, name, language, text in marked_blocks(page):
        if what == "file":
            Path(name).write_text(text, encoding="utf-8")
        elif what == "tested" and language == "python":
            exec(compile(text, f"{page.name}: {text.splitlines()[0]}", "exec"), {"__name__": "shown"})
        elif what == "tested":
            assert language == "sh"
            run = in_a_process if page.name == "README.md" else in_this_process
            for line in text.splitlines():
                command, *arguments = shlex.split(line)
                assert command == "fedntd", line
                run(arguments, monkeypatch)


def in_a_process(arguments: list[str], _: pytest.MonkeyPatch) -> None:
    """Each command in one of its own, as a user does it."""
    process = Started(*arguments, before=leave_few_test_images)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, f"{arguments}\n{errors}"


def in_this_process(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has imported all that a command needs."""
    monkeypatch.setattr("sys.argv", ["fedntd", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, arguments


@pytest.mark.parametrize("page", with_marks("source"))
def test_code_that_is_quoted_is_the_code(page: Path):
    for what, name, _, text in marked_blocks(page):
        if what == "source":
            assert text in (ROOT / name).read_text(encoding="utf-8"), f"{page.name} quotes {name} as it is no longer"


def test_every_block_with_a_mark_is_found():
    for page in PAGES:
        marks = re.findall(r"^<!-- (?:tested|file|source)\b.*-->$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(marks) == len(marked_blocks(page)), page.name


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_lead_to_files(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for picture, link in re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text):
        if not picture and not link.startswith(("http://", "https://", "#")):
            assert (page.parent / link.partition("#")[0]).exists(), f"{page.name} links to {link}"


# --- configuration.md -------------------------------------------------------------------------------------------


def settings() -> dict[str, Any]:
    """Every config key with its default: those of the default config, and of every partition and model."""
    table = flat(Config())
    for section, names in (("partition", PARTITIONS), ("model", MODELS), ("robust", ROBUST)):
        for name in names:
            options = resolve(section, Choice(name)).options
            table |= {f"{section}.{key}": value for key, value in options.items()}
    return table


def documented() -> dict[str, str]:
    """key -> default, from rows of the form | `key` | type | default | meaning |"""
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([\w.]+)` \|[^|]*\| ([^|]*) \|", text, re.MULTILINE))


@pytest.mark.parametrize("key", sorted(settings()))
def test_every_setting_is_documented_with_its_default(key: str):
    default = settings()[key]
    shown = "not set" if default is None else f"`{json.dumps(default)}`"
    assert documented().get(key) == shown, f"docs/configuration.md must have the row | `{key}` | type | {shown} | ... |"


def test_choices_are_documented():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for name in (*PARTITIONS, *MODELS, *ROBUST):
        assert f"`{name}`" in text


def test_presets_are_documented():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for name in (*WHOLE, *TABLE1):
        dataset, _, split = name.partition("-")
        assert f"`{name}`" in text or re.search(rf"`{dataset}-[^|]*`-{re.escape(split)}`", text), name


# --- measures.md ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", fedntd.Record.__dataclass_fields__)
def test_every_field_of_a_record_is_defined(field: str):
    assert f"`{field}`" in (ROOT / "docs/measures.md").read_text(encoding="utf-8")


# --- experiments, versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in EXPERIMENTS])
def test_an_experiment_is_the_preset_of_its_name(file: Path):
    assert from_table(read(file)) == from_table(preset(file.stem))
    assert file.read_text(encoding="utf-8").splitlines()[0] == f"# fedntd run experiments/{file.name}"


def test_the_version_is_told_once():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_pre_commit_has_the_pinned_ruff():
    (pinned,) = re.findall(r"^ruff==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"ruff==[\d.]+", hooks)) == {pinned}


def test_the_released_values_are_listed():
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)-released` \| (.*) \|$", text, re.MULTILINE))
    shown = {n: ", ".join([f"`{n}`", *(f"{k} = {v}" for k, v in values.items())]) for n, values in RELEASED.items()}
    del shown["fednova"]  # a method of its own
    assert rows == shown


def test_every_method_and_its_settings_are_described():
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S))
    assert list(sections) == list(ALGORITHMS)
    for name, method in ALGORITHMS.items():
        for setting in dataclasses.fields(method):
            assert f"| `algorithm.{setting.name}` | {setting.default!r} |" in sections[name], (name, setting.name)
