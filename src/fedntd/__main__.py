"""`python -m fedntd` runs the command `fedntd`, also if that is not on the PATH."""

import os
import sys
from pathlib import Path

if sys.path[0] in ("", os.getcwd()) and Path(__file__).resolve().parents[1] != Path.cwd():
    # `python -m` puts the current folder first. In commands that only read, a file there must not shadow an installed
    # package. Commands that train find the user's code in the current folder anyway.
    del sys.path[0]

from fedntd.cli import main

main()
