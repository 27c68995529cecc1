"""Commands that do not train do not import torch, which would take most of their time."""

import subprocess
import sys

import pytest

CODE = """
import sys
from fedntd.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["--help", "--version", "data list", "data list --help", "data check fashion-mini"])
def test_without_torch(command: str):
    done = subprocess.run([sys.executable, "-c", CODE, *command.split()], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "False\n")
    assert done.stdout


def test_import_without_torch():
    code = "import sys, fedntd; fedntd.FedntdError; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
