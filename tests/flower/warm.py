"""`flwr-clientapp` without the seconds in which it imports Flower and PyTorch.

Flower starts this command anew for every message to a site, which is most of the time that a real federation takes in
tests. Here the command of that name asks a process that has imported them already for a fork of itself, and the fork
does what the command does: it calls Flower's own function, with the command's arguments, environment, folder and
output. A site that has its own code (PYTHONPATH) gets the command itself.
"""

import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

COMMAND = """\
#!{python} -IS
import json, os, socket, sys
if os.environ["PYTHONPATH"] != {path!r}:
    os.execv({command!r}, sys.argv)
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [1, 2])
    server.sendall(json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode())
    server.shutdown(socket.SHUT_WR)
    server.recv(1)  # until the fork has ended
"""


def write_command(folder: Path, path: str) -> None:
    """Into a folder that comes first on the sites' PATH; `path` is the PYTHONPATH of most of them."""
    folder.mkdir()
    name, python = "flwr-clientapp", Path(sys.executable)
    words = {"path": path, "command": str(python.parent / name), "address": str(folder / "socket")}
    (folder / name).write_text(COMMAND.format(python=python, **words))
    (folder / name).chmod(0o755)


def wait_for_calls(folder: Path) -> socket.socket:
    """Returns in the forks alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended need no farewell
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        server.listen()
        print("ready", flush=True)
        while True:
            call, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return call
            call.close()


def take_the_place_of(call: socket.socket) -> None:
    _, outputs, _, _ = socket.recv_fds(call, 1, 2)
    with call.makefile("rb") as rest:
        sys.argv, environment, folder = json.load(rest)
    for ours, theirs in zip((1, 2), outputs, strict=True):
        os.dup2(theirs, ours)
        os.close(theirs)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


if __name__ == "__main__":
    from flwr.supernode.cli import flwr_clientapp

    import fedntd.flower.client_app
    import fedntd.flower.server_app  # noqa: F401

    gc.freeze()  # the collector would copy into each fork what all of them share
    call = wait_for_calls(Path(sys.argv[1]))
    take_the_place_of(call)
    with suppress(SystemExit):  # Flower does not ask how the command ended, only for its answer
        flwr_clientapp()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking the interpreter apart would take longer than all the rest
