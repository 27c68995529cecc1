"""Many sites, in Flower's own simulation engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

from processes import SOURCE


def test_two_hundred_sites_in_flowers_simulation_engine():
    """The benchmark runs them there and in ours, and both end at the same accuracy."""
    script = Path(__file__).parents[2] / "benchmarks/flower_sim.py"
    asked = ["--sites", "200", "--ratio", "0.02", "--rounds", "2", "--samples", "2000"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, script, *asked], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "200 sites" in done.stdout
    ((theirs, ours),) = re.findall(r"final accuracy: (\S+) and (\S+)", done.stdout)
    assert theirs == ours
