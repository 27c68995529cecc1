"""A method with another's step on the server, and with FedProx's spring in the optimiser: by config alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from worlds import F64, World, scalar

from fedntd import Config, Context, Dataset, Federation, FedntdError, configure, federate, tree
from fedntd.algorithms.composed import Composed
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.fedavgm import FedAvgM
from fedntd.algorithms.fednova import FedNova
from fedntd.algorithms.fedntd import FedNTD
from fedntd.algorithms.fedopt import FedOpt
from fedntd.algorithms.requirements import requirements
from fedntd.algorithms.scaffold import Scaffold
from fedntd.config.schema import Optimiser, make_algorithm, with_own_code
from fedntd.engine.training import local_step

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]
FEDOPT = {"name": "fedopt", "eta": 0.1, "tau": 0.01}


def run(config: Config, dataset: Dataset, net: Net) -> Federation:
    federation = Federation(config, dataset, net())
    federation.records = list(federation)  # type: ignore[attr-defined]
    return federation


def assert_same(a: tree.Tree, b: tree.Tree, atol: float) -> None:
    assert tree.flatten(a).keys() == tree.flatten(b).keys()
    for name, leaf in tree.flatten(a).items():
        torch.testing.assert_close(leaf, tree.flatten(b)[name], rtol=0, atol=atol)


# --- a rule for the server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [FEDOPT, {"name": "fedavgm", "beta": 0.6}])
def test_fedavg_with_a_rule_is_the_rules_own_method(rule: dict, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    composed = run(make_config(algorithm={"name": "fedavg"}, server=rule), blobs, tiny_net)
    alone = run(make_config(algorithm=rule), blobs, tiny_net)
    assert_same(composed.state.w, alone.state.w, atol=1e-12)
    assert_same(composed.state.server["rule"], alone.state.server, atol=1e-12)


def test_both_know_the_share_of_clients_in_a_round(make_config: MakeConfig):
    """Two of six clients, where the ratio gives 2.4."""
    algorithm = make_algorithm(make_config(server=FEDOPT, federation={"ratio": 0.4}))
    assert isinstance(algorithm, Composed)
    assert algorithm.method.ratio == algorithm.rule.ratio == 2 / 6


def test_fednova_with_fedopt_by_hand():
    """Updates 1 and 6 of 1 and 3 steps, weights 1/4 and 3/4: FedNova's step is (1/4 + 9/4) (1/4 + 3/4 * 2) = 4.375."""
    algorithm, w = Composed(FedNova(), FedOpt("adam", eta=0.3, beta_1=0.8, beta_2=0.95, tau=0.02)), scalar(10.0)
    up = {"delta": {"w": torch.tensor([[1.0], [6.0]], dtype=F64)}, "a": torch.tensor([1.0, 3.0], dtype=F64)}
    server = algorithm.init_server(w)
    w, server = algorithm.aggregate(w, server, up, torch.tensor([0.25, 0.75], dtype=F64), 0.1)
    m, v = 0.2 * 4.375, 0.95 * 0.02**2 + 0.05 * 4.375**2
    assert w["w"].item() == pytest.approx(10 + 0.3 * m / (v**0.5 + 0.02))
    assert server["rule"]["m"]["w"].item() == pytest.approx(m)


def test_scaffold_keeps_its_variates_under_server_momentum():
    """Two rounds by hand: the clients' part is SCAFFOLD's alone, only the server's step has momentum."""
    world = World(Composed(Scaffold(), FedAvgM(beta=0.5)), h=[1.0, 1.0], b=[1.0, -3.0], steps=[1, 1], lr=0.1).play()
    # deltas 0.1 and -0.3 from w = 0: w = v = -0.1, c_i = -delta / lr = -1 and 3, c = 1
    assert world.w == pytest.approx(-0.1)
    assert [world.own[i]["c_i"]["w"].item() for i in (0, 1)] == pytest.approx([-1.0, 3.0])
    assert world.server["method"]["c"]["w"].item() == pytest.approx(1.0)
    # gradients w - b - c_i + c at w = -0.1: 0.9 for both, delta -0.09; v = 0.5 * -0.1 - 0.09
    assert world.play().w == pytest.approx(-0.1 - 0.14)
    mean_c = sum(world.own[i]["c_i"]["w"].item() for i in (0, 1)) / 2
    assert world.server["method"]["c"]["w"].item() == pytest.approx(mean_c)


def test_fedntd_with_fedopt(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """One round against its parts: FedNTD's own round, whose step then goes through the rule by hand."""
    ntd = {"name": "fedntd", "beta": 2.0}
    once = {"rounds": 1}
    composed = run(make_config(algorithm=ntd, server=FEDOPT, federation=once), blobs, tiny_net)
    plain = run(make_config(algorithm=ntd, federation=once), blobs, tiny_net)
    for name, start in plain.initial_w.items():
        d = plain.state.w[name] - start
        wanted = start + 0.1 * (0.1 * d) / ((0.99 * 0.01**2 + 0.01 * d**2).sqrt() + 0.01)
        torch.testing.assert_close(composed.state.w[name], wanted, rtol=0, atol=1e-14)


COMPOSITIONS = [("fedntd", FEDOPT), ("scaffold", {"name": "fedavgm"}), ("fedcurv", {"name": "fedavgm"})]
COMPOSITION = pytest.mark.parametrize(
    ("name", "rule"), COMPOSITIONS, ids=lambda value: value if isinstance(value, str) else value["name"]
)


@COMPOSITION
def test_the_engines_agree(name: str, rule: dict, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    loop, together = (
        run(make_config(engine=engine, algorithm={"name": name}, server=rule), blobs, tiny_net)
        for engine in ("sequential", "vectorised")
    )
    assert_same(loop.state.w, together.state.w, atol=1e-12)
    assert_same(loop.state.server, together.state.server, atol=1e-12)


@COMPOSITION
def test_a_run_goes_on_from_its_checkpoint(
    name: str, rule: dict, blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    """Also if the method's server state is empty, which a checkpoint does not store."""

    def config(rounds: int) -> Config:
        return make_config(algorithm={"name": name}, server=rule, federation={"rounds": rounds})

    whole = list(Federation(config(5), blobs, tiny_net()))
    list(federate(config(2), blobs, tiny_net(), out=tmp_path))
    resumed = list(federate(config(5), blobs, tiny_net(), out=tmp_path, resume=True))
    assert [r.loss for r in resumed] == [r.loss for r in whole[2:]]  # to the last bit


def test_a_rule_asks_nothing_of_clients():
    w = {"w": torch.zeros(3)}
    for method in (FedNTD(), Scaffold()):
        assert requirements(Composed(method, FedOpt()), w) == requirements(method, w)


def test_what_is_no_rule_is_refused():
    with pytest.raises(FedntdError, match=r"server\.name = 'fedacg' is not known.*valid: none, fedavgm, fedopt"):
        configure("demo", ["server.name=fedacg"])
    with pytest.raises(FedntdError, match=r"'FedACG' is not a rule for the server alone, .* its own 'send'"):
        with_own_code(configure("demo", ["server.name=fedntd.algorithms.fedacg:FedACG"]))
    with pytest.raises(FedntdError, match=r"server\.beta must be at least 0 and below 1, not 1"):
        configure("demo", ["server.name=fedavgm", "server.beta=1"])
    with pytest.raises(FedntdError, match=r"server\.eta is not a setting of server 'none'"):
        configure("demo", ["server.eta=1"])


# --- FedProx's spring in the optimiser --------------------------------------------------------------------------


def test_fedavg_with_a_spring_is_fedprox(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    springy = run(make_config(algorithm={"name": "fedavg"}, optimiser={"proximal": 0.7}), blobs, tiny_net)
    fedprox = run(make_config(algorithm={"name": "fedprox", "mu": 0.7}), blobs, tiny_net)
    plain = run(make_config(algorithm={"name": "fedavg"}), blobs, tiny_net)
    assert_same(springy.state.w, fedprox.state.w, atol=1e-12)
    assert tree.sqnorm(tree.sub(springy.state.w, plain.state.w)) > 1e-6


def test_fedntd_with_a_spring(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """FedProx + NTD: the gradient of L_NTD + mu/2 |w - w_g|^2, by autograd, away from w_g."""
    federation = Federation(make_config(), blobs, tiny_net())
    w_g, mu, lr = federation.state.w, 0.7, torch.tensor(0.1, dtype=F64)
    w = {name: (1.5 * leaf + 0.1).requires_grad_() for name, leaf in w_g.items()}
    model, batch = federation.engine.model, federation.engine.train_part.plain(slice(0, 9))
    ctx = Context(w_g, {}, {}, lr, 0.9)
    spring = sum((w[name] - w_g[name]).square().sum() for name in w)
    loss = FedNTD(beta=2.0).loss(model, w, batch, ctx) + mu / 2 * spring
    gradients = torch.autograd.grad(loss, list(w.values()))
    start = {name: leaf.detach() for name, leaf in w.items()}
    optimiser = Optimiser(lr=0.1, weight_decay=0.0, proximal=mu)
    stepped, _, _ = local_step(FedNTD(beta=2.0), model, optimiser, start, tree.zeros_like(start), batch, ctx)
    for (name, leaf), gradient in zip(start.items(), gradients, strict=True):
        torch.testing.assert_close(stepped[name], leaf - 0.1 * gradient, rtol=0, atol=1e-14)


def test_engines_agree_on_the_optimisers_options(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    options = {"proximal": 0.3, "clip": 0.5, "nesterov": True}
    loop, together = (
        run(make_config(engine=engine, optimiser=options, federation={"drop_last": True}), blobs, tiny_net)
        for engine in ("sequential", "vectorised")
    )
    plain = run(make_config(), blobs, tiny_net)
    assert_same(loop.state.w, together.state.w, atol=1e-12)
    assert tree.sqnorm(tree.sub(loop.state.w, plain.state.w)) > 1e-6


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fednova-released"])
def test_methods_that_count_steps_refuse_nesterov(name: str):
    with pytest.raises(FedntdError, match=rf"'{name}' counts steps as plain momentum.*optimiser\.nesterov"):
        configure("demo", ["optimiser.nesterov=true", f"algorithm.name={name}"])
    configure("demo", ["optimiser.nesterov=true", "algorithm.name=scaffold", "algorithm.adaptive=false"])


def test_fedavg_as_a_rule_changes_nothing():
    w = scalar(2.0)
    up = {"delta": {"w": torch.tensor([[1.0], [5.0]], dtype=F64)}}
    p = torch.tensor([0.5, 0.5], dtype=F64)
    assert Composed(FedAvg(), FedAvg()).aggregate(w, {}, up, p, 1.0)[0]["w"].item() == pytest.approx(5.0)
