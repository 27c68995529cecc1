"""Partitions of the training samples among clients: functions (labels, clients, rng, ...) -> list of index arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedntd.errors import FedntdError, require

Indices = NDArray[np.int64]

MAX_DRAWS = 200_000  # the paper's alpha = 0.05 on CIFAR-10 needs about 20,000


def iid(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """A random split into parts whose sizes differ by at most one."""
    check_enough(len(labels), clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def sharding(labels: Indices, clients: int, rng: np.random.Generator, s: int = 2) -> list[Indices]:
    """Shards of a single class and of equal size. Each client gets `s` of them, perhaps several of one class.

    Every class is cut into s·K/C shards. As all shards have the same size, classes of unequal size leave some samples
    unused.
    """
    check_enough(len(labels), clients)
    classes = int(labels.max()) + 1
    require(s >= 1, f"must be at least 1, not {s}", "partition.s")
    if s * clients % classes:
        step = classes // np.gcd(classes, clients)
        nearest = max(step, round(s / step) * step)
        raise FedntdError(
            f"partition.s = {s}: {s} shards for each of {clients} clients are {s * clients} in all, which "
            f"{classes} classes cannot share evenly; the nearest s that works is {nearest}"
        )
    shards = s * clients // classes
    of_class = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    smallest = min(len(members) for members in of_class)
    size = smallest // shards
    require(
        size >= 1,
        f"partition.s = {s}: the smallest class has {smallest} samples, too few for {shards} shards; "
        f"lower federation.clients or partition.s",
    )
    client_classes = rng.permutation(np.repeat(np.arange(classes), shards)).reshape(clients, s)
    used = np.zeros(classes, dtype=int)
    parts = []
    for shard_classes in client_classes:
        shard_indices = []
        for c in shard_classes:
            shard_indices.append(of_class[c][used[c] : used[c] + size])
            used[c] += size
        parts.append(np.sort(np.concatenate(shard_indices)))
    return parts


def lda(
    labels: Indices, clients: int, rng: np.random.Generator, alpha: float = 0.1, min_size: int = 10
) -> list[Indices]:
    """Latent Dirichlet allocation: client k gets the share p_ck of class c, with p_c ~ Dir_K(alpha).

    A client that holds N/K samples or more gets nothing of the remaining classes. The whole draw is repeated until the
    smallest client has `min_size` samples. Draws only count samples; indices are assigned once, at the end.
    """
    check_enough(len(labels), clients, min_size, "partition.min_size")
    require(alpha > 0, f"must be above 0, not {alpha}", "partition.alpha")
    require(
        min_size >= 1,
        f"must be at least 1, not {min_size}; a client without samples cannot train",
        "partition.min_size",
    )
    of_class = [np.flatnonzero(labels == c) for c in range(int(labels.max()) + 1)]
    cuts = first_valid_cuts([len(members) for members in of_class], clients, rng, alpha, min_size)
    pieces = [np.split(rng.permutation(members), c[:-1]) for members, c in zip(of_class, cuts, strict=True)]
    return [np.sort(np.concatenate([piece[k] for piece in pieces])) for k in range(clients)]


def first_valid_cuts(
    sizes: list[int], clients: int, rng: np.random.Generator, alpha: float, min_size: int
) -> NDArray[np.int64]:
    """Where each class is cut among the clients, [class, client].

    Draws are made in batches, because few are valid.
    """
    draws, nearest = 256, 0
    limit = sum(sizes) / clients
    for _ in range(MAX_DRAWS // draws):
        shares = rng.standard_gamma(alpha, (draws, len(sizes), clients))  # a Dirichlet draw: gammas, normalised below
        cuts = np.zeros(shares.shape, dtype=np.int64)
        held = np.zeros((draws, clients), dtype=np.int64)
        possible = np.ones(draws, dtype=bool)
        for c, size in enumerate(sizes):
            p = shares[:, c] * (held < limit)
            total = p.sum(1, keepdims=True)
            possible &= total[:, 0] > 0  # with a tiny alpha, a class's whole mass can fall on clients that are full
            cuts[:, c] = np.cumsum(p / np.where(total > 0, total, 1), axis=1) * size
            cuts[:, c, -1] = size
            held += np.diff(cuts[:, c], prepend=0, axis=1)
        smallest = np.where(possible, held.min(1), 0)
        valid = np.flatnonzero(smallest >= min_size)
        if len(valid):
            return cuts[valid[0]]
        nearest = max(nearest, int(smallest.max()))
    raise FedntdError(
        f"partition.alpha = {alpha}: in {MAX_DRAWS:,} draws no split gave each of {clients} clients {min_size} "
        f"samples; the best gave {nearest}; lower partition.min_size or federation.clients, or raise partition.alpha"
    )


def check_enough(samples: int, clients: int, min_size: int = 1, key: str = "") -> None:
    condition = f" with at least {min_size} samples ({key})" if min_size > 1 else ""
    require(
        clients * min_size <= samples,
        f"federation.clients = {clients} clients{condition} need more than the {samples} training samples there are; "
        f"at most {samples // max(min_size, 1)} clients are possible",
    )


def check_parts(parts: list[Indices], samples: int, name: str) -> None:
    """Check a partition, which may be the user's own: every client has samples, and no sample has two owners."""
    for k, part in enumerate(parts):
        require(part.size > 0, f"partition '{name}' gave client {k} no samples; every client needs at least one")
        require(
            part.ndim == 1 and part.dtype.kind in "iu",
            f"partition '{name}' gave client {k} {part.dtype} {list(part.shape)}; it must be a list of sample numbers",
        )
    indices = np.concatenate(parts)
    require(
        bool(indices.min() >= 0 and indices.max() < samples),
        f"partition '{name}' gave out indices beyond the {samples} training samples",
    )
    require(len(np.unique(indices)) == len(indices), f"partition '{name}' gave a sample to more than one client")


def class_counts(labels: Indices, parts: list[Indices], classes: int) -> NDArray[np.int64]:
    """The number of samples of each class that each client owns, [client, class]."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def client_shares(counts: NDArray[np.int64], aggregation: str) -> NDArray[np.float64]:
    """Each client's weight in the whole federation, from the class counts [client, class]."""
    if aggregation == "size":
        return counts.sum(1) / counts.sum()
    return np.full(len(counts), 1 / len(counts))


PARTITIONS: dict[str, Any] = {"iid": iid, "sharding": sharding, "lda": lda}
