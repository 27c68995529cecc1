import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedntd import Config, FedntdError, configure
from fedntd.algorithms.released import RELEASED
from fedntd.config.presets import TABLE1, preset, released_values
from fedntd.config.registry import Choice
from fedntd.config.schema import with_own_code
from fedntd.config.toml import flat, from_table, read, to_table, to_toml, with_settings
from fedntd.data.partition import PARTITIONS


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"sed": 1}, "unknown key 'sed'; did you mean 'seed'"),
        ({"federation": {"cilents": 10}}, "unknown key 'federation.cilents'; did you mean 'clients'"),
        ({"rounds": 3}, "unknown key 'rounds'; did you mean 'federation.rounds'?"),
        ({"federation": {"lr": 3}}, "unknown key 'federation.lr'; did you mean 'optimiser.lr'?"),
        ({"preset": "demo"}, "'preset' is not a key; name a preset in place of a file"),
        ({"federation": 3}, "'federation' is a section"),
        ({"algorithm": "fedavg"}, "not a single value; one of its keys is algorithm.name"),
        ({"seed": "one"}, "seed must be of type int, not 'one'"),
        ({"seed": True}, "seed must be of type int, not True"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"partition_seed": -1}, "partition_seed must be at least 0"),
        ({"optimiser": {"lr": "fast"}}, "optimiser.lr must be of type float, not 'fast'"),
        ({"data": {"augment": "True"}}, "data.augment must be true or false, not 'True'"),
        ({"algorithm": {"name": "FedNTD"}}, "did you mean 'fedntd'?"),
        ({"epochs": 3}, "unknown key 'epochs'; did you mean 'federation.local_epochs'?"),
        ({"alpha": 0.3}, "unknown key 'alpha'; did you mean 'partition.alpha'?"),  # not of the default partition
        ({"federation": {"mu": 0.3}}, "unknown key 'federation.mu'; did you mean 'algorithm.mu'?"),
        (
            {"algorithm": {"name": "my.nets.Own"}},
            "is not known; of your own, it is written with a colon: 'my.nets:Own'",
        ),
        ({"partition": {"name": "lda0.1"}}, "partition.name = 'lda0.1' is not known; did you mean 'lda'?"),
        ({"federation": {"batch": 3}}, "unknown key 'federation.batch'; did you mean 'federation.batch_size'?"),
        ({"optimiser": {"lr": 0}}, "optimiser.lr must be above 0"),
        ({"optimiser": {"lr": math.inf}}, "optimiser.lr must be a finite number of at most 1e38, not inf"),
        ({"algorithm": {"name": "fedopt", "tau": 1e300}}, "algorithm.tau must be a finite number of at most 1e38"),
        ({"optimiser": {"weight_decay": 10**400}}, "optimiser.weight_decay must be a finite number of at most 1e38"),
        ({"checkpoint_seconds": math.inf}, "checkpoint_seconds must be a finite number of at most 1e38, not inf"),
        (
            {"algorithm": {"name": "fedntd", "beta": math.nan}},
            "algorithm.beta must be a finite number of at most 1e38, not nan",
        ),
        (
            {"model": {"name": "given:net", "scale": -math.inf}},
            "model.scale must be a finite number of at most 1e38, not -inf",
        ),
        ({"optimiser": {"momentum": 1}}, "optimiser.momentum must be at least 0 and below 1"),
        ({"federation": {"ratio": 0}}, "federation.ratio must be above 0 and at most 1, not 0.0; 0.01 trains one"),
        ({"federation": {"rounds": 0}}, "federation.rounds must be at least 1"),
        ({"federation": {"aggregation": "sise"}}, "federation.aggregation = 'sise' is not known; did you mean 'size'"),
        ({"engine": "sequentiell"}, "engine = 'sequentiell' is not known; did you mean 'sequential'"),
        ({"precision": "bf61"}, "precision = 'bf61' is not known; did you mean 'bf16'"),
        ({"algorithm": {"name": "fedntt"}}, "algorithm.name = 'fedntt' is not known; did you mean 'fedntd'"),
        ({"algorithm": {"name": "moon-relesed"}}, "'moon-relesed' is not known; did you mean 'moon-released'"),
        (
            {"algorithm": {"name": "fedntd", "betta": 1}},
            "algorithm.betta is not a setting of algorithm 'fedntd'; did you mean 'beta'",
        ),
        (
            {"algorithm": {"name": "fedavg", "beta": 1}},
            "algorithm.beta is not a setting of algorithm 'fedavg'; it takes none",
        ),
        ({"algorithm": {"name": "fedntd", "tau": 0}}, "algorithm.tau must be above 0, not 0.0"),
        ({"algorithm": {"name": "fedntd", "tau": "hot"}}, "algorithm.tau must be of type float, not 'hot'"),
        (
            {"partition": {"name": "lda", "s": 2}},
            "partition.s is not a setting of partition 'lda'; valid: alpha, min_size",
        ),
        ({"data": {"name": "cifar"}}, "data.name = 'cifar' is not known; did you mean 'cifar10'"),
        ({"data": {"size": 3}}, "unknown key 'data.size'"),
        (
            {"model": {"name": "no.such:Net"}},
            "model.name = 'no.such:Net' cannot be imported: No module named 'no'; it must be a file in the folder",
        ),
        ({"model": {"name": "math:pi"}}, "model.name = 'math:pi' is not a function or class"),
        ({"algorithm": {"name": ":x"}}, "algorithm.name = ':x' is not known; "),
        ({"model": {"name": ".nets:Net"}}, "model.name = '.nets:Net' is not known; "),
        ({"data": {"name": "json:"}}, "data.name = 'json:' is not known; "),
        (
            {"model": {"name": "builtins:int"}},
            "model.name = 'builtins:int' cannot be used: ValueError: no signature found",
        ),
        (
            {"algorithm": {"name": "os:getcwd"}},
            "algorithm.name = 'os:getcwd' is no method: it must be a class derived from",
        ),
        ({"server": {"name": "os:getcwd"}}, "server.name = 'os:getcwd' is no method: it must be a class derived from"),
        ({"robust": {"name": "os:getcwd"}}, "robust.name = 'os:getcwd' is no rule for uploads"),
        ({"measure": {"local_every": -1}}, "measure.local_every must be at least 0"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(table: dict, sentence: str):
    with pytest.raises(FedntdError) as error:
        with_own_code(from_table(table))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_defaults_are_the_papers():
    config = Config()
    f, o = config.federation, config.optimiser
    assert (f.clients, f.ratio, f.rounds, f.local_epochs, f.batch_size) == (100, 0.1, 200, 5, 50)
    assert (o.lr, o.momentum, o.weight_decay, o.decay) == (0.01, 0.9, 1e-5, 0.99)
    assert config.algorithm.options == {"beta": 1.0, "tau": 1.0}


def test_chosen_things_get_their_defaults_and_types():
    config = from_table({"algorithm": {"name": "fedntd", "beta": 2}, "partition": {"name": "lda"}})
    assert config.algorithm.options == {"beta": 2.0, "tau": 1.0}
    assert isinstance(config.algorithm.options["beta"], float)
    assert config.partition.options == {"alpha": 0.1, "min_size": 10}


configs = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 10**6),
        "precision": st.sampled_from(["auto", "fp32", "bf16", "fp64"]),
        "partition_seed": st.integers(0, 99),
        "algorithm": st.one_of(
            st.just({"name": "fedavg"}),
            st.fixed_dictionaries({"name": st.just("fedntd"), "beta": st.floats(0, 10), "tau": st.floats(0.1, 10)}),
        ),
        "data": st.fixed_dictionaries({"path": st.text(max_size=20)}),
        "optimiser": st.fixed_dictionaries({"lr": st.floats(1e-9, 10)}),
    },
)


@given(configs)
def test_written_and_read_it_is_the_same(table: dict):
    config = from_table(table)
    assert from_table(tomllib.loads(to_toml(config))) == config


def test_a_partition_of_ones_own_may_take_tables(monkeypatch: pytest.MonkeyPatch):
    def mine(labels: object, clients: int, rng: object, owners: dict, cuts: list) -> list:
        return []

    monkeypatch.setitem(PARTITIONS, "mine", mine)
    options = {"owners": {"cats & dogs": [1, 2], "rest": {}}, "cuts": [{"at": 0.5, "to": "Ada"}, math.inf]}
    config = from_table({"partition": {"name": "mine", **options}})
    assert from_table(tomllib.loads(to_toml(config))).partition == Choice("mine", options)


def test_settings_from_the_command_line():
    table = with_settings({"federation": {"rounds": 5}}, ["federation.rounds=7", "algorithm.name=fedavg", "seed = 3"])
    assert table == {"federation": {"rounds": 7}, "algorithm": {"name": "fedavg"}, "seed": 3}
    assert with_settings({}, ["optimiser.lr=1e-3"]) == {"optimiser": {"lr": 0.001}}
    assert with_settings({}, ["data.augment=false"]) == {"data": {"augment": False}}
    with pytest.raises(FedntdError, match="--set takes key=value"):
        with_settings({}, ["seed"])
    with pytest.raises(FedntdError, match="'seed' is a single value, not a section"):
        with_settings({"seed": 1}, ["seed.x=1"])


def test_another_choice_does_not_inherit_the_keys_of_the_last():
    table = {"partition": {"name": "sharding", "s": 2}, "data": {"name": "mnist", "augment": False}}
    assert with_settings(table, ["partition.alpha=0.3", "partition.name=lda"])["partition"] == {
        "name": "lda",
        "alpha": 0.3,
    }
    assert with_settings(table, ["partition.s=5"])["partition"] == {"name": "sharding", "s": 5}
    assert with_settings(table, ["data.name=cifar10"])["data"] == {"name": "cifar10", "augment": False}


def test_settings_do_not_change_the_table_they_are_put_into():
    table = {"federation": {"rounds": 5}}
    with_settings(table, ["federation.rounds=7"])
    assert table == {"federation": {"rounds": 5}}


def test_flat_names_every_key():
    keys = flat(Config())
    assert keys["federation.rounds"] == 200
    assert keys["algorithm.beta"] == 1.0
    assert keys["seed"] == 0


def test_a_file_may_be_named_by_a_path(tmp_path: Path):
    (tmp_path / "mine.toml").write_text("seed = 3")
    assert configure(tmp_path / "mine.toml") == configure(str(tmp_path / "mine.toml")) == Config(seed=3)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbfseed = 3")
    assert read(tmp_path / "mine.toml") == {"seed": 3}


def test_unreadable_files(tmp_path: Path):
    with pytest.raises(FedntdError, match="there is no config file"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seed = = 3")
    with pytest.raises(FedntdError, match="is not valid TOML"):
        read(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FedntdError, match="cannot be read"):
        read(tmp_path / "binary.toml")


@pytest.mark.parametrize("name", TABLE1)
def test_presets_have_the_papers_numbers(name: str):
    config = from_table(preset(name))
    dataset, _, split = name.partition("-")
    assert config.data.name == dataset
    assert config.federation.clients == (200 if dataset == "cinic10" else 100)
    assert config.federation.ratio == (0.05 if dataset == "cinic10" else 0.1)
    assert config.federation.local_epochs == (3 if dataset == "mnist" else 5)
    assert config.federation.batch_size == 50
    if split.startswith("s"):
        assert config.partition.options == {"s": int(split[1:])}
    else:
        assert config.partition.options["alpha"] == float(split[3:])


def test_every_column_of_table_1_is_a_preset():
    assert len(TABLE1) == 14
    assert len(set(TABLE1)) == 14


def test_other_presets():
    assert from_table(preset("cifar10-iid")).partition.name == "iid"
    assert from_table(preset("cifar10-s4")).partition.options == {"s": 4}
    with pytest.raises(FedntdError, match=r"'cifar10-s' is neither.*did you mean 'cifar10-s\d+'"):
        preset("cifar10-s")
    with pytest.raises(FedntdError, match="'imagenet-s2' is neither a config file nor a preset"):
        preset("imagenet-s2")


# --- the released code's values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(RELEASED) - {"fednova"}))
def test_a_released_variant_is_its_method_with_those_values(name: str):
    config = configure("demo", [f"algorithm.name={name}-released"])
    plain = {"algorithm.name": name, **{f"algorithm.{key}": value for key, value in released_values(name).items()}}
    assert config == configure("demo", [f"{key}={json.dumps(value)}" for key, value in plain.items()])
    assert config.algorithm.name == name
    assert from_table(to_table(config)) == config  # as the run folder keeps it


def test_values_of_ones_own_go_before_released_ones():
    assert configure("demo", ["algorithm.name=moon-released", "algorithm.tau=2"]).algorithm.options == {
        "mu": 0.1,
        "tau": 2.0,
    }


def test_fednova_released_is_a_method_of_its_own():
    assert released_values("fednova") == {"name": "fednova-released"}
    assert configure("demo", ["algorithm.name=fednova-released"]).algorithm.name == "fednova-released"


def test_what_was_not_released_has_no_such_variant():
    assert released_values("fedlc") == {}
    with pytest.raises(FedntdError, match=r"algorithm\.name = 'fedlc-released' is not known"):
        configure("demo", ["algorithm.name=fedlc-released"])


def test_a_setting_whose_name_the_federation_uses_is_refused():
    with pytest.raises(FedntdError, match="algorithm 'stateful:Mixing' has a setting 'ratio', which is"):
        with_own_code(from_table({"algorithm": {"name": "stateful:Mixing"}}))
