"""The one error a user meets: a sentence that says what is wrong and what to do."""

import difflib
import sysconfig
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path

# where no line of the user's own is: this package, installed ones, Python's own
OTHERS = (str(Path(__file__).parent), sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}


class FedntdError(Exception):
    """Bad input. The command line prints the sentence and ends with exit code 2."""


class Diverged(FedntdError):
    """The weights of a run are no longer finite."""


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise FedntdError(sentence)


def reason(error: Exception) -> str:
    """What went wrong in code of the user's own, in one line, and which line of theirs it was."""
    first_line = next(iter(str(error).splitlines()), "")
    sentence = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return f"{sentence} ({theirs})" if (theirs := line_of_theirs(error)) else sentence


def line_of_theirs(error: Exception) -> str:
    """The last line of the user's own that led to an error; empty if none did."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        f for f in frames if not f.filename.startswith((*OTHERS, "<")) and not INSTALLED & {*Path(f.filename).parts}
    ]
    return f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}" if theirs else ""


def told(error: Exception) -> str:
    """An error as the command line tells it. A mistake of this package's own is raised again, with all there is to know
    about it."""
    if isinstance(error, FedntdError):
        return str(error)
    if line_of_theirs(error):
        instead = "; engine = 'sequential' can run it" if "vmap" in str(error) else ""
        return f"code of your own failed: {reason(error)}{instead}"
    if isinstance(error, OSError):  # the system's doing: a disk is full, a file may not be read
        return str(error)
    raise error


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """
    >>> did_you_mean("fedavgg", ["fedavg", "fedntd"])
    "did you mean 'fedavg'? (valid: fedavg, fedntd)"
    >>> did_you_mean("lr", ["seed", "optimiser.lr"])  # as tables and folders name it
    "did you mean 'optimiser.lr'? (valid: seed, optimiser.lr)"
    >>> did_you_mean("FedNTD", ["fedavg", "fedntd"])  # as papers write it
    "did you mean 'fedntd'? (valid: fedavg, fedntd)"
    >>> did_you_mean("algorithm", ["algorithm.t", "algorithm.name"])
    "did you mean 'algorithm.name'? (valid: algorithm.t, algorithm.name)"
    >>> did_you_mean("warm", ["fedavg", "fedsam"])  # like none of them
    'valid: fedavg, fedsam'
    """
    valid = list(valid)
    nearest = [one for one in valid if one.endswith(f".{word}") or one == f"{word}.name" or one.lower() == word.lower()]
    nearest = nearest or difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    listing = ", ".join(valid)
    return f"did you mean '{nearest[0]}'? (valid: {listing})" if nearest else f"valid: {listing}"


def require_one_of(key: str, value: str, valid: Collection[str]) -> None:
    if value not in valid:  # the nearest is looked for only then, since that takes its time
        raise FedntdError(f"{key} = '{value}' is not known; {did_you_mean(value, valid)}")
