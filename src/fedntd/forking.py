"""A traced step (tracing.py) as a trunk and two branches, which a GPU can take side by side.

A backward pass comes to the last layers first. Most weights are there, as a rule, and moving them takes the memory's
time; what is left of the backward pass takes the processors'. So the update of most weights is one branch, the rest of
the pass, with the update of the others, the other. That forks once more: a single client's convolutions do not fill a
GPU, and the gradients of two layers' weights do not wait for each other.

A step computes, and then writes to some of its inputs: its changes. Neither branch may read an input that the other
one changes, so whatever does so is in the trunk, as is what both need.
"""

import copy
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, fx

from fedntd.tracing import extracted, is_mutable, is_number, is_view

aten = torch.ops.aten
PRODUCTS = {
    *(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.convolution_backward.default),
    *(torch.ops.fedntd.conv_forward.default, torch.ops.fedntd.conv_weight_gradient.default),
}

# What a trunk hands over is written and read, where one compiled piece may compute it twice instead, unless a product
# gives or takes it. In bytes, for each that the first branch changes:
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
    changes = {node for node in graph.nodes if is_mutable(node)}
    (end,) = graph.find_nodes(op="output")
    if end.all_input_nodes or not all(map(comes_last, changes)):
        return None
    early = early_changes(changes, graph)
    late = changes - early
    if not early or not late:
        return None
    trunk = trunk_of(graph, early, late)
    handed_over = [node for node in graph.nodes if node in trunk and not users_of(node) <= trunk]
    if sum(size_of(node) for node in handed_over if not meets_product(node)) > MOST_HANDED_OVER * sum(
        map(size_of, early)
    ):
        return None
    branches = branch(module, early, handed_over), branch(module, late, handed_over)
    return Fork(extracted(module, handed_over), branches, [node.meta.get("axis") for node in handed_over])


def comes_last(change: fx.Node) -> bool:
    """Whether it writes to an input that nothing reads afterwards; and not what another input is."""
    if change.target is not aten.copy_.default or change.users:
        return False
    target = change.all_input_nodes[0]
    return read_by(change) == {target} and all(user <= change for user in users_of(target))


def early_changes(changes: set[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """Those that wait for the fewest products, one after the other: the first that are at least half of all bytes."""
    waits_for: dict[fx.Node, int] = {}
    for node in graph.nodes:
        before = max((waits_for[source] for source in node.all_input_nodes), default=0)
        waits_for[node] = before + (node.target in PRODUCTS)
    ordered = sorted(changes, key=waits_for.__getitem__)
    sums = list(accumulate(map(size_of, ordered)))
    most = next((waits_for[c] for c, size in zip(ordered, sums, strict=True) if 2 * size >= sums[-1]), 0)
    return {change for change in changes if waits_for[change] <= most}


def trunk_of(graph: fx.Graph, early: set[fx.Node], late: set[fx.Node]) -> set[fx.Node]:
    """What both branches need, what one must read before the other changes it, and all that these need."""
    needed_by: dict[fx.Node, set[str]] = {}  # which branches
    for node in reversed(graph.nodes):
        by_users = set().union(*(needed_by[user] for user in node.users))
        needed_by[node] = {"early"} if node in early else {"late"} if node in late else by_users
    # by a branch: what the other one changes
    changed = {name: {c.all_input_nodes[0] for c in other} for name, other in (("early", late), ("late", early))}
    trunk: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or is_free(node) or is_mutable(node):
            continue
        in_danger = any(changed[name] & read_by(node) for name in needed_by[node])
        if len(needed_by[node]) == 2 or in_danger or users_of(node) & trunk:
            trunk.add(node)
    # several results leave the trunk one by one
    return trunk | {node for node in graph.nodes if node.target is operator.getitem and node.args[0] in trunk}


def size_of(node: fx.Node) -> int:
    """In bytes; of a change, what it writes."""
    return (node.all_input_nodes[1] if is_mutable(node) else node).meta["val"].nbytes


def meets_product(node: fx.Node) -> bool:
    """Whether it has to be in memory in any case."""
    source = node.args[0] if node.target is operator.getitem else node
    return any(isinstance(each, fx.Node) and each.target in PRODUCTS for each in (source, *users_of(node)))


def is_free(node: fx.Node) -> bool:
    """Whether it costs nothing to have it in each part."""
    return is_view(node) or is_number(node)


def read_by(node: fx.Node) -> set[fx.Node]:
    """The inputs that it reads, be it through views."""
    found = set()
    for source in node.all_input_nodes:
        found |= {source} if source.op == "placeholder" else read_by(source) if is_view(source) else set()
    return found


def users_of(node: fx.Node) -> set[fx.Node]:
    """Those that read it, be it through views; to ask for its size is not to read it."""
    found = set()
    for user in node.users:
        found |= users_of(user) if is_view(user) else set() if is_number(user) else {user}
    return found


def branch(module: fx.GraphModule, changes: set[fx.Node], given: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy that makes only these changes, and takes what is given as further inputs."""
    graph, kept = copy.deepcopy(module.graph), {change.name for change in changes}
    by_name = {node.name: node for node in graph.nodes}
    after = graph.find_nodes(op="placeholder")[-1]
    for node in given:
        with graph.inserting_after(after):
            after = graph.placeholder(f"given_{node.name}")
        after.meta = dict(node.meta)
        by_name[node.name].replace_all_uses_with(after)
    for node in by_name.values():
        if is_mutable(node) and node.name not in kept:
            graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_mutable(node))
    graph.lint()
    return fx.GraphModule(module, graph)  # with the same constants


def apart(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results, copied where they are inputs: compiled code gives the other factor itself for a product with ones,
    and one branch would change what the other is about to read."""
    places = {leaf.untyped_storage().data_ptr() for leaf in inputs}
    return [leaf.clone() if leaf.untyped_storage().data_ptr() in places else leaf for leaf in results]
