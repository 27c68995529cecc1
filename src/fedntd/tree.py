"""Arithmetic on trees: nested dicts whose leaves are tensors (weights, uploads, client and server state)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Mapping[str, Any]  # values are tensors or trees
Weights = dict[str, Tensor]


def map(f: Callable[..., Tensor], tree: Tree, *rest: Tree) -> dict:
    """Apply `f` leaf by leaf to trees of one shape.

    >>> map(lambda a, b: a + b, {"w": torch.tensor(1)}, {"w": torch.tensor(2)})
    {'w': tensor(3)}
    """
    return {
        key: map(f, leaf, *(other[key] for other in rest))
        if isinstance(leaf, Mapping)
        else f(leaf, *(o[key] for o in rest))
        for key, leaf in tree.items()
    }


def leaves(tree: Tree) -> list[Tensor]:
    """The leaves in the order of their names, since a tree read from a file may have its keys in another order."""
    return [leaf for _, leaf in sorted(flatten(tree).items())]


def add(a: Tree, b: Tree) -> dict:
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> dict:
    return map(torch.sub, a, b)


def scale(factor: float | Tensor, tree: Tree) -> dict:
    return map(lambda leaf: factor * leaf, tree)


def zeros_like(tree: Tree) -> dict:
    return map(torch.zeros_like, tree)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product <a, b>, summed leaf by leaf in the order of names."""
    return torch.stack([(x * y).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]).sum()


def sqnorm(tree: Tree) -> Tensor:
    return dot(tree, tree)


def grad_and_value(f: Callable[[Weights], Tensor], w: Weights) -> tuple[Weights, Tensor]:
    """The gradient of a scalar function of weights, and its value.

    Inside vmap this is torch.func.grad_and_value. Outside, plain autograd gives the same numbers without importing the
    compiler, which would take longer than a short run.

    >>> grad_and_value(lambda w: (w["a"] ** 2).sum(), {"a": torch.tensor([1.0, 3.0])})
    ({'a': tensor([2., 6.])}, tensor(10.))
    """
    if torch._C._are_functorch_transforms_active():
        return torch.func.grad_and_value(f)(w)
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in w.items()}
    with torch.enable_grad():
        value = f(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value.detach()


def stack(trees: Sequence[Tree]) -> dict:
    """Stack trees of one shape into one tree, whose leaves are [client, ...]."""
    return map(lambda *leaves: torch.stack(leaves), trees[0], *trees[1:])


def weighted_mean(stacked: Tree, p: Tensor) -> dict:
    """sum_k p_k tree_k over the leading client axis; `p` sums to 1.

    >>> weighted_mean({"w": torch.tensor([1.0, 3.0]), "steps": torch.tensor([10, 20])}, torch.tensor([0.5, 0.5]))
    {'w': tensor(2.), 'steps': tensor(15.)}
    """

    def mean(leaf: Tensor) -> Tensor:
        shares = p.to(leaf.dtype) if leaf.is_floating_point() else p  # as integers they would be 0
        return (shares.view(-1, *[1] * (leaf.ndim - 1)) * leaf).sum(0)

    return map(mean, stacked)


def copy_(target: Tree, source: Tree) -> None:
    """Copy the leaves of one tree into those of another in place; on a GPU in a few launches."""
    torch._foreach_copy_(leaves(target), leaves(source))  # pyright: ignore[reportPrivateImportUsage]


def all_finite(tree: Tree) -> Tensor:
    """Whether all numbers are finite, as a tensor, so that a GPU is not waited for."""
    return torch.cat([leaf.flatten() for leaf in leaves(tree)]).isfinite().all()


def nbytes(tree: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def flatten(tree: Tree, prefix: str = "") -> Weights:
    """A flat tree, for a file or the network. Nested names are joined by '/', which no parameter name contains.

    >>> flatten({"c": {"fc.weight": torch.tensor(1)}})
    {'c/fc.weight': tensor(1)}
    """
    flat: Weights = {}
    for key, leaf in tree.items():
        if isinstance(leaf, Mapping):
            flat |= flatten(leaf, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = leaf
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> dict:
    """The inverse of `flatten`, except that empty branches are lost.

    >>> unflatten({"c/fc.weight": torch.tensor(1)})
    {'c': {'fc.weight': tensor(1)}}
    """
    tree: dict = {}
    for name, leaf in flat.items():
        *branches, last = name.split("/")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[last] = leaf
    return tree
