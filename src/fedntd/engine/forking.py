"""A traced step (tracing.py) as a trunk and branches, which a GPU can take side by side.

A backward pass comes to the last layers first. Most weights are there, as a rule, and moving them takes the memory's
time; what is left of the backward pass takes the processors'. So the update of most weights is one branch, the rest of
the pass, with the update of the others, another. That forks once more: a single client's convolutions do not fill a
GPU, and the gradients of two layers' weights do not wait for each other. Small changes on the way, such as those of
biases, are a third branch, so that neither of the two has to wait for them.

A step computes, and then writes to some of its inputs: its changes. No branch may read an input that another one
changes, so whatever does so is in the trunk, as is what several need.
"""

import copy
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, fx

from fedntd.engine.tracing import extracted, is_mutable, is_number, is_view

aten = torch.ops.aten
PRODUCTS = {
    *(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.convolution_backward.default),
    *(torch.ops.fedntd.conv_forward.default, torch.ops.fedntd.conv_weight_gradient.default),
}

# What a trunk hands over is written and read, where one compiled piece may compute it twice instead, unless a product
# gives or takes it. In bytes, for each that the first branch changes:
MOST_HANDED_OVER = 1.0
SMALL = 10  # so many times smaller than the largest is a small change


class Fork(NamedTuple):
    """`trunk(*inputs)`, then all `branches` of (*inputs, *what the trunk gave), in any order or at once, are what the
    whole was. The axes are those of the clients in what the trunk gives."""

    trunk: fx.GraphModule
    branches: list[fx.GraphModule]  # the update of most weights, the rest of the pass, and small changes if there are
    axes: list[int | None]


def forked(module: fx.GraphModule) -> Fork | None:
    """None if there is nothing to be gained, or if it is not clear what the step changes when."""
    graph = module.graph
    changes = {node for node in graph.nodes if is_mutable(node)}
    (end,) = graph.find_nodes(op="output")
    if end.all_input_nodes or not all(map(comes_last, changes)):
        return None
    most, few = early_changes(changes, graph)
    rest = changes - most - few
    if not most or not rest:
        return None
    parts = [part for part in (most, rest, few) if part]
    trunk = trunk_of(graph, parts)
    handed_over = [node for node in graph.nodes if node in trunk and not users_of(node) <= trunk]
    if sum(size_of(node) for node in handed_over if not meets_product(node)) > MOST_HANDED_OVER * sum(
        map(size_of, most)
    ):
        return None
    branches = [branch(module, part, handed_over) for part in parts]
    return Fork(extracted(module, handed_over), branches, [node.meta.get("axis") for node in handed_over])


def comes_last(change: fx.Node) -> bool:
    """Whether it writes to an input that nothing reads afterwards; and not what another input is."""
    if change.target is not aten.copy_.default or change.users:
        return False
    target = change.all_input_nodes[0]
    return read_by(change) == {target} and all(user <= change for user in users_of(target))


def early_changes(changes: set[fx.Node], graph: fx.Graph) -> tuple[set[fx.Node], set[fx.Node]]:
    """Those that wait for the fewest products, one after the other: the first that are at least half of all bytes. The
    small ones apart, unless they come out of the same product as a large one."""
    waits_for: dict[fx.Node, int] = {}
    products: dict[fx.Node, set[fx.Node]] = {}  # that each needs
    for node in graph.nodes:
        own = {node} if node.target in PRODUCTS else set()
        waits_for[node] = len(own) + max((waits_for[source] for source in node.all_input_nodes), default=0)
        products[node] = own.union(*(products[source] for source in node.all_input_nodes))
    ordered = sorted(changes, key=waits_for.__getitem__)
    sums = list(accumulate(map(size_of, ordered)))
    most = next((waits_for[c] for c, size in zip(ordered, sums, strict=True) if 2 * size >= sums[-1]), 0)
    early = {change for change in changes if waits_for[change] <= most}
    large = {change for change in early if SMALL * size_of(change) >= max(map(size_of, early))}
    of_the_rest = set().union(*(products[change] for change in changes - early))
    of_large = set().union(*(products[change] for change in large)) - of_the_rest
    large |= {change for change in early if products[change] & of_large}
    return large, early - large


def trunk_of(graph: fx.Graph, parts: Sequence[set[fx.Node]]) -> set[fx.Node]:
    """What several branches need, what one must read before another changes it, and all that these need."""
    needed_by: dict[fx.Node, set[int]] = {}  # which branches
    for node in reversed(graph.nodes):
        changed_by = {i for i, part in enumerate(parts) if node in part}
        needed_by[node] = changed_by or set().union(*(needed_by[user] for user in node.users))
    changed = [{change.all_input_nodes[0] for change in part} for part in parts]
    trunk: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or is_free(node) or is_mutable(node):
            continue
        in_danger = any(inputs & read_by(node) for i, inputs in enumerate(changed) if needed_by[node] != {i})
        if len(needed_by[node]) > 1 or in_danger or users_of(node) & trunk:
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


def clone_aliased(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results, copied where they are inputs: compiled code gives the other factor itself for a product with ones,
    and one branch would change what the other is about to read."""
    places = {leaf.untyped_storage().data_ptr() for leaf in inputs}
    return [leaf.clone() if leaf.untyped_storage().data_ptr() in places else leaf for leaf in results]
