"""What a method needs beyond FedAvg, counted while one client trains for one step."""

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result
from fedntd.algorithms.fedavg import FedAvg
from fedntd.models.functional import Batch, Model, Out, Taps
from fedntd.tree import Weights


class Requirements(NamedTuple):
    """What one client needs in addition to FedAvg. Bytes are for a round in which it takes part."""

    state_bytes: int  # kept by the client between its rounds
    extra_up_bytes: int  # sent to the server besides the update of the weights
    extra_down_bytes: int  # received from the server besides the weights
    auxiliary_data: bool  # whether data is needed that belongs to no client
    extra_forwards: int  # forward passes per step
    extra_backwards: int  # backward passes per step
    measure_samples: int  # samples that pass forward and backward once more after training


def requirements(algorithm: FedAvg, w: Weights) -> Requirements:
    """What `algorithm` needs beyond FedAvg for a network with weights `w`."""
    model, classes = CountingModel(), 3
    batch = Batch(torch.eye(classes, dtype=next(iter(w.values())).dtype), torch.arange(classes))
    server = algorithm.init_server(w)
    shared, own = algorithm.broadcast(server), algorithm.init_client(w)
    ctx = Context(algorithm.send(w, server), shared, own, torch.tensor(0.1), momentum=0.9, counts=torch.ones(classes))

    gradient, loss = algorithm.gradient(model, w, batch, ctx)
    calls = dict(model.calls)
    measured = algorithm.measure(model, w, batch, ctx) if algorithm.measure_samples else {}
    up = algorithm.finish(Result(tree.sub(w, gradient), 1, loss, measured), ctx).up
    return Requirements(
        state_bytes=tree.nbytes(own),
        extra_up_bytes=tree.nbytes(up) - tree.nbytes(w),
        extra_down_bytes=tree.nbytes(shared),
        auxiliary_data=algorithm.auxiliary_data,
        extra_forwards=calls["forward"] - 1,
        extra_backwards=calls["backward"] - 1,
        measure_samples=algorithm.measure_samples,
    )


class CountingModel(Model):
    """Takes any weights, returns its input times their mean, and counts how often it is run and differentiated."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.has_dropout = False

    def __call__(self, w: Weights, batch: Batch) -> Out:
        self.calls["forward"] += 1
        scale = torch.stack([leaf.mean() for leaf in w.values()]).mean()
        z = batch.x * CountBackward.apply(scale, self.calls)
        maps = z[..., None, None]
        return Out(logits=z, z=z, taps=Taps(maps, maps, maps[:, :1], maps[:, :1]))


class CountBackward(torch.autograd.Function):
    """The identity, which counts its backward passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, calls: Counter[str]) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.calls = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.calls["backward"] += 1
        return grads[0], None
