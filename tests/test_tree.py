import torch
from hypothesis import given
from hypothesis import strategies as st

from fedntd import tree


def example() -> dict:
    return {"a.weight": torch.tensor([1.0, 2.0]), "nested": {"b": torch.tensor([[3.0]]), "c": {"d": torch.tensor(4.0)}}}


def test_arithmetic_by_hand():
    a, b = example(), tree.scale(2, example())
    assert tree.add(a, b)["nested"]["c"]["d"].item() == 12
    assert tree.sub(a, b)["a.weight"].tolist() == [-1, -2]
    assert tree.dot(a, b).item() == 2 * (1 + 4 + 9 + 16)
    assert tree.sqnorm(a).item() == 30
    assert tree.nbytes(a) == 4 * 4


def test_weighted_mean_uses_each_clients_weight():
    stacked = tree.stack([{"w": torch.tensor([0.0, 10.0])}, {"w": torch.tensor([4.0, 2.0])}])
    assert tree.weighted_mean(stacked, torch.tensor([0.25, 0.75]))["w"].tolist() == [3.0, 4.0]


def test_inputs_are_not_changed():
    a, b = example(), example()
    tree.add(a, b), tree.scale(3, a), tree.sub(a, b)
    assert a["a.weight"].tolist() == [1, 2]


def test_all_finite_finds_one_bad_value():
    assert tree.all_finite(example())
    for bad in (float("nan"), float("inf")):
        spoilt = example()
        spoilt["nested"]["c"]["d"] = torch.tensor(bad)
        assert not tree.all_finite(spoilt)


names = st.text(alphabet="abc.", min_size=1, max_size=4)
trees = st.recursive(
    st.integers(-5, 5).map(torch.tensor),
    lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3),
    max_leaves=8,
).filter(lambda t: isinstance(t, dict))


@given(trees)
def test_flatten_and_back(t: dict):
    def plain(node):
        return {k: plain(v) if isinstance(v, dict) else v.item() for k, v in node.items()}

    assert plain(tree.unflatten(tree.flatten(t))) == plain(t)
