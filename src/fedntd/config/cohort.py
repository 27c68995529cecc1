"""The cohort of a round: it depends on the settings alone."""

from fedntd.rng import generator


def cohort(seed: int, round: int, clients: int, ratio: float) -> list[int]:
    """The clients that train in this round, which are the same for every algorithm."""
    size = cohort_size(clients, ratio)
    return sorted(generator(seed, "cohort", round).choice(clients, size, replace=False).tolist())


def cohort_size(clients: int, ratio: float) -> int:
    return max(1, int(clients * ratio + 0.5))
