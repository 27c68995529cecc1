"""`python -m fedntd` is the command `fedntd`, where that is not on the path."""

import os
import sys
from pathlib import Path

if sys.path[0] in ("", os.getcwd()) and Path(__file__).resolve().parents[1] != Path.cwd():
    # `python -m` puts the current folder first. A file there must not take the place of an installed package in a
    # command that only reads; what trains finds code of the user's own in the current folder nonetheless.
    del sys.path[0]

from fedntd.cli import main

main()
