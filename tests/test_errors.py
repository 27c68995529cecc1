import pickle
from pathlib import Path

import pytest

from fedntd import FedntdError, configure
from fedntd.config.schema import with_own_code
from fedntd.errors import KEY, require_known
from fedntd.runs.reader import Damaged


def error_of(*settings: str) -> FedntdError:
    with pytest.raises(FedntdError) as raised:
        with_own_code(configure("demo", settings))
    return raised.value


def test_the_key_is_told_where_the_sentence_has_it_or_first():
    assert str(FedntdError("the disk is full")) == "the disk is full"
    assert str(FedntdError("must be at least 0", "seed")) == "seed must be at least 0"
    assert str(FedntdError(f"there is nothing; {KEY} must name a file", "data.path")) == (
        "there is nothing; data.path must name a file"
    )


@pytest.mark.parametrize(
    ("setting", "key", "value", "suggestions"),
    [
        ("seed=-1", "seed", None, []),
        ("seed=one", "seed", "one", []),
        ("engine=vectorized", "engine", "vectorized", ["vectorised"]),
        ("algorithm.name=fedntdd", "algorithm.name", "fedntdd", ["fedntd"]),
        ("algorithm.name=nowhere:Thing", "algorithm.name", "nowhere:Thing", []),
        ("algorithm.beta=-1", "algorithm.beta", None, []),
        ("algorithm.betta=1", "algorithm.betta", "betta", ["beta"]),
        ("rounds=3", "rounds", 3, ["federation.rounds"]),
    ],
)
def test_an_error_about_a_setting_says_which(setting: str, key: str, value: object, suggestions: list[str]):
    error = error_of(setting)
    assert (error.key, error.value, [*error.suggestions]) == (key, value, suggestions)
    assert key in str(error)


OWN_RULE = """
from dataclasses import dataclass
from fedntd import FedAvg
from fedntd.errors import require

@dataclass(frozen=True)
class Rule(FedAvg):
    damping: float = -1.0

    def __post_init__(self) -> None:
        require(self.damping >= 0, "is not an algorithm.name: it must be at least 0", "algorithm.damping")
"""


def test_a_rule_for_the_server_is_told_of_in_its_own_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_rule.py").write_text(OWN_RULE)
    monkeypatch.syspath_prepend(tmp_path)
    error = error_of("server.name=own_rule:Rule")
    assert error.key == "server.damping"
    # nothing but the key is changed in what it says
    assert str(error) == "server.damping is not an algorithm.name: it must be at least 0"


def test_an_error_is_the_same_on_the_other_side_of_a_pipe():
    with pytest.raises(FedntdError) as raised:
        require_known("fedntdd", ["fedavg", "fedntd"], "is not known", "algorithm.name")
    for error in (raised.value, Damaged("status.json is damaged")):
        other = pickle.loads(pickle.dumps(error))
        assert str(other) == str(error)
        assert vars(other) == vars(error)
