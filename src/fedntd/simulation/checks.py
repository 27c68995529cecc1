"""What a method of the user's own returns, checked before it is used."""

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
        f"the loss of algorithm '{name}' does not depend on the model's weights: it has no gradient to go along",
    )


def check_tensors(found: dict[str, Any], what: str) -> None:
    """Or nested dicts of them: all else can neither be sent nor written into a checkpoint."""
    for name, leaf in tree.flatten(found).items():
        if not isinstance(leaf, Tensor):  # to write a tensor out would take longer than to train it
            raise FedntdError(f"{what} must return tensors, in dicts; {name} is {leaf!r:.40}")


def check_aggregated(made: Any, before: Weights, name: str) -> None:
    """Weights that lack some or have other shapes would be trained with nonetheless, or fail somewhere else."""
    what = f"aggregate of algorithm '{name}'"
    require(
        isinstance(made, tuple) and len(made) == 2, f"{what} must return the new weights and the server's new state"
    )
    check_tensors({"weights": made[0], "state": made[1]}, what)
    then, now = (
        {key: list(leaf.shape) for key, leaf in tree.flatten({"weights": w}).items()} for w in (before, made[0])
    )
    for key in then | now:
        told = f"{key} of shape {then.get(key)}, not {now.get(key)}"
        require(then.get(key) == now.get(key), f"{what} must return weights of the same names and shapes: {told}")
