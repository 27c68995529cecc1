"""Forks a traced step (tracing.py) into a trunk and branches that a GPU can run at the same time.

The backward pass reaches the last layers first. They usually hold most of the weights, and updating those is limited by
memory bandwidth, while the rest of the backward pass is limited by arithmetic. So there are up to three branches:

1. the update of most weights;
2. the rest of the backward pass, with the update of the remaining weights;
3. small updates that are ready early, such as those of biases, so that neither of the others waits for them.

The second branch can be forked again: the convolutions of a single client do not fill a GPU, and the weight gradients
of two layers do not depend on each other.

A step first computes, then writes to some of its inputs. These writes are called changes. No branch may read an input
that another branch changes, so every operation that would do so is in the trunk, as is every operation that several
branches need.
"""

import copy
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, fx

from fedntd.engine.tracing import extract, is_client_count, is_mutable, is_view
from fedntd.kernels import convolution  # noqa: F401  # registers the operators below

aten = torch.ops.aten
PRODUCTS = {
    *(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.convolution_backward.default),
    *(torch.ops.fedntd.conv_forward.default, torch.ops.fedntd.conv_weight_gradient.default),
}

# Whatever the trunk hands over to the branches is written to memory and read again. In one compiled piece it would not
# be, unless it is the input or output of a matrix product. A fork pays off only if the handed-over bytes are at most
# this multiple of the bytes that the first branch changes:
MOST_HANDED_OVER = 1.0
SMALL = 10  # a change is small if it is more than this many times smaller than the largest


class Fork(NamedTuple):
    """A step in parts. The whole step is equivalent to

    shared = trunk(*inputs)
    for branch in branches:  # in any order, or at the same time
        branch(*inputs, *shared)
    """

    trunk: fx.GraphModule
    branches: list[fx.GraphModule]  # update of most weights, rest of the backward pass, small updates if there are any
    axes: list[int | None]  # the client axis of each result of the trunk


def find_fork(module: fx.GraphModule) -> Fork | None:
    """Fork a traced step.

    Returns None if forking would not pay off, or if the step does not make all its changes at the end.
    """
    graph = module.graph
    changes = {node for node in graph.nodes if is_mutable(node)}
    (end,) = graph.find_nodes(op="output")
    if end.all_input_nodes or not all(map(comes_last, changes)):
        return None
    main, small = early_changes(changes, graph)
    rest = changes - main - small
    if not main or not rest:
        return None
    parts = [part for part in (main, rest, small) if part]
    trunk = trunk_of(graph, parts)
    handed_over = [node for node in graph.nodes if node in trunk and not users_of(node) <= trunk]
    extra_bytes = sum(size_of(node) for node in handed_over if not meets_product(node))
    if extra_bytes > MOST_HANDED_OVER * sum(map(size_of, main)):
        return None
    branches = [branch(module, part, handed_over) for part in parts]
    return Fork(extract(module, handed_over), branches, [node.meta.get("axis") for node in handed_over])


def comes_last(change: fx.Node) -> bool:
    """Whether a change writes to an input that nothing reads afterwards, and what it writes is not another input."""
    if change.target is not aten.copy_.default or change.users:
        return False
    target = change.all_input_nodes[0]
    return inputs_read_by(change) == {target} and all(user <= change for user in users_of(target))


def early_changes(changes: set[fx.Node], graph: fx.Graph) -> tuple[set[fx.Node], set[fx.Node]]:
    """The changes that are ready first, as (large ones, small ones).

    Changes are ordered by the number of matrix products that must run before them, one after the other. The first in
    this order that make up at least half of all changed bytes are early. A small change counts as large if it needs a
    product that a large one needs and no late one: the product then stays out of the trunk.
    """
    depth: dict[fx.Node, int] = {}  # products on the longest path to each node
    products: dict[fx.Node, set[fx.Node]] = {}  # that each node needs
    for node in graph.nodes:
        own = {node} if node.target in PRODUCTS else set()
        depth[node] = len(own) + max((depth[source] for source in node.all_input_nodes), default=0)
        products[node] = own.union(*(products[source] for source in node.all_input_nodes))
    ordered = sorted(changes, key=depth.__getitem__)
    sums = list(accumulate(map(size_of, ordered)))
    most_depth = next((depth[c] for c, size in zip(ordered, sums, strict=True) if 2 * size >= sums[-1]), 0)
    early = {change for change in changes if depth[change] <= most_depth}
    large = {change for change in early if SMALL * size_of(change) >= max(map(size_of, early))}
    late_products = set().union(*(products[change] for change in changes - early))
    large_products = set().union(*(products[change] for change in large)) - late_products
    large |= {change for change in early if products[change] & large_products}
    return large, early - large


def trunk_of(graph: fx.Graph, parts: Sequence[set[fx.Node]]) -> set[fx.Node]:
    """The operations of the trunk, where `parts` are the changes of each branch.

    These are the operations that several branches need, those that read an input which another branch changes, and all
    operations that these need.
    """
    needed_by: dict[fx.Node, set[int]] = {}  # numbers of the branches
    for node in reversed(graph.nodes):
        changed_by = {i for i, part in enumerate(parts) if node in part}
        needed_by[node] = changed_by or set().union(*(needed_by[user] for user in node.users))
    changed = [{change.all_input_nodes[0] for change in part} for part in parts]
    trunk: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or is_free(node) or is_mutable(node):
            continue
        in_conflict = any(inputs & inputs_read_by(node) for i, inputs in enumerate(changed) if needed_by[node] != {i})
        if len(needed_by[node]) > 1 or in_conflict or users_of(node) & trunk:
            trunk.add(node)
    # an operation with several results hands them over one by one
    return trunk | {node for node in graph.nodes if node.target is operator.getitem and node.args[0] in trunk}


def size_of(node: fx.Node) -> int:
    """The bytes of a node's result; for a change, the bytes that it writes."""
    return (node.all_input_nodes[1] if is_mutable(node) else node).meta["val"].nbytes


def meets_product(node: fx.Node) -> bool:
    """Whether the result is the input or output of a matrix product, and has to be in memory in any case."""
    source = node.args[0] if node.target is operator.getitem else node
    return any(isinstance(n, fx.Node) and n.target in PRODUCTS for n in (source, *users_of(node)))


def is_free(node: fx.Node) -> bool:
    """Whether the operation can be repeated in every part at no cost."""
    return is_view(node) or is_client_count(node)


def inputs_read_by(node: fx.Node) -> set[fx.Node]:
    """The inputs of the step that an operation reads, directly or through views."""
    inputs = set()
    for source in node.all_input_nodes:
        inputs |= {source} if source.op == "placeholder" else inputs_read_by(source) if is_view(source) else set()
    return inputs


def users_of(node: fx.Node) -> set[fx.Node]:
    """The operations that read a node, directly or through views. Asking for its size does not count as reading."""
    users = set()
    for user in node.users:
        users |= users_of(user) if is_view(user) else set() if is_client_count(user) else {user}
    return users


def branch(module: fx.GraphModule, changes: set[fx.Node], handed_over: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy of the module that makes only these changes, and takes the handed-over results as further inputs."""
    graph, kept = copy.deepcopy(module.graph), {change.name for change in changes}
    by_name = {node.name: node for node in graph.nodes}
    after = graph.find_nodes(op="placeholder")[-1]
    for node in handed_over:
        with graph.inserting_after(after):
            after = graph.placeholder(f"given_{node.name}")
        after.meta = dict(node.meta)
        by_name[node.name].replace_all_uses_with(after)
    for node in by_name.values():
        if is_mutable(node) and node.name not in kept:
            graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_mutable(node))
    graph.lint()
    return fx.GraphModule(module, graph)  # shares the module's constants


def clone_aliased(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Clone results that alias an input: compiled code may return x for x * 1, and one branch would then change what
    another has yet to read."""
    addresses = {leaf.untyped_storage().data_ptr() for leaf in inputs}
    return [leaf.clone() if leaf.untyped_storage().data_ptr() in addresses else leaf for leaf in results]
