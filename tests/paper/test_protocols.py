"""`protocol` in a table of settings."""

import pytest

from fedntd import FedntdError
from fedntd.config.presets import configure
from fedntd.config.toml import PROTOCOLS, from_table, to_toml


def test_a_protocol_fills_in_what_is_not_given():
    released, published = (PROTOCOLS[name]["optimiser"]["lr"] for name in ("released", "published"))
    assert (released, configure("cifar10-s2").optimiser.lr) == (0.01, 0.01)
    assert configure("cifar10-s2", ["protocol=published"]).optimiser.lr == published != released
    explicit = configure("cifar10-s2", ["protocol=published", "optimiser.lr=0.02", "optimiser.momentum=0.5"]).optimiser
    assert (explicit.lr, explicit.momentum) == (0.02, 0.5)
    # what is kept is the number: a config has no protocol
    assert "protocol" not in to_toml(configure("cifar10-s2", ["protocol=published"]))
    with pytest.raises(FedntdError, match="protocol = 'publishd' is not known; did you mean 'published'"):
        from_table({"protocol": "publishd"})
    with pytest.raises(FedntdError, match="protocol must be of type str, not 1"):
        from_table({"protocol": 1})
