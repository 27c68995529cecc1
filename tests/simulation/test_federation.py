"""A whole run against an independent implementation, and reproducibility: the same numbers in every engine."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedntd import Augment, Config, Dataset, Diverged, Federation, FedntdError, Record, federate, from_tensors, tree
from fedntd.config.cohort import cohort
from fedntd.config.toml import from_table
from fedntd.engine.devices import choose_precision
from fedntd.engine.plan import local_plan
from fedntd.engine.testing import TEST_BATCH
from fedntd.models import MODELS
from few_images import fashion_with_few_test_images

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]


def measured(record: Record) -> dict:
    """A record without its seconds."""
    return {k: v for k, v in dataclasses.asdict(record).items() if k != "seconds"}


@pytest.mark.parametrize("aggregation", ["size", "uniform"])
@pytest.mark.parametrize("name", ["fedavg", "fedntd"])
def test_against_a_plain_loop(name: str, aggregation: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """Three rounds written out with nn.Module, torch.optim.SGD and state_dict averaging."""
    config = make_config(algorithm={"name": name}, federation={"aggregation": aggregation})
    federation = Federation(config, blobs, tiny_net())
    net = tiny_net().double()
    for t in (1, 2, 3):
        federation.play_round()
        locals_, weights = [], []
        for k in cohort(config.seed, t, 6, 0.5):
            local, teacher = tiny_net().double(), tiny_net().double()
            local.load_state_dict(net.state_dict())
            teacher.load_state_dict(net.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), lr=0.1 * 0.99 ** (t - 1), momentum=0.9, weight_decay=0.01)
            for samples, _ in local_plan(config.seed, t, k, federation.parts[k], 2, 8, None, (2,)).batches():
                x, y = blobs.train.x[samples], blobs.train.y[samples]
                z = local(x).logits
                loss = F.cross_entropy(z, y)
                if name == "fedntd":
                    others = F.one_hot(y, 3) == 0
                    q = z[others].view(-1, 2).log_softmax(1)
                    q_g = teacher(x).logits.detach()[others].view(-1, 2).softmax(1)
                    loss = loss + F.kl_div(q, q_g, reduction="batchmean")
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            locals_.append(local.state_dict())
            weights.append(len(federation.parts[k]) if aggregation == "size" else 1)
        mean = {n: sum(w * s[n] for w, s in zip(weights, locals_, strict=True)) / sum(weights) for n in locals_[0]}
        net.load_state_dict(mean)
    for n, leaf in net.state_dict().items():
        torch.testing.assert_close(federation.state.w[n], leaf, rtol=0, atol=1e-12)


def test_measures_against_a_second_computation(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    federation = Federation(make_config(federation={"rounds": 4}), blobs, tiny_net())
    net = tiny_net().double()

    def class_accuracy(w: dict) -> np.ndarray:
        net.load_state_dict(w)
        answers = net(blobs.test.x).logits.argmax(1)
        return np.array([float((answers[blobs.test.y == c] == c).double().mean()) for c in range(3)])

    history = [class_accuracy(federation.state.w)]
    records = []
    for record in federation:
        records.append(record)
        history.append(class_accuracy(federation.state.w))
    for t, record in enumerate(records, start=1):
        a, before = history[t], history[t - 1]
        assert record.class_accuracy == pytest.approx(a.tolist())
        assert record.accuracy == pytest.approx(a.mean())  # the test part is balanced
        pooled = np.concatenate([federation.parts[k] for k in record.cohort])
        p = np.bincount(blobs.train.y.numpy()[pooled], minlength=3) / len(pooled)
        assert record.global_in_before == pytest.approx(before @ p)
        assert record.global_in_after == pytest.approx(a @ p)
        assert record.global_out_before == pytest.approx(before @ ((1 - p) / 2))
        assert record.global_out_after == pytest.approx(a @ ((1 - p) / 2))
        if t > 1:
            assert record.similarity == pytest.approx(a @ before / np.linalg.norm(a) / np.linalg.norm(before))
            assert record.forgetting == pytest.approx(np.mean(np.max(history[1:t], axis=0) - a))
    assert records[0].similarity is None
    weights = sum(p.numel() for p in net.parameters()) * 8
    assert records[0].bytes_down == records[0].bytes_up == 3 * weights


def test_local_measures_are_of_the_trained_local_models(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """With one client in each round, the aggregated model is the local one, so the test can compute its metrics."""
    config = make_config(federation={"ratio": 0.1, "rounds": 1, "local_epochs": 20})
    federation = Federation(config, blobs, tiny_net())
    record = federation.play_round()
    (k,) = record.cohort
    owned = federation.parts[k]
    y = blobs.train.y[owned]
    p = np.bincount(y.numpy(), minlength=3) / len(owned)
    assert record.in_local == pytest.approx(np.array(record.class_accuracy) @ p)
    assert record.out_local == pytest.approx(np.array(record.class_accuracy) @ ((1 - p) / 2))
    assert record.in_local_std == 0
    net = tiny_net().double()
    net.load_state_dict(federation.state.w)
    logits = net(blobs.train.x[owned]).logits.detach()
    assert record.local_train_accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    assert record.local_train_loss == pytest.approx(float(F.cross_entropy(logits, y)))


def test_dear_measures_are_taken_as_often_as_asked(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    def rounds_measured(every: int) -> list[int]:
        config = make_config(measure={"local_every": every}, federation={"rounds": 5})
        return [r.round for r in Federation(config, blobs, tiny_net()) if r.in_local is not None]

    assert rounds_measured(1) == [1, 2, 3, 4, 5]
    assert rounds_measured(2) == [2, 4]
    assert rounds_measured(0) == []


def test_the_same_seed_gives_the_same_run_and_another_does_not(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    runs = [[measured(r) for r in federate(make_config(seed=seed), blobs, tiny_net())] for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_cohorts_are_those_of_the_seed_whatever_the_algorithm(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    def cohorts(name: str, seed: int) -> list[list[int]]:
        config = make_config(algorithm={"name": name}, seed=seed, federation={"rounds": 8})
        return [r.cohort for r in Federation(config, blobs, tiny_net())]

    assert cohorts("fedavg", 0) == cohorts("fedntd", 0) != cohorts("fedavg", 1)


def test_one_partition_for_all_seeds_if_asked(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    def parts(**settings: object) -> list[list[int]]:
        return [p.tolist() for p in Federation(make_config(**settings), blobs, tiny_net()).parts]

    assert parts(seed=0) != parts(seed=1)
    assert parts(seed=0, partition_seed=7) == parts(seed=1, partition_seed=7)
    assert parts(seed=7) == parts(seed=1, partition_seed=7)


@pytest.mark.parametrize(("name", "mean", "own"), [("feddyn", "h", "g"), ("scaffold", "c", "c_i")])
def test_a_plain_mean_over_all_clients_stays_one_where_the_cohort_is_rounded(
    name: str, mean: str, own: str, blobs: Dataset, make_config: MakeConfig, tiny_net: Net
):
    """Two of six clients train, where the ratio says 2.4."""
    config = make_config(algorithm={"name": name, "uniform": True}, federation={"ratio": 0.4, "rounds": 4})
    federation = Federation(config, blobs, tiny_net())
    assert {len(record.cohort) for record in federation} == {2}
    kept = [federation.own(k)[own] for k in range(6)]
    for key, leaf in federation.state.server[mean].items():
        assert torch.allclose(leaf, torch.stack([one[key] for one in kept]).mean(0), rtol=0, atol=1e-12)
        assert leaf.abs().max() > 1e-3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_number_of_workers_does_not_change_a_bit(precision: str):
    """Real images, the paper's network: side by side or one by one, the weights are the same to the last bit."""
    images = fashion_with_few_test_images("", TEST_BATCH + 100)  # batches are tested side by side too

    def final(workers: int) -> tuple[list[dict], dict]:
        table = {
            "workers": workers,
            "device": "cpu",
            "precision": precision,
            "federation": {"clients": 100, "ratio": 0.03, "rounds": 2, "local_epochs": 1},
            "measure": {"local_every": 2},
        }
        federation = Federation(from_table(table), images)
        return [measured(r) for r in federation], federation.state.w

    (records, w), (records_3, w_3) = final(1), final(10**6)  # capped at the number of clients, three
    assert records == records_3
    assert all(torch.equal(w[name], w_3[name]) for name in w)


def test_a_dataset_that_is_handed_over_is_used_as_the_config_says(make_config: MakeConfig):
    x, y = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8), torch.arange(60) % 3
    dataset = from_tensors("images", (x, y), (x, y), augment=Augment(pad=2))
    net, iid = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), {"name": "iid"}
    asked = make_config(data={"augment": False, "train_size": 30}, partition=iid)
    federation = Federation(asked, dataset, net)
    assert federation.dataset.augment is None
    assert federation.counts.sum() == 30
    assert Federation(make_config(partition=iid), dataset, net).dataset is dataset


class Dropping(nn.Module):
    """Without a layer for it."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, training=self.training or self.always)


@pytest.mark.parametrize("layer", [nn.Dropout, Dropping])
def test_dropout_is_drawn_from_the_seed(layer: Callable[[], nn.Module], blobs: Dataset, make_config: MakeConfig):
    def final(seed: int) -> dict:
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(2, 16), layer(), nn.Linear(16, 3))
        federation = Federation(make_config(seed=seed, partition_seed=0, workers=4), blobs, net)
        torch.manual_seed(seed + 100)  # whatever the process drew before
        list(federation)
        return federation.state.w

    assert tree.sqnorm(tree.sub(final(0), final(0))) == 0
    assert tree.sqnorm(tree.sub(final(0), final(1))) > 0


def test_dropout_without_a_layer_is_found_out(blobs: Dataset, make_config: MakeConfig):
    net = nn.Sequential(nn.Linear(2, 16), Dropping(), nn.Linear(16, 3))
    state = torch.get_rng_state()
    assert Federation(make_config(), blobs, net).engine.model.has_dropout
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(FedntdError, match="it has dropout"):
        Federation(make_config(engine="vectorised"), blobs, net)
    with pytest.raises(FedntdError, match=r"the model draws random numbers in tests, too; use nn\.Dropout"):
        Federation(make_config(), blobs, nn.Sequential(nn.Linear(2, 3), Dropping(always=True)))


def test_a_network_that_changes_its_buffers_is_refused(blobs: Dataset, make_config: MakeConfig):
    steep = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 16))
    with pytest.raises(FedntdError, match="the model changes its buffers in forward, so that no run could be repeated"):
        Federation(make_config(), blobs, nn.Sequential(steep, nn.Linear(16, 3)))


@pytest.mark.parametrize(("net", "sentence"), [
    (lambda shape: nn.Linear(shape[0] * shape[1], 3), r"cannot be built for samples of shape \[2\] and 3 classes: I"),
    (lambda shape: "no network", "is a str, not a torch.nn.Module"),
])  # fmt: skip
def test_a_network_that_does_not_fit_is_one_sentence(
    net: Callable, sentence: str, blobs: Dataset, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(MODELS, "mine", net)
    with pytest.raises(FedntdError, match=sentence):
        Federation(make_config(model={"name": "mine"}), blobs)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_integers_reach_the_network_as_they_are(engine: str, make_config: MakeConfig):
    """bf16 cannot tell 257 from 256."""
    tokens = torch.randint(256, 260, (200, 1), generator=torch.Generator().manual_seed(0))
    part = tokens, tokens[:, 0] - 256
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(260, 8), nn.Flatten(), nn.Linear(8, 4))
    run = Federation(make_config(precision="bf16", engine=engine), from_tensors("text", part, part), net)
    assert [record.accuracy for record in run][-1] == 1.0


def test_a_run_that_diverges_says_so(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    with pytest.raises(Diverged, match=r"not finite after round 1; a lower optimiser\.lr"):
        list(Federation(make_config(optimiser={"lr": 1e38}), blobs, tiny_net()))


def test_clients_with_one_class_and_few_samples_take_part(tiny_net: Net, make_config: MakeConfig):
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    few = from_tensors("few", (torch.randn(9, 2), y), (torch.randn(9, 2), y))
    config = make_config(partition={"name": "sharding", "s": 1}, federation={"clients": 9, "ratio": 1.0, "rounds": 2})
    records = list(Federation(config, few, tiny_net()))
    assert records[-1].cohort == list(range(9))
    assert np.isfinite(records[-1].train_loss)


def test_batches_follow_the_plan():
    owned = np.array([3, 5, 7, 11, 13])
    plan = local_plan(0, 1, 2, owned, epochs=3, batch_size=2, augment=None, shape=(2,))
    batches = [samples for samples, _ in plan.batches()]
    assert [len(samples) for samples in batches] == [2, 2, 1] * 3  # the short last batch is kept
    assert plan.steps == 9
    for epoch in range(3):
        seen = np.concatenate(batches[3 * epoch : 3 * epoch + 3])
        assert sorted(seen.tolist()) == owned.tolist()
    for sample, step, place in zip(plan.samples, *plan.places(), strict=True):
        assert batches[step][place] == sample


def test_the_cohort_has_the_asked_size():
    assert len(cohort(0, 1, 100, 0.1)) == 10
    assert len(cohort(0, 1, 100, 0.001)) == 1  # never empty
    assert cohort(0, 1, 5, 1.0) == [0, 1, 2, 3, 4]
    assert len(set(cohort(0, 1, 200, 0.05))) == 10


def test_precision_is_settled_by_the_device_when_a_run_begins(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    left_to_us = make_config(precision="auto")
    assert Federation(left_to_us, blobs, tiny_net()).precision == "fp32"
    gpu = torch.device("cuda")
    for capability, expected in (((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp32")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, this=capability: this)
        assert choose_precision(left_to_us, gpu) == expected
        assert choose_precision(make_config(precision="tf32"), gpu) == "tf32"


def test_what_cannot_be_used_is_refused(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    with pytest.raises(FedntdError, match=r"^device = 'gpu' is not known; it is 'cpu', 'cuda', 'cuda:1' or 'auto'$"):
        Federation(make_config(device="gpu"), blobs, tiny_net())
    with pytest.raises(FedntdError, match=r"^device = 'xpu' cannot be used here \([^.]{0,100}\); 'auto' takes what"):
        Federation(make_config(device="xpu"), blobs, tiny_net())
    with pytest.raises(FedntdError, match=r"precision = 'tf32' needs a CUDA device"):
        Federation(make_config(precision="tf32"), blobs, tiny_net())
    same = (torch.rand(9, 2), torch.zeros(9, dtype=torch.int64))
    with pytest.raises(FedntdError, match="dataset 'alike' has one class only"):
        Federation(make_config(), from_tensors("alike", same, same), tiny_net())
    with pytest.raises(FedntdError, match=r"federation\.clients = 500"):
        Federation(make_config(federation={"clients": 500}), blobs, tiny_net())
    with pytest.raises(FedntdError, match=r"outputs of shape \[2, 4\].*3 classes"):
        Federation(make_config(), blobs, nn.Linear(2, 4))
    with pytest.raises(FedntdError, match=r"krum with robust\.bad = 1 needs at least 4 updates in a round, not 3"):
        Federation(make_config(robust={"name": "krum"}), blobs, tiny_net())
    with pytest.raises(FedntdError, match=r"robust\.trim must be at least 0 and below 0\.5, not 0\.7"):
        Federation(make_config(robust={"name": "trimmed-mean", "trim": 0.7}), blobs, tiny_net())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x[..., None])[0][:, -1])


def test_fedcurv_of_recurrent_layers(blobs: Dataset, make_config: MakeConfig):
    """It cannot be differentiated sample by sample. The error is raised before the first round."""
    with pytest.raises(FedntdError, match=r"sample by sample.*use algorithm\.per_sample = false"):
        Federation(make_config(algorithm={"name": "fedcurv"}), blobs, Recurrent())
    few = make_config(algorithm={"name": "fedcurv", "per_sample": False}, federation={"rounds": 1})
    assert len(list(Federation(few, blobs, Recurrent()))) == 1


@pytest.mark.parametrize("begin", [Federation, lambda config: list(federate(config))])
def test_a_name_in_place_of_a_config_is_one_sentence(begin: Callable):
    with pytest.raises(FedntdError, match=r"'demo' is no Config; configure\(\.\.\.\) makes one"):
        begin("demo")
