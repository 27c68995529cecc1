"""The environment of a run: versions, device, commit."""

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch


def environment(device: torch.device) -> dict[str, Any]:
    """The content of a run folder's `environment.json`."""
    from fedntd import __version__

    on_gpu = device.type == "cuda"
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "fedntd": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({platform.machine()})",
        "cores": os.cpu_count(),
    }


def commit() -> str | None:
    """The git commit of the source tree that fedntd runs from; None if it is installed."""
    tree = Path(__file__).parents[3]
    with suppress(OSError, subprocess.SubprocessError):
        if (tree / ".git").exists():
            command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return None
