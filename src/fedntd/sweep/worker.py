"""A worker process: reads groups from standard input, one line of JSON each, and writes events to standard output.

When its input ends, because the sweep was interrupted or killed, it saves the state of its runs and exits.
"""

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

from fedntd.sweep.execute import from_line, reason_of, train_group


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start processes with SIGINT ignored
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output goes to stderr, so that stdout has only events
    groups: queue.SimpleQueue[list[dict[str, Any]] | None] = queue.SimpleQueue()
    busy, ended = threading.Event(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            groups.put(json.loads(line))
        ended.set()
        groups.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    def answer(event: dict[str, Any]) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    threading.Thread(target=listen, daemon=True).start()
    try:
        for group in iter(groups.get, None):
            busy.set()
            if ended.is_set():
                break
            try:
                for event in train_group([from_line(line) for line in group]):
                    answer(event)
            except Exception as error:
                answer({"broken": reason_of(error)})
            else:
                busy.clear()
                answer({"done": True})
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)  # the state is saved; skip the slow shutdown


if __name__ == "__main__":
    main()
