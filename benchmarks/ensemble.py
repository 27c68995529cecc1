"""Is the ensemble of the clients' models better than the mean of their weights, and what does FedDF make of it?

    PYTHONPATH=src python benchmarks/ensemble.py RUN [--samples 5000 50000] [--rates 1e-3 1e-4] [--steps 800]

RUN is the folder of a run on CIFAR-10, of any method. The next round is played from its last checkpoint. Its clients'
models are averaged, tested as an ensemble, and distilled into their mean as `feddf` does, for each number of unlabelled
CIFAR-100 images (--samples) and each learning rate of Adam (--rates). The last column is the distance of the weights
from those that were sent out. The run of docs/leaderboard.md:

    fedntd run cifar10-s2 --set algorithm.name=fedavg --set 'partition={name="lda", alpha=0.5}' --set precision=bf16 \\
        --set measure.local_every=0 --set federation.rounds=40 --out RUN
"""

import argparse
from datetime import date
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from fedntd import tree
from fedntd.analysis.rounds import next_round, reopen
from fedntd.config.registry import Choice
from fedntd.config.schema import AuxiliarySettings
from fedntd.engine.server_data import ServerData
from fedntd.support.environment import environment
from fedntd.tree import Weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--samples", type=int, nargs="+", default=[5000, 50000])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 1e-4])
    parser.add_argument("--steps", type=int, default=800, help="of FedDF's server")
    arguments = parser.parse_args()
    federation = reopen(arguments.run, algorithm=Choice("fedavg"))
    there = environment(federation.device)
    print(f"{date.today()}  {there['device']}, torch {there['torch']}")
    inside = next_round(federation)
    test = federation.engine.test_part
    answers = ServerData(federation.engine.model, test, federation.config.seed).logits

    def show(what: str, scores: Tensor, w: Weights | None = None) -> None:
        moved = f"{float(tree.sqnorm(tree.sub(w, inside.w_g))) ** 0.5:8.2f}" if w else ""
        print(f"{what:48} {100 * float((scores.argmax(-1) == test.y).double().mean()):6.2f} %{moved}", flush=True)

    each = torch.stack([answers(inside.local(i)) for i in range(len(inside.record.cohort))])
    print(f"test accuracy in round {inside.record.round}")
    show("the model that was sent out", answers(inside.w_g))
    show("the mean of the trained models", answers(inside.w), inside.w)
    show("their logits together", each.mean(0))
    show("their probabilities together", each.softmax(-1).mean(0))
    for samples, rate in product(arguments.samples, arguments.rates):
        method = Choice("feddf", {"steps": arguments.steps, "lr": rate})
        # the same round: FedDF's clients train as FedAvg's do
        auxiliary = AuxiliarySettings("cifar100", samples=samples)
        w = next_round(reopen(arguments.run, algorithm=method, auxiliary=auxiliary)).w
        show(f"FedDF's server, from {samples} images at {rate:g}", answers(w), w)


if __name__ == "__main__":
    main()
