"""A step as a trunk and two branches: whichever branch comes first, it is the same step."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx

from fedntd import tracing
from fedntd.forking import Fork, forked

BATCH, INPUTS, HIDDEN, OUTPUTS = 2, 3, 4, 32  # most weights are in the last layer
X = torch.randn(BATCH, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def two_layers(first: Tensor, last: Tensor, x: Tensor) -> None:
    """A step along the gradient of sum(tanh(x first) last)² / 2, worked out by hand."""
    hidden = (x @ first).tanh()
    dy = hidden @ last
    dx = (dy @ last.T) * (1 - hidden**2)
    first_gradient, last_gradient = x.T @ dx, hidden.T @ dy
    first.copy_(first - 0.1 * first_gradient)
    last.copy_(last - 0.1 * last_gradient)


def weights(seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=rng) for shape in ((INPUTS, HIDDEN), (HIDDEN, OUTPUTS))]


def fork_of(step: Callable[..., None]) -> Fork | None:
    return forked(tracing.traced(step, [*weights(0), X]))


def operations(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@given(st.booleans(), st.integers(0, 10))
def test_branches_in_any_order_are_the_whole_step(late_first: bool, seed: int):
    fork = fork_of(two_layers)
    assert fork is not None
    expected, found = weights(seed), weights(seed)
    two_layers(expected[0], expected[1], X)
    shared = fork.trunk(*found, X)
    assert all(torch.equal(a, b) for a, b in zip(found, weights(seed), strict=True))  # the trunk changes nothing
    for branch in fork.branches[:: -1 if late_first else 1]:
        branch(*found, X, *shared)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-15)


def test_most_weights_are_updated_beside_the_rest_of_the_backward_pass():
    """The last layer's gradient and update are one branch. The other must not read its weights any more: the product
    with them, dy lastᵀ, is in the trunk."""
    fork = fork_of(two_layers)
    assert fork is not None
    products = [sum(name == "aten.mm.default" for name in operations(part)) for part in (fork.trunk, *fork.branches)]
    assert products == [3, 1, 1]
    assert operations(fork.trunk).count("aten.copy_.default") == 0
    first, last = weights(1)
    shared = fork.trunk(first, last, X)
    fork.branches[0](first, last, X, *shared)
    assert torch.equal(first, weights(1)[0])
    assert not torch.equal(last, weights(1)[1])


def test_a_step_of_one_piece_is_not_forked():
    def one_layer(first: Tensor, last: Tensor, x: Tensor) -> None:
        last.copy_(last - 0.1 * last)

    assert fork_of(one_layer) is None


def reads_what_it_changed(first: Tensor, last: Tensor, x: Tensor) -> None:
    two_layers(first, last, x)
    first.copy_(first + last.sum())


def changes_on_the_way(first: Tensor, last: Tensor, x: Tensor) -> None:
    hidden = x @ first
    hidden.tanh_()
    first.copy_(first - x.T @ (hidden @ last @ last.T))
    last.copy_(last - hidden.T @ (hidden @ last))


@pytest.mark.parametrize("step", [reads_what_it_changed, changes_on_the_way])
def test_a_step_whose_changes_depend_on_their_order_is_not_forked(step: Callable[..., None]):
    assert fork_of(step) is None


def test_a_step_that_would_hand_over_more_than_it_changes_is_not_forked():
    many = torch.randn(100 * OUTPUTS, INPUTS, dtype=torch.float64)
    assert forked(tracing.traced(two_layers, [*weights(0), many])) is None
