"""`--on slurm`: write a job array script with one task per group."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedntd.support.files import whole
from fedntd.sweep.folder import working_in

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --output={logs}
#SBATCH --time=24:00:00
# For a GPU or several cores per task, remove one # from these lines:
##SBATCH --gpus=1
##SBATCH --cpus-per-task=4
# Each task trains one group of runs. Submit the script again to resume what is unfinished: no run is trained twice.
cd {here}
exec {python} -P -c 'from fedntd.cli import main; main()' sweep {file} {settings}--out {out} --workers 1 \\
  --part "$SLURM_ARRAY_TASK_ID/{tasks}"
"""


def write_script(file: Path, settings: Sequence[str], out: Path, tasks: int, trust: bool = False) -> Path:
    """Write slurm.sh into the sweep's folder, which all nodes must share."""
    logs = out.resolve() / "logs"
    text = SCRIPT.format(
        name=shlex.quote(file.stem),
        last=tasks - 1,
        tasks=tasks,
        logs=shlex.quote(f"{logs}/".replace("%", "%%") + "%a.log"),
        here=shlex.quote(os.getcwd()),
        python=shlex.quote(sys.executable),
        file=shlex.quote(str(file.resolve())),
        settings="".join(f"--set {shlex.quote(setting)} " for setting in settings) + ("--trust " if trust else ""),
        out=shlex.quote(str(out.resolve())),
    )
    script = out / "slurm.sh"
    with working_in(out, file, alone=False), whole(script) as aside:
        logs.mkdir(exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.chmod(0o755)
    return script
