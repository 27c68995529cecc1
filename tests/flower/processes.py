"""Real Flower processes on this machine: a SuperLink, SuperNodes, `flwr run`, each in a process group of its own; and
what the same federation gives in simulation."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch
from warm import write_command
from world import TABLE

from fedntd import Federation
from fedntd.cli import app as commands
from fedntd.config.toml import from_table
from fedntd.runs.record import load_checkpoint
from fedntd.tree import flatten

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SOURCE = HERE.parent.parent / "src"
PATHS = os.pathsep.join([str(SOURCE), str(HERE)])
PATIENCE = 600  # seconds to wait for anything, on a machine that is busy with other things


def fedntd(*arguments: str) -> None:
    """The command, without a process of its own: those that the guide names are run as such by its test."""
    commands(arguments, standalone_mode=False)


class Process:
    """A command with its output in a file."""

    def __init__(self, command: list[str], output: Path, **environment: str) -> None:
        self.output = output
        self.start = output.stat().st_size if output.exists() else 0
        settings = {
            "PYTHONPATH": PATHS,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        with output.open("ab") as file:
            self.popen = subprocess.Popen(
                command,
                cwd=output.parent,
                env=os.environ | settings | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """What it has printed, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.output.read_bytes()[self.start :].decode(errors="replace"))

    def wait_for(self, text: str) -> None:
        wait(lambda: text in self.text() or not self.running(), f"'{text}' in {self.output}:\n", self.text)
        assert text in self.text(), self.text()

    def running(self) -> bool:
        return self.popen.poll() is None

    def stop(self) -> None:
        """Ask it to end."""
        os.kill(self.popen.pid, signal.SIGTERM)
        self.popen.wait(PATIENCE)

    def kill(self) -> None:
        """It and all processes that it started, at once."""
        if self.running():
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()


def wait(until: Callable[[], bool], what: str, more: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, f"waited in vain for {what}{more()}"
        time.sleep(0.2)


def reserved_port() -> int:
    """A port that nobody else is given before a process told to listen there does, seconds later.

    A connection that its server has closed keeps the port waiting for a minute: the system hands it to no one that
    asks for any free port, and gives it to a server that asks for it by number."""
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
        server.accept()[0].close()
        return server.getsockname()[1]


class RealFederation:
    """A folder with keys for some sites, and the processes of a SuperLink with TLS and node authentication."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.folder, self.port = folder, reserved_port()
        self.keys = folder / "keys"
        self.processes: list[Process] = []
        fedntd("flower", "keys", str(self.keys), "--sites", str(keys))
        (folder / "home").mkdir()
        (folder / "home/config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.keys}/ca.crt"\n'
        )
        self.sites: dict[int, Process] = {}
        write_command(folder / "warm", PATHS)
        warm = self.spawn("warm", "python", f"{HERE}/warm.py", f"{folder}/warm", FLWR_HOME=f"{folder}/home-warm")
        self.start_link()
        warm.wait_for("ready")

    def spawn(self, name: str, *command: str, **environment: str) -> Process:
        program = str(BIN / command[0])
        self.processes.append(Process([program, *command[1:]], self.folder / f"{name}.log", **environment))
        return self.processes[-1]

    def start_link(self) -> None:
        tls = [f"--ssl-{what}={self.keys}/{file}" for what, file in TLS.items()]
        flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        where = ["--port", str(self.port), "--database", str(self.folder / "link.db")]
        self.link = self.spawn("link", "flower-superlink", *tls, *flags, *where, FLWR_HOME=str(self.folder / "home"))
        wait(self.answers, f"the SuperLink:\n{self.link.text()}")

    def answers(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def register(self, *sites: int) -> None:
        """Let these sites in."""
        for k in sites:
            self.flwr("supernode", "register", str(self.keys / f"site-{k}.pub"))

    def start_site(self, k: int, environment: dict[str, str] | None = None, **config: Any) -> None:
        """The SuperNode of site k, with its own home."""
        said = {"partition-id": k, **config}
        node = " ".join(f"{key}={json.dumps(value)}" for key, value in said.items())
        tls = {"root-certificates": "ca.crt", "auth-supernode-private-key": f"site-{k}"}
        files = [f"--{what}={self.keys}/{file}" for what, file in tls.items()]
        self.sites[k] = self.start_node(f"site-{k}", *files, "--node-config", node, **(environment or {}))

    def start_node(self, name: str, *arguments: str, **environment: str) -> Process:
        where = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(reserved_port())]
        path = f"{self.folder}/warm{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
        own = {"FLWR_HOME": str(self.folder / f"home-{name}"), "PATH": path}
        return self.spawn(name, "flower-supernode", *where, *arguments, **own | environment)

    def flwr(self, *arguments: str) -> str:
        """A command of `flwr` that ends by itself."""
        done = self.spawn("flwr", "flwr", *arguments, FLWR_HOME=str(self.folder / "home"))
        assert done.popen.wait(PATIENCE) == 0, done.text()
        return done.text()

    def app(self, name: str, sections: dict[str, Any], **flower: Any) -> Path:
        """A new app with the settings of the test world and these, its run folder beside it."""
        folder = self.folder / name
        fedntd("flower", "new", str(folder))
        text = (folder / "pyproject.toml").read_text()
        settings = {k: {**v, **sections.get(k, {})} if isinstance(v, dict) else v for k, v in TABLE.items()}
        settings |= {k: v for k, v in sections.items() if k not in settings or not isinstance(v, dict)}
        settings["flower"] = {"out": str(self.folder / f"run-{name}"), **flower}
        head = text[: text.index("[tool.flwr.app.config]")]
        (folder / "pyproject.toml").write_text(head + tomli_w.dumps({"tool": {"flwr": {"app": {"config": settings}}}}))
        return folder

    def run(self, app: Path) -> Process:
        """Start training; the output is that of the coordinator."""
        return self.spawn(f"run-{app.name}", "flwr", "run", str(app), "--stream", FLWR_HOME=str(self.folder / "home"))

    def kill_server_app(self) -> None:
        """The coordinator's own process, which goes on without its SuperLink."""
        kill_strays(self.folder, "flwr-serverapp")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        kill_strays(self.folder)


def kill_strays(folder: Path, command: str = "") -> None:
    """Processes with their Flower home in this folder, which Flower started in groups of their own."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            of_ours = f"FLWR_HOME={folder}/".encode() in (entry / "environ").read_bytes()
            if of_ours and command.encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


TLS = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}


def faulty(app: Path) -> Path:
    """The app with the sites of world.py, which can be told to go wrong."""
    (app / app.name.replace("-", "_") / "site.py").write_text(
        "import world\n\nclient = world.client\nserver = world.server\n"
    )
    return app


# --- in simulation ----------------------------------------------------------------------------------------------


def simulated(**sections: Any) -> Federation:
    table = {k: {**v, **sections.get(k, {})} if isinstance(v, dict) else v for k, v in TABLE.items()}
    federation = Federation(from_table(table))
    list(federation)
    return federation


def assert_same_weights(run: Path, federation: Federation) -> None:
    state = load_checkpoint(run / "checkpoint.safetensors", torch.device("cpu"))
    ours = flatten({"w": state.w, "server": state.server})
    theirs = flatten({"w": federation.state.w, "server": federation.state.server})
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-6
