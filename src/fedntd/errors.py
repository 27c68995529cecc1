"""The one error a user meets: a sentence that says what is wrong and what to do."""

import difflib
from collections.abc import Collection, Iterable


class FedntdError(Exception):
    """Bad input. The command line prints the sentence and ends with exit code 2."""


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise FedntdError(sentence)


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """
    >>> did_you_mean("fedavgg", ["fedavg", "fedntd"])
    "did you mean 'fedavg'? (valid: fedavg, fedntd)"
    """
    valid = list(valid)
    nearest = difflib.get_close_matches(word, valid, n=1, cutoff=0.4)
    listing = ", ".join(valid)
    return f"did you mean '{nearest[0]}'? (valid: {listing})" if nearest else f"valid: {listing}"


def require_one_of(key: str, value: str, valid: Collection[str]) -> None:
    if value not in valid:  # the nearest is looked for only then, since that takes its time
        raise FedntdError(f"{key} = '{value}' is not known; {did_you_mean(value, valid)}")
