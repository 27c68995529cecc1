"""The error that users see: one sentence that says what is wrong and what to do."""

import difflib
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

# Folders without code of the user: this package, the standard library, installed packages.
OTHERS = (str(Path(__file__).parent), sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}
KEY = "\0key"  # placeholder for an error's key in its sentence


class FedntdError(Exception):
    """Bad input. The command line prints the sentence and ends with exit code 2.

    An error about a setting has its `key`, and if known its `value` and `suggestions` for another one. The key replaces
    KEY in the sentence; without KEY, it is put before the sentence.

    >>> print(FedntdError("must be at least 0, not -1", "seed"))
    seed must be at least 0, not -1
    """

    def __init__(self, sentence: str = "", key: str = "", value: Any = None, suggestions: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.key, self.value, self.suggestions = key, value, suggestions

    def __str__(self) -> str:
        sentence = super().__str__()
        if self.key and KEY not in sentence:
            return f"{self.key} {sentence}"
        return sentence.replace(KEY, self.key)

    def in_section(self, section: str) -> Self:
        """Set the section of the key, for settings that can be in several sections of a config."""
        if self.key:
            self.key = f"{section}.{self.key.rpartition('.')[2]}"
        return self


class Diverged(FedntdError):
    """The weights of a run are no longer finite."""


def require(condition: bool, sentence: str, key: str = "") -> None:
    """Raise `FedntdError` unless the condition holds. `key` is the setting that the sentence is about."""
    if not condition:
        raise FedntdError(sentence, key)


def require_known(word: str, valid: Iterable[str], sentence: str, key: str = "") -> None:
    """Raise `FedntdError` with suggestions unless the word is valid."""
    if word not in (valid := list(valid)):  # only then search for suggestions, which takes time
        raise FedntdError(f"{sentence}; {did_you_mean(word, valid)}", key, word, nearest(word, valid))


def require_one_of(key: str, value: str, valid: Collection[str]) -> None:
    """Raise `FedntdError` with suggestions unless the setting's value is valid."""
    require_known(value, valid, f"= '{value}' is not known", key)


def reason(error: Exception) -> str:
    """An error in the user's code in one line, with the line of their code where it happened."""
    first_line = next(iter(str(error).splitlines()), "")
    sentence = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return f"{sentence} ({theirs})" if (theirs := line_of_theirs(error)) else sentence


def line_of_theirs(error: Exception) -> str:
    """The innermost line of the user's code in an error's traceback; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        f for f in frames if not f.filename.startswith((*OTHERS, "<")) and not INSTALLED & {*Path(f.filename).parts}
    ]
    return f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}" if theirs else ""


def told(error: Exception) -> str:
    """An error as the command line prints it. A bug in this package is raised again, with its traceback."""
    if isinstance(error, FedntdError):
        return str(error)
    if line_of_theirs(error):
        # vmap's errors have no class of their own; recognise them by their message
        instead = "; engine = 'sequential' can run it" if "vmap" in str(error) else ""
        return f"code of your own failed: {reason(error)}{instead}"
    if isinstance(error, OSError):  # from the system: a disk is full, a file may not be read
        return str(error)
    raise error


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """The nearest valid word, if there is one, and all valid words.

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
    listing, meant = ", ".join(valid), nearest(word, valid)
    return f"did you mean '{meant[0]}'? (valid: {listing})" if meant else f"valid: {listing}"


def nearest(word: str, valid: Sequence[str]) -> list[str]:
    """The valid words that `word` may stand for, else the most similar one, if any is similar."""
    same = [v for v in valid if v.endswith(f".{word}") or v == f"{word}.name" or v.lower() == word.lower()]
    return same or difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
