"""Worlds so small that a method's rounds can be worked out by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedntd import Batch, Context, FedAvg, Out, Result, tree
from fedntd.config.schema import Optimiser
from fedntd.engine.training import train_client

F64 = torch.float64


class Table:
    """A 'model' whose weights are its logits and, if given, its features: for losses on numbers of our choice."""

    has_dropout = False

    def __call__(self, w: dict[str, Tensor], batch: Batch) -> Out:
        return Out(w["logits"], w.get("z"))

    frozen = __call__


class Quadratic:
    """A 'model' whose cross-entropy on a sample x = (h, b) is 1 + h/2 |w - b|^2.

    The logits (0, log(e^q - 1)) with true class 0 have cross-entropy q.
    """

    has_dropout = False

    def __call__(self, w: dict[str, Tensor], batch: Batch) -> Out:
        h, b = batch.x.unbind(1)
        q = 1 + h / 2 * (w["w"] - b) ** 2
        return Out(torch.stack([torch.zeros_like(q), q.expm1().log()], 1))

    frozen = __call__


def bowl(h: float, b: float) -> Batch:
    """The one sample of a client whose objective is h/2 |w - b|^2."""
    return Batch(torch.tensor([[h, b]], dtype=F64), torch.tensor([0]))


def scalar(value: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([value], dtype=F64)}


@dataclass
class World:
    """A federation of quadratics: client i has objective h_i/2 |w - b_i|^2 and makes `steps[i]` steps a round."""

    algorithm: FedAvg
    h: list[float]
    b: list[float]
    steps: list[int]
    lr: float = 0.1
    momentum: float = 0.0
    start: float = 0.0
    sizes: list[float] | None = None  # how much a client counts; None: all the same
    own: dict[int, dict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = scalar(self.start)
        self.server = self.algorithm.init_server(self.weights)
        self.first = self.weights

    @property
    def w(self) -> float:
        return self.weights["w"].item()

    @property
    def optimum(self) -> float:
        """The minimum of the clients' mean objective."""
        share = self.sizes or [1.0] * len(self.h)
        pull = [s * h for s, h in zip(share, self.h, strict=True)]
        return sum(x * b for x, b in zip(pull, self.b, strict=True)) / sum(pull)

    def context(self, i: int) -> Context:
        w_g, shared = self.algorithm.send(self.weights, self.server), self.algorithm.broadcast(self.server)
        own = self.own.get(i) or self.algorithm.init_client(self.first)
        return Context(w_g, shared, own, torch.tensor(self.lr, dtype=F64), self.momentum)

    def train(self, i: int) -> Result:
        only = bowl(self.h[i], self.b[i])
        optimiser = Optimiser(lr=self.lr, momentum=self.momentum, weight_decay=0.0)
        look_at = [only] if self.algorithm.measure_samples else []
        batches, model = [only] * self.steps[i], Quadratic()
        return train_client(self.algorithm, model, optimiser, batches, self.context(i), look_at)  # type: ignore[arg-type]

    def play(self, rounds: int = 1, cohort: list[int] | None = None) -> "World":
        for _ in range(rounds):
            clients = list(range(len(self.h))) if cohort is None else cohort
            uploads = [self.algorithm.finish(self.train(i), self.context(i)) for i in clients]
            share = torch.tensor(self.sizes or [1.0] * len(self.h), dtype=F64)
            fraction = (share[clients].sum() / share.sum()).item()
            p = share[clients] / share[clients].sum()
            up = tree.stack([u.up for u in uploads])
            self.weights, self.server = self.algorithm.aggregate(self.weights, self.server, up, p, fraction)
            self.own |= {i: u.own for i, u in zip(clients, uploads, strict=True)}
        return self


def descend(w: float, slope: Callable[[float], float], steps: int, lr: float, momentum: float) -> float:
    """Gradient descent with momentum in plain numbers, for rounds by hand."""
    velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + slope(w)
        w -= lr * velocity
    return w


def steps_that_count(steps: int, momentum: float) -> float:
    """The sum over steps of how far each step's gradient has moved the weights by the end, for rounds by hand."""
    return sum(sum(momentum**later for later in range(steps - step)) for step in range(steps))


def context(w_g: dict, **more: object) -> Context:
    """A context for losses that need only the global weights."""
    given: dict = {"shared": {}, "own": {}, "lr": torch.tensor(0.1, dtype=F64), "momentum": 0.9, **more}
    return Context(w_g, **given)


def loss(
    algorithm: FedAvg, local: dict, globally: dict, y: list[int], mask: list[bool] | None = None, **more
) -> Tensor:
    """The loss of a `Table`."""
    batch = Batch(torch.zeros(len(y)), torch.tensor(y), None if mask is None else torch.tensor(mask))
    return algorithm.loss(Table(), local, batch, context(globally, **more))  # type: ignore[arg-type]


def logits(*rows: list[float]) -> dict[str, Tensor]:
    return {"logits": torch.tensor(rows, dtype=F64)}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
