"""How long commands that do not train take to start, against Python itself.

    python benchmarks/start.py --times 9

Each command is started --times times, in turn, so that a machine that gets slower meanwhile does not favour one of
them; the median is reported. `compare` reads a run of one round and needs torch, because the classes of the methods
check a config. `import torch` is shown for comparison.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fedntd import configure, federate

RUN = ("demo", ["device=cpu", "federation.rounds=1", "measure.local_every=0"])


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=9, help="starts of each")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for _ in federate(configure(*RUN), out=run):
            pass
        commands = {
            "python -c pass": ["-c", "pass"],
            "import torch": ["-c", "import torch"],
            "fedntd --help": ["-m", "fedntd", "--help"],
            "fedntd --version": ["-m", "fedntd", "--version"],
            "fedntd data list": ["-m", "fedntd", "data", "list"],
            "fedntd compare": ["-m", "fedntd", "compare", str(run)],
        }
        for arguments in commands.values():  # files are read from the disk once
            seconds(arguments)
        rounds = [{name: seconds(arguments) for name, arguments in commands.items()} for _ in range(times)]
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, {times} times each\n"
    )
    medians = {name: statistics.median(one[name] for one in rounds) for name in commands}
    print("| command | seconds | times python -c pass |\n|---|---|---|")
    for name, median in medians.items():
        print(f"| `{name}` | {median:.3f} | {median / medians['python -c pass']:.0f} |")


if __name__ == "__main__":
    main()
