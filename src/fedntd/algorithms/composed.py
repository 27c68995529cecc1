"""Two methods as one: client updates and their aggregation from one method, the server step from another."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights

# A server rule may not redefine these.
CLIENT_PARTS = ("init_client", "send", "broadcast", "loss", "gradient", "measure", "finish")


@dataclass(frozen=True)
class Composed(FedAvg):
    """`method` aggregates the uploads as usual. `rule` receives the resulting step as its only update."""

    method: FedAvg
    rule: FedAvg

    def __post_init__(self) -> None:
        for part in CLIENT_PARTS:
            require(
                getattr(type(self.rule), part) is getattr(FedAvg, part),
                f"server.name: '{type(self.rule).__name__}' is not a rule for the server alone, because it has its own "
                f"'{part}'; use it as algorithm.name",
            )

    @property
    def auxiliary_data(self) -> bool:
        return self.method.auxiliary_data

    def with_values(self, values: Mapping[str, Any]) -> "Composed":
        """Set the method's hyper-parameters. Only the ratio is for both: a rule may have others of the same name."""
        ratio = {name: value for name, value in values.items() if name == "ratio"}
        return replace(self, method=self.method.with_values(values), rule=self.rule.with_values(ratio))

    @property
    def heavy_ball(self) -> bool:
        return self.method.heavy_ball

    @property
    def measure_samples(self) -> int:
        return self.method.measure_samples

    def init_server(self, w: Weights) -> dict:
        return {"method": self.method.init_server(w), "rule": self.rule.init_server(w)}

    def init_client(self, w: Weights) -> dict:
        return self.method.init_client(w)

    def send(self, w_g: Weights, server: Tree) -> Weights:
        return self.method.send(w_g, state_of("method", server))

    def broadcast(self, server: Tree) -> dict:
        return self.method.broadcast(state_of("method", server))

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        return self.method.loss(model, w, batch, ctx)

    def gradient(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> tuple[Weights, Tensor]:
        return self.method.gradient(model, w, batch, ctx)

    def measure(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> dict:
        return self.method.measure(model, w, batch, ctx)

    def finish(self, result: Result, ctx: Context) -> Upload:
        return self.method.finish(result, ctx)

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        w_a, s_a = self.method.aggregate(w_g, state_of("method", server), up, p, fraction)
        update = {"delta": tree.stack([tree.sub(w_a, w_g)])}
        w, s_b = self.rule.aggregate(w_g, state_of("rule", server), update, p.new_ones(1), fraction)
        return w, {"method": s_a, "rule": s_b}


def state_of(part: str, server: Tree) -> Tree:
    """The server state of `part`. A checkpoint does not store empty states, so the key may be missing."""
    return server.get(part, {})
