"""Checks of what a user's method returns, before it is used."""

from typing import Any

from torch import Tensor

from fedntd import tree
from fedntd.errors import FedntdError, require
from fedntd.tree import Weights


def check_loss(loss: Any, name: str) -> None:
    shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
    require(shape == [], f"the loss of algorithm '{name}' must be one number, as batch.mean(...) is, not {shape}")
    require(
        loss.requires_grad,
        f"the loss of algorithm '{name}' does not depend on the model's weights: it has no gradient",
    )


def check_tensors(returned: dict[str, Any], what: str) -> None:
    """Require tensors or nested dicts of tensors: nothing else can be sent or written to a checkpoint."""
    for name, leaf in tree.flatten(returned).items():
        if not isinstance(leaf, Tensor):  # not `require`: formatting every tensor for its message is slow
            raise FedntdError(f"{what} must return tensors, in dicts; {name} is {leaf!r:.40}")


def check_aggregated(returned: Any, before: Weights, name: str) -> None:
    """Require weights of the same names and shapes as before. Others might fail elsewhere, or go unnoticed."""
    what = f"aggregate of algorithm '{name}'"
    require(
        isinstance(returned, tuple) and len(returned) == 2,
        f"{what} must return the new weights and the server's new state",
    )
    check_tensors({"weights": returned[0], "state": returned[1]}, what)
    expected, actual = (
        {key: list(leaf.shape) for key, leaf in tree.flatten({"weights": w}).items()} for w in (before, returned[0])
    )
    for key in expected | actual:
        difference = f"{key} of shape {expected.get(key)}, not {actual.get(key)}"
        require(
            expected.get(key) == actual.get(key),
            f"{what} must return weights of the same names and shapes: {difference}",
        )
