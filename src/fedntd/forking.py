"""A traced step (tracing.py) as a trunk and two branches, which a GPU can take side by side.

A backward pass comes to the last layers first. Most weights are there, as a rule, and moving them takes the memory's
time; what is left of the backward pass takes the processors'. So the update of most weights is one branch, the rest of
the pass, with the update of the others, the other.
"""

import copy
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import fx

from fedntd.tracing import extracted, is_mutable, is_view

aten = torch.ops.aten
PRODUCTS = {
    *(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.convolution_backward.default),
    *(torch.ops.fedntd.conv_forward.default, torch.ops.fedntd.conv_weight_gradient.default),
}

# What a trunk hands over is written and read, where one compiled piece may compute it twice instead. In bytes, for each
# that the first branch changes:
MOST_HANDED_OVER = 1.0


class Fork(NamedTuple):
    """`trunk(*inputs)`, then both `branches` of (*inputs, *what the trunk gave), in any order or at once, are what the
    whole was. The axes are those of the clients in what the trunk gives."""

    trunk: fx.GraphModule
    branches: tuple[fx.GraphModule, fx.GraphModule]
    axes: list[int | None]


def forked(module: fx.GraphModule) -> Fork | None:
    """None if there is nothing to be gained, or if it is not clear what the step changes when."""
    graph = module.graph
    changes = [node for node in graph.nodes if is_mutable(node)]
    if not all(is_last_use(change) for change in changes):
        return None
    early = early_changes(graph)
    late = set(changes) - early
    if not early or not late:
        return None
    serves: dict[fx.Node, set[fx.Node]] = {}  # the changes that need a node
    for node in reversed(graph.nodes):
        serves[node] = {node} if is_mutable(node) else set().union(*(serves[user] for user in node.users))
    trunk: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or is_free(node) or is_mutable(node):
            continue
        others = set() if serves[node] & early and serves[node] & late else late if serves[node] <= early else early
        changed = {change.all_input_nodes[0] for change in others}
        # what both need, what must be read before the other branch changes it, and what these need
        if not others or not changed.isdisjoint(read_by(node)) or not trunk.isdisjoint(users_of(node)):
            trunk.add(node)
    # several results leave it one by one
    trunk |= {node for node in graph.nodes if node.target is operator.getitem and node.args[0] in trunk}
    given = [node for node in graph.nodes if node in trunk and not trunk.issuperset(users_of(node))]
    if sum(map(size_of, given)) > MOST_HANDED_OVER * sum(map(size_of, early)):
        return None
    branches = branch(module, early, given), branch(module, late, given)
    return Fork(extracted(module, given), branches, [node.meta.get("axis") for node in given])


def is_last_use(change: fx.Node) -> bool:
    """Whether it writes to an input that nothing reads afterwards."""
    if change.target is not aten.copy_.default or change.users:
        return False
    target = change.all_input_nodes[0]
    return target.op == "placeholder" and all(user <= change for user in users_of(target))


def early_changes(graph: fx.Graph) -> set[fx.Node]:
    """Those that wait for the fewest products, one after the other: the first that are at least half of all bytes."""
    waits_for: dict[fx.Node, int] = {}
    for node in graph.nodes:
        before = max((waits_for[source] for source in node.all_input_nodes), default=0)
        waits_for[node] = before + (node.target in PRODUCTS)
    changes = sorted((node for node in graph.nodes if is_mutable(node)), key=waits_for.__getitem__)
    sums = list(accumulate(map(size_of, changes)))
    most = next((waits_for[c] for c, size in zip(changes, sums, strict=True) if 2 * size >= sums[-1]), 0)
    return {change for change in changes if waits_for[change] <= most}


def size_of(node: fx.Node) -> int:
    """In bytes; of a change, what it writes."""
    return (node.all_input_nodes[1] if is_mutable(node) else node).meta["val"].nbytes


def is_free(node: fx.Node) -> bool:
    """Whether it costs nothing to have it in each part: a view, or a number that sizes are made of."""
    return is_view(node) or not isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def read_by(node: fx.Node) -> set[fx.Node]:
    """The inputs that it reads, be it through views."""
    found = set()
    for source in node.all_input_nodes:
        found |= {source} if source.op == "placeholder" else read_by(source) if is_free(source) else set()
    return found


def users_of(node: fx.Node) -> set[fx.Node]:
    """Those that read it, be it through views."""
    found = set()
    for user in node.users:
        found |= users_of(user) if is_free(user) else {user}
    return found


def branch(module: fx.GraphModule, changes: set[fx.Node], given: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy that makes only these changes, and takes what is given as further inputs."""
    part, kept = copy.deepcopy(module), {change.name for change in changes}
    graph = part.graph
    by_name = {node.name: node for node in graph.nodes}
    after = graph.find_nodes(op="placeholder")[-1]
    for node in given:
        with graph.inserting_after(after):
            after = graph.placeholder(f"given_{node.name}")
        by_name[node.name].replace_all_uses_with(after)
    for node in by_name.values():
        if is_mutable(node) and node.name not in kept:
            graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_mutable(node))
    graph.lint()
    part.recompile()
    return part
