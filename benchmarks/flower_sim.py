"""The same federation in Flower's simulation engine (Ray) and in ours, in one run: seconds, and their ratio.

    pip install -e '.[flower-simulation]'
    python benchmarks/flower_sim.py --sites 200 --ratio 0.05 --rounds 5

Both train the paper's network with FedNTD on the images inside the package, from the same seed, on the CPU, with one
site per core side by side and one thread each. Flower's time is from the first message of the first round to the last
record; the start of Ray and the sites' introductions are shown separately. Our time excludes the import.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
os.environ["RAY_ADDRESS"] = "local"  # not a cluster that somebody has started here, and perhaps killed since

import flwr
import torch

from fedntd import Federation
from fedntd.config.toml import from_table
from fedntd.runs.reader import read_run
from fedntd.runs.record import read_records


def settings(sites: int, ratio: float, rounds: int, samples: int) -> dict[str, Any]:
    return {
        "device": "cpu",
        "data": {"name": "fashion-mini", "train_size": samples},
        "partition": {"name": "iid"},
        "federation": {"clients": sites, "ratio": ratio, "rounds": rounds, "local_epochs": 1},
        "measure": {"local_every": 0},
    }


def in_flower(table: dict[str, Any], folder: Path) -> dict[str, float]:
    """Seconds: all, and those of the rounds alone."""
    sites = table["federation"]["clients"]
    programs = Path(sys.executable).parent
    subprocess.run(
        [programs / "fedntd", "flower", "new", "bench-app"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    pyproject = folder / "bench-app/pyproject.toml"
    head = pyproject.read_text().partition("[tool.flwr.app.config]")[0]
    sections = {"": {"device": table["device"]}} | {k: v for k, v in table.items() if isinstance(v, dict)}
    sections["flower"] = {"out": str(folder / "run"), "time_limit": 3600.0}
    lines = [head]
    for name, section in sections.items():
        lines.append(f"[tool.flwr.app.config{'.' if name else ''}{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in section.items()]
    pyproject.write_text("\n".join(lines) + "\n")

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    home = folder / "bench-app/.flwr"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        f"options.num-supernodes = {sites}\noptions.backend.client-resources.num-cpus = 1\n"
    )
    environment = os.environ | {"FLWR_HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    flags = ["--insecure", "--simulation", "--disable-runtime-dependency-installation", "--port", str(port)]
    with (folder / "link.log").open("w") as log:
        link = subprocess.Popen(
            [programs / "flower-superlink", *flags], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.2)
        started = time.perf_counter()
        command = [programs / "flwr", "run", "bench-app", "--stream"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - started
    finally:
        link.terminate()
        link.wait()
    records = read_records(folder / "run/records.jsonl")
    if len(records) != table["federation"]["rounds"]:
        sys.exit(f"Flower's run failed:\n{done.stdout}\n{done.stderr}\n{(folder / 'link.log').read_text()}")
    return {"all": seconds, "rounds": sum(record.seconds for record in records)}


def in_ours(table: dict[str, Any]) -> tuple[dict[str, float], float]:
    """Seconds as above, and the final accuracy."""
    started = time.perf_counter()
    records = list(Federation(from_table(table)))
    seconds = {"rounds": sum(record.seconds for record in records), "all": time.perf_counter() - started}
    return seconds, records[-1].accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--ratio", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=6000, help="in all, dealt evenly")
    asked = parser.parse_args()
    table = settings(asked.sites, asked.ratio, asked.rounds, asked.samples)
    with tempfile.TemporaryDirectory() as folder:
        flower = in_flower(table, Path(folder))
        theirs = read_run(Path(folder) / "run").records[-1].accuracy
    ours, accuracy = in_ours(table)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end=""
    )
    print(f"torch {torch.__version__}, flwr {flwr.__version__}")
    print(
        f"{asked.sites} sites, {asked.ratio:g} of them a round, {asked.rounds} rounds, {asked.samples} samples in all"
    )
    print(f"Flower's simulation engine: {flower['rounds']:.1f} s for the rounds, {flower['all']:.1f} s in all")
    print(f"ours (sequential):          {ours['rounds']:.1f} s for the rounds, {ours['all']:.1f} s in all")
    print(f"ratio, rounds: {flower['rounds'] / ours['rounds']:.1f}; in all: {flower['all'] / ours['all']:.1f}")
    print(f"final accuracy: {theirs:.4f} and {accuracy:.4f}")


if __name__ == "__main__":
    main()
