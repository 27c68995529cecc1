"""Ctrl-C, pressed once or many times."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Further Ctrl-C's do nothing for the moment: who presses it again shall not lose what the first one saves."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted, and may say how
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


@contextmanager
def ending_once() -> Iterator[None]:
    """When an interrupted command has saved and said all, only threads are waited for: the next Ctrl-C ends the process
    without a word."""
    try:
        yield
    except SystemExit as ended:
        if ended.code == 130:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise
