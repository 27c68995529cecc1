"""The public names, and the old names of modules that have moved."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedntd
from fedntd.support.moved import MOVED


def test_public_names():
    assert sorted(fedntd.PUBLIC) == sorted(fedntd.__all__)
    assert {*fedntd.__all__, "__version__"} <= {*dir(fedntd)}
    for name, module in fedntd.PUBLIC.items():
        assert getattr(fedntd, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="module 'fedntd' has no attribute 'nothing'"):
        fedntd.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_type_checkers_see_the_same_names():
    read = ast.parse(Path(fedntd.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in read.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == fedntd.PUBLIC


def test_packages_are_attributes():
    code = "import fedntd; print(fedntd.algorithms.ALGORITHMS['fedntd'], fedntd.analysis.__name__)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("old", MOVED)
def test_old_modules(old: str, monkeypatch: pytest.MonkeyPatch):
    new = [importlib.import_module(name) for name in MOVED[old]]
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {MOVED[old][0]}") as warned:
        found = importlib.import_module(old)
    assert len(warned) == 1
    for module in new:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        assert own
        assert all(getattr(found, name) is getattr(module, name) for name in own)


@pytest.mark.parametrize(
    ("package", "name", "new"),
    [
        ("config", "Config", "schema.Config"),
        ("config", "Federation", "schema.FederationSettings"),
        ("runs", "read_run", "reader.read_run"),
        ("kernels", "conv_pool_relu", "convolution.conv_pool_relu"),
    ],
)
def test_old_modules_that_are_packages_now(package: str, name: str, new: str):
    module, _, now = new.partition(".")
    found = importlib.import_module(f"fedntd.{package}")
    with pytest.warns(DeprecationWarning, match=f"fedntd.{package}.{name} has moved to fedntd.{package}.{new};"):
        old = getattr(found, name)
    assert old is getattr(importlib.import_module(f"fedntd.{package}.{module}"), now)
    assert not hasattr(found, "nothing")


def test_a_warning_names_the_line_of_the_user():
    code = "import fedntd.tables\nfrom fedntd.tables import to_toml\nfrom fedntd.config import Config\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if "DeprecationWarning" in line]
    assert [line.partition(": ")[0] for line in lines] == ["<string>:1", "<string>:3"]
    assert done.returncode == 0
