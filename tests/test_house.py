"""The rooms of the package and who may import whom (docs/one-round.md): read from the source of every file."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedntd

SOURCE = Path(fedntd.__file__).parent
# A room may import from those in earlier rows. Rooms in one row do not import each other.
FLOORS = [
    ["errors", "tree", "rng"],
    ["support"],
    ["kernels"],
    ["models"],
    ["data"],
    ["algorithms"],
    ["config"],
    ["engine", "runs"],
    ["simulation"],
    ["analysis", "report", "flower"],
    ["sweep"],
    ["paper"],
    ["cli"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# what a room does not import although the floors would allow it
CLOSED = {"flower": {"simulation"}, "report": {"engine", "simulation", "algorithms", "models"}}
FILES = sorted(file for file in SOURCE.rglob("*.py") if "template" not in file.parts)


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[tuple[str, ast.stmt]]:
    """The modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            if node.module == "fedntd":
                yield from ((f"fedntd.{alias.name}", node) for alias in node.names)
            elif node.module and node.module.startswith("fedntd."):
                yield node.module, node
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names if alias.name.partition(".")[0] == "fedntd")


def test_every_file_is_in_a_room():
    assert {room_of(file) for file in FILES} - FLOOR.keys() == {"__init__", "__main__"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_room_imports_upwards_or_across(file: Path):
    mine = room_of(file)
    if mine.startswith("__"):  # the door: it shows what is in all rooms
        return
    for module, node in imports(file):
        other = module.split(".")[1]
        if other in (mine, "__version__"):
            continue
        where = f"{file.relative_to(SOURCE)}, line {node.lineno}: {mine} imports {module}"
        assert other in FLOOR, f"{where}, which is in no room"
        assert FLOOR[other] < FLOOR[mine], f"{where}, which is not on a lower floor"
        assert other not in CLOSED.get(mine, ()), f"{where}, which it shall not know"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_import_between_rooms_is_for_type_checkers_alone(file: Path):
    if room_of(file) == "__init__":  # which shows its names without importing them
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for line in node.body:
                names = [line.module] if isinstance(line, ast.ImportFrom) else []
                rooms = {name.split(".")[1] for name in names if name and name.startswith("fedntd.")}
                assert rooms <= {room_of(file)}, f"{file}, line {line.lineno}"


def test_no_modules_import_each_other():
    """Within a room, either: what a file imports when it is imported makes no circle."""
    names = {".".join(["fedntd", *file.relative_to(SOURCE).with_suffix("").parts]): file for file in FILES}
    needed: dict[str, set[str]] = {}
    for name, file in names.items():
        lines = [line for line in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(line, ast.ImportFrom)]
        modules = {line.module or "" for line in lines}
        modules |= {f"{line.module}.{alias.name}" for line in lines for alias in line.names}
        needed[name] = modules & names.keys()
    while free := {name for name, others in needed.items() if not others & needed.keys()}:
        needed = {name: others for name, others in needed.items() if name not in free}
    assert needed == {}


# --- what is public ---------------------------------------------------------------------------------------------

PUBLIC = ("algorithms", "models", "data", "analysis", "report", "flower")
PAGES = sorted([*(SOURCE.parents[1] / "docs").glob("*.md"), *SOURCE.parents[1].glob("*.md")])


@pytest.mark.parametrize("room", ["", *PUBLIC])
def test_public_names_are_there_and_have_docstrings(room: str):
    package = importlib.import_module(f"fedntd.{room}" if room else "fedntd")
    assert package.__all__
    for name in package.__all__:
        found = getattr(package, name)
        if callable(found):
            told = (found.__doc__ or "").strip()
            made = f"{found.__name__}("  # what dataclasses and NamedTuples write for themselves
            assert told, f"{package.__name__}.{name} has no docstring"
            assert not told.startswith((made, "Alias for")), f"{package.__name__}.{name} has no docstring of its own"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_documentation_imports_public_names_only(page: Path):
    """From the package, or from a public room: all else may move."""
    for module in re.findall(r"^\s*(?:from|import) (fedntd[\w.]*)", page.read_text(encoding="utf-8"), flags=re.M):
        assert module == "fedntd" or module.split(".")[1] in PUBLIC, f"{page.name} imports {module}"
