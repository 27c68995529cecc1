"""Handling of Ctrl-C, also if it is pressed several times."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C, so that pressing it again does not lose what is being saved after the first time."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals and sets handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


@contextmanager
def ending_once() -> Iterator[None]:
    """Let Ctrl-C end the process silently once an interrupted command has saved its work and only waits for threads."""
    try:
        yield
    except SystemExit as ended:
        if ended.code == 130:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise
