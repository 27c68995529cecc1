"""A method that keeps state at the server and at each client, as a user would write it: one file, by import path."""

from dataclasses import dataclass

from fedntd import FedAvg, Upload, tree


@dataclass(frozen=True)
class Remembering(FedAvg):
    """Each client adds half of its own last update; the server averages what clients sent over the rounds."""

    keep: float = 0.5

    def init_server(self, w):
        return {"mean": tree.zeros_like(w)}

    def init_client(self, w):
        return {"last": tree.zeros_like(w)}

    def broadcast(self, server):
        return {"mean": server["mean"]}

    def finish(self, result, ctx):
        delta = tree.add(tree.sub(result.w, ctx.w_g), tree.scale(self.keep, ctx.own["last"]))
        return Upload(up={"delta": delta}, own={"last": delta})

    def aggregate(self, w_g, server, up, p, fraction):
        step = tree.weighted_mean(up["delta"], p)
        mean = tree.add(tree.scale(0.5, server["mean"]), tree.scale(0.5, step))
        return tree.add(w_g, mean), {"mean": mean}
