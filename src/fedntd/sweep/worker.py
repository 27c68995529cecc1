"""A process that trains the groups it is given: one line of JSON each on standard input, events on standard output.

When its input ends it saves what is under way and ends too: so it does when the sweep is interrupted, or killed.
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not come between the answers
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
        os._exit(0)  # the state is saved; nothing else is worth the time


if __name__ == "__main__":
    main()
