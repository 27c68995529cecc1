"""What the paper says in words, and whether the runs in the ledger bear it out.

Each claim is a sentence of the paper and a function from the evidence to a verdict with numbers. A claim about all
set-ups holds so far if it holds on those that are measured; one that fails on any of them does not hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedntd.paper.item import Results
from fedntd.paper.methods import METHODS
from fedntd.paper.published import LDA, SHARDING

SETUPS = (*SHARDING, *LDA)


class Evidence:
    """The results of items under one protocol."""

    def __init__(self, results: Callable[[str], Results], rule: str) -> None:
        self.results, self.rule = results, rule

    def accuracy(self, item: str, row: str, column: str) -> float | None:
        """Mean over the finished runs, in %; 0 where all failed, None where there are none."""
        results = self.results(item)
        values = [100 * result.accuracies[self.rule] for result in results.finished(row, column)]
        return float(np.mean(values)) if values else 0.0 if results[row, column] else None

    def forgetting(self, item: str, row: str, column: str) -> float | None:
        values = [result.forgetting for result in self.results(item).finished(row, column)]
        return float(np.mean(values)) if values else None

    def history(self, item: str, row: str, column: str, measure: str, last: int = 0) -> float | None:
        """Mean of a measure over the rounds (or the last of them) and the finished runs."""
        values = [
            value
            for result in self.results(item).finished(row, column)
            for value in result.history.get(measure, [])[-last:]
            if value is not None
        ]
        return float(np.mean(values)) if values else None


class Verdict(NamedTuple):
    holds: bool | None  # None: not measured yet
    numbers: str = ""
    whole: bool = True  # whether all that the claim is about has been measured

    @property
    def words(self) -> str:
        if self.holds is None:
            return "not measured yet"
        return ("holds" if self.whole else "holds so far") if self.holds else "does not hold"


NOTHING = Verdict(None)


@dataclass(frozen=True)
class Claim:
    check: Callable[[Evidence], Verdict]
    where: str  # in the paper
    text: str  # in its words, or nearly


def everywhere(checks: Mapping[str, tuple[bool, str] | None]) -> Verdict:
    """Holds if it does in each case that is measured (None: it is not)."""
    known = {case: check for case, check in checks.items() if check is not None}
    if not known:
        return NOTHING
    numbers = "; ".join(f"{case}: {number}" for case, (_, number) in known.items())
    return Verdict(all(good for good, _ in known.values()), numbers, len(known) == len(checks))


# --- Section 2: forgetting --------------------------------------------------------------------------------------


def forgetting_grows(of: Evidence) -> Verdict:
    levels = {
        "sharding": [f"CIFAR-10 s={s}" for s in (10, 5, 3, 2)],
        "LDA": [f"CIFAR-10 α={alpha}" for alpha in (0.5, 0.3, 0.1, 0.05)],
    }

    def check(columns: Sequence[str]) -> tuple[bool, str] | None:
        known = [f for column in columns if (f := of.forgetting("table1", "FedAvg", column)) is not None]
        if len(known) < len(columns):
            return None
        return known == sorted(known), "F " + " → ".join(f"{f:.2f}" for f in known)

    return everywhere({name: check(columns) for name, columns in levels.items()})


def inconsistent(of: Evidence) -> Verdict:
    means = [of.history("fig-consistency", "CIFAR-10", level, "similarity") for level in ("IID", "α=0.1")]
    if means[0] is None or means[1] is None:
        return NOTHING
    return Verdict(
        means[0] > means[1], f"mean similarity to the round before: IID {means[0]:.3f}, α=0.1 {means[1]:.3f}"
    )


def local_forgets(of: Evidence) -> Verdict:
    names = ("global_in_before", "in_local", "global_out_before", "out_local")
    means = [of.history("fig-local-forgetting", "FedAvg", "LDA α=0.1", name) for name in names]
    if any(mean is None for mean in means):
        return NOTHING
    before, after, out_before, out_after = (100 * (mean or 0) for mean in means)
    numbers = f"on p {before:.1f} → {after:.1f} %, on p̃ {out_before:.1f} → {out_after:.1f} %, mean over rounds"
    return Verdict(after > before and out_after < out_before, numbers)


def average_forgets(of: Evidence) -> Verdict:
    names = ("global_out_before", "global_out_after")
    before, after = (of.history("fig-local-forgetting", "FedAvg", "LDA α=0.1", name) for name in names)
    if before is None or after is None:
        return NOTHING
    return Verdict(after < before, f"on p̃ {100 * before:.1f} → {100 * after:.1f} %, mean over rounds")


# --- Section 4: Table 1 -----------------------------------------------------------------------------------------


def above_fedavg(of: Evidence) -> Verdict:
    def check(column: str) -> tuple[bool, str] | None:
        ours, base = (of.accuracy("table1", method, column) for method in ("FedNTD", "FedAvg"))
        return None if ours is None or base is None else (ours > base, f"{ours - base:+.1f}")

    return everywhere({column: check(column) for column in SETUPS})


def rank_in(of: Evidence, column: str) -> tuple[int, str] | None:
    """FedNTD's place among the methods of a column in which all are measured, and the best method."""
    found = {method: a for method in METHODS if (a := of.accuracy("table1", method, column)) is not None}
    if len(found) < len(METHODS):
        return None
    order = sorted(found, key=lambda method: -found[method])
    return order.index("FedNTD") + 1, order[0]


def above_all(of: Evidence) -> Verdict:
    ranks = {column: rank_in(of, column) for column in SETUPS}
    return everywhere({c: None if r is None else (r[0] == 1, f"place {r[0]} (first {r[1]})") for c, r in ranks.items()})


def best_mostly(of: Evidence) -> Verdict:
    ranks = [rank for column in SETUPS if (rank := rank_in(of, column)) is not None]
    if not ranks:
        return NOTHING
    first = sum(place == 1 for place, _ in ranks)
    return Verdict(2 * first > len(ranks), f"first on {first} of {len(ranks)} set-ups", len(ranks) == len(SETUPS))


def others_fall_below(of: Evidence) -> Verdict:
    def check(method: str) -> tuple[bool, str] | None:
        pairs = [(of.accuracy("table1", method, c), of.accuracy("table1", "FedAvg", c)) for c in SETUPS]
        known = [(mine, base) for mine, base in pairs if mine is not None and base is not None]
        below = sum(mine < base for mine, base in known)
        return (below > 0, f"below on {below} of {len(known)}") if known else None

    return everywhere({method: check(method) for method in METHODS if method not in ("FedAvg", "FedNTD")})


def forgetting_tells_accuracy(of: Evidence) -> Verdict:
    def check(column: str) -> tuple[bool, str] | None:
        pairs = [(of.accuracy("table1", m, column), of.forgetting("table1", m, column)) for m in METHODS]
        known = [(a, f) for a, f in pairs if a is not None and f is not None]
        if len(known) < 4:
            return None
        r = float(np.corrcoef(np.array(known).T)[0, 1])
        return r < -0.7, f"{r:.2f}"

    return everywhere({column: check(column) for column in SETUPS})


# --- Section 5 --------------------------------------------------------------------------------------------------

CURVES = [f"s={s}, E={epochs}" for epochs in (1, 10) for s in (10, 5, 3, 2)]


def keeps_out_local(of: Evidence) -> Verdict:
    def check(column: str) -> tuple[bool, str] | None:
        gains = []
        for measure in ("in_local", "out_local"):
            ours, base = (of.history("fig-curves", method, column, measure, last=50) for method in ("FedNTD", "FedAvg"))
            if ours is None or base is None:
                return None
            gains.append(100 * (ours - base))
        return gains[1] > 0 and abs(gains[0]) < gains[1], f"p {gains[0]:+.1f}, p̃ {gains[1]:+.1f}"

    return everywhere({column: check(column) for column in CURVES})


def gap_grows_with_epochs(of: Evidence) -> Verdict:
    def check(item: str) -> tuple[bool, str] | None:
        gaps = []
        for column in ("E=1", "E=10"):
            ours, base = (of.accuracy(item, method, column) for method in ("FedNTD", "FedAvg"))
            if ours is None or base is None:
                return None
            gaps.append(ours - base)
        return gaps[1] > gaps[0], f"{gaps[0]:+.1f} at E=1, {gaps[1]:+.1f} at E=10"

    return everywhere({"s=2": check("local-epochs-s2"), "α=0.1": check("local-epochs-lda")})


def aligned(of: Evidence) -> Verdict:
    measured = of.results("alignment").measured

    def mean(method: str, partition: str, which: str) -> float | None:
        found = measured.get(f"{method}/{partition}")
        return float(np.mean([one[which] for one in found])) if found else None

    def check(partition: str, which: str) -> tuple[bool, str] | None:
        ours, base = mean("FedNTD", partition, which), mean("FedAvg", partition, which)
        return None if ours is None or base is None else (ours > base, f"{base:.3f} → {ours:.3f}")

    names = {"locals": "locals", "aggregated": "next global"}
    return everywhere({f"{p}, {name}": check(p, key) for p in ("s=2", "α=0.05") for key, name in names.items()})


def divergence_follows_distance(of: Evidence) -> Verdict:
    def check(method: str) -> tuple[bool, str] | None:
        found = of.results("fig-divergence").measured.get(f"{method}/s=2")
        if not found:
            return None
        r = float(np.corrcoef(np.ravel(found["distributions"]), np.ravel(found["weights"]))[0, 1])
        return r > 0.5, f"r = {r:.2f}"

    return everywhere({method: check(method) for method in ("FedAvg", "FedNTD")})


def drifts_less(of: Evidence) -> Verdict:
    found = [of.results("fig-divergence").measured.get(f"{method}/s=2") for method in ("FedAvg", "FedNTD")]
    if not all(found):
        return NOTHING
    base, ours = (float(np.mean(one["weights"])) for one in found if one)
    return Verdict(ours < base, f"mean ‖w − w_k‖: FedAvg {base:.4g}, FedNTD {ours:.4g}")


# --- appendix ---------------------------------------------------------------------------------------------------


def needs_nothing(of: Evidence) -> Verdict:
    from fedntd.paper.requirements import COLUMNS, does_without

    found = zip(COLUMNS, does_without()["FedNTD"], strict=True)
    return everywhere({column: (good, "yes" if good else "no") for column, good in found})


def resnet_first(of: Evidence) -> Verdict:
    def check(row: str) -> tuple[bool, str] | None:
        found = {m: of.accuracy("resnet10", row, m) for m in ("FedAvg", "SCAFFOLD", "MOON", "FedNTD")}
        known = {method: accuracy for method, accuracy in found.items() if accuracy is not None}
        if len(known) < len(found):
            return None
        best = max(known, key=lambda method: known[method])
        return best == "FedNTD", f"first {best}, FedNTD {known['FedNTD']:.1f}"

    return everywhere({row: check(row) for row in ("Sharding s=2", "Sharding s=5", "LDA α=0.1")})


def towards_ntd(of: Evidence) -> Verdict:
    columns = ("KD", "λ=0.1", "λ=0.3", "λ=0.5", "λ=0.7", "λ=0.9", "NTD")

    def check(row: str) -> tuple[bool, str] | None:
        known = [(i, a) for i, column in enumerate(columns) if (a := of.accuracy("kd-ntd", row, column)) is not None]
        if len(known) < 3 or known[0][0] != 0 or known[-1][0] != 6:
            return None
        r = float(np.corrcoef(np.array(known).T)[0, 1])
        path = " → ".join(f"{accuracy:.1f}" for _, accuracy in known)
        return known[-1][1] > known[0][1] and r > 0.5, f"{path} (r = {r:.2f})"

    return everywhere({row: check(row) for row in ("Sharding s=2", "LDA α=0.1")})


def kd_holds_locals_back(of: Evidence) -> Verdict:
    kd, ntd = (of.history("kd-ntd", "Sharding s=2", column, "in_local") for column in ("KD", "NTD"))
    if kd is None or ntd is None:
        return NOTHING
    return Verdict(ntd > kd, f"personalised accuracy, mean over rounds: KD {100 * kd:.1f} %, NTD {100 * ntd:.1f} %")


def personalises(of: Evidence) -> Verdict:
    return personal(of, "FedNTD", lambda local, server: local > 0)


def scaffold_is_odd(of: Evidence) -> Verdict:
    return personal(of, "SCAFFOLD", lambda local, server: local < 0 and server > 0)


def personal(of: Evidence, method: str, good: Callable[[float, float], bool]) -> Verdict:
    """A method against FedAvg: local models on their own distribution over all rounds, and the server's at the end."""

    def check(column: str) -> tuple[bool, str] | None:
        local = [of.history("fig-personalized", m, column, "in_local") for m in (method, "FedAvg")]
        server = [of.accuracy("fig-personalized", m, column) for m in (method, "FedAvg")]
        if local[0] is None or local[1] is None or server[0] is None or server[1] is None:
            return None
        gains = 100 * (local[0] - local[1]), server[0] - server[1]
        return good(*gains), f"local {gains[0]:+.1f}, server {gains[1]:+.1f}"

    return everywhere({column: check(column) for column in ("s=2", "s=5", "LDA α=0.1")})


def fedalign_suffers(of: Evidence) -> Verdict:
    def check(clients: int, alpha: float, method: str) -> tuple[bool, str] | None:
        row = f"{clients} clients, α={alpha}"
        ours, base = (of.accuracy("fedalign", row, m) for m in (method, "FedAvg"))
        if ours is None or base is None:
            return None
        good = ours > base if method == "FedNTD" or alpha == 0.5 else ours < base
        return good, f"{ours - base:+.1f}"

    rows = [(clients, alpha) for clients in (16, 64) for alpha in (0.05, 0.1, 0.5)]
    return everywhere({f"{m}, {c} clients, α={a}": check(c, a, m) for m in ("FedAlign", "FedNTD") for c, a in rows})


def mse_falls_short(of: Evidence) -> Verdict:
    row, betas = "Sharding s=2", (0.001, 0.005, 0.01, 0.05, 0.1, 0.3)
    base, ntd = of.accuracy("mse", row, "FedAvg"), of.accuracy("mse", row, "FedNTD β=1")
    found = [(beta, a) for beta in betas if (a := of.accuracy("mse", row, f"MSE β={beta}")) is not None]
    if base is None or ntd is None or len(found) < len(betas):
        return NOTHING
    best_beta, best = max(found, key=lambda pair: pair[1])
    failed = [f"β={beta} failed" for beta, accuracy in found if accuracy == 0]
    numbers = f"FedAvg {base:.1f}, best MSE {best:.1f} at β={best_beta}, FedNTD {ntd:.1f}"
    return Verdict(base < best < ntd and bool(failed), ", ".join([numbers, *failed]))


def steady_in_beta(of: Evidence) -> Verdict:
    def check(row: str) -> tuple[bool, str] | None:
        spans = {}
        for name in ("τ", "β"):
            columns = [column for r, column in of.results("fig-hyper") if r == row and column.startswith(name)]
            known = [accuracy for c in columns if (accuracy := of.accuracy("fig-hyper", row, c)) is not None]
            if len(known) < len(columns):
                return None
            spans[name] = known
        lost = max(spans["τ"]) - spans["τ"][0]
        span = max(spans["β"]) - min(spans["β"])
        return lost > span, f"the smallest τ costs {lost:.1f} points, β moves it by {span:.1f}"

    return everywhere({row: check(row) for row in ("Sharding s=2", "LDA α=0.1")})


def smooths(of: Evidence) -> Verdict:
    row, found = "16 clients, α=0.5", of.results("fig-landscape").measured
    ours, base = (found.get(f"{row}/{method}") for method in ("FedNTD", "FedAvg"))
    if not ours or not base:
        return NOTHING
    rises = [float(np.mean(one["perturbed"][-1])) for one in (base, ours)]
    sharp = [one["eigenvalues"][0] for one in (base, ours)]
    numbers = f"loss under noise {rises[0]:+.3g} → {rises[1]:+.3g}, sharpest curvature {sharp[0]:.3g} → {sharp[1]:.3g}"
    return Verdict(rises[1] < rises[0] and sharp[1] < sharp[0], numbers)


CLAIMS = (
    Claim(
        forgetting_grows,
        "Section 2.1",
        "The global model suffers from forgetting more severely as the heterogeneity level increases.",
    ),
    Claim(
        inconsistent,
        "Section 2.1",
        "Prediction is highly inconsistent in the non-i.i.d. case.",
    ),
    Claim(
        local_forgets,
        "Section 2.2",
        "After local training, the local models are well-fitted towards p, and the accuracy on p̃ significantly drops.",
    ),
    Claim(
        average_forgets,
        "Section 2.2",
        "The global model accuracy on p̃ also degrades.",
    ),
    Claim(
        above_fedavg,
        "Section 4.2",
        "FedNTD outperforms FedAvg on all set-ups.",
    ),
    Claim(
        above_all,
        "Section 4.2",
        "FedNTD consistently outperforms the baselines on all setups.",
    ),
    Claim(
        best_mostly,
        "Section 4.2",
        "It achieves state-of-the-art results in most cases.",
    ),
    Claim(
        others_fall_below,
        "Section 4.2",
        "Even the state-of-the-art methods perform well only in specific setups, and their performance often "
        "deteriorates below FedAvg.",
    ),
    Claim(
        forgetting_tells_accuracy,
        "Section 4.2",
        "The performance in federated learning is closely related to forgetting, improving as the forgetting reduces.",
    ),
    Claim(
        needs_nothing,
        "Section 4.2",
        "FedNTD neither requires statefulness, additional communication cost, nor auxiliary data.",
    ),
    Claim(
        keeps_out_local,
        "Section 5",
        "Both show little change in local accuracy on p, but FedNTD significantly improves the local accuracy on p̃.",
    ),
    Claim(
        gap_grows_with_epochs,
        "Section 5",
        "The gaps are enlarged when the number of local epochs increases.",
    ),
    Claim(
        aligned,
        "Section 5.1",
        "FedNTD significantly enhances the alignment in the NIID cases.",
    ),
    Claim(
        divergence_follows_distance,
        "Section 5.2",
        "There is a strong correlation between weight divergence and distribution distance.",
    ),
    Claim(
        drifts_less,
        "Section 5.2",
        "FedNTD effectively stabilizes the weight divergence.",
    ),
    Claim(
        resnet_first,
        "Appendix G.3",
        "FedNTD is the best with ResNet-10, too.",
    ),
    Claim(
        towards_ntd,
        "Appendix H",
        "Reaching L(λ) to L_NTD significantly improves the performance.",
    ),
    Claim(
        kd_holds_locals_back,
        "Appendix H",
        "The local model learned by KD shows much lower local performance; FedNTD shows much higher local performance.",
    ),
    Claim(
        personalises,
        "Appendix I",
        "FedNTD also improves personalized performance.",
    ),
    Claim(
        scaffold_is_odd,
        "Appendix I",
        "In all cases, SCAFFOLD shows significantly lower local performance, but it considerably improves the "
        "global convergence.",
    ),
    Claim(
        fedalign_suffers,
        "Appendix J",
        "FedAlign improves at α=0.5, but suffers when the heterogeneity becomes severe; FedNTD consistently improves.",
    ),
    Claim(
        smooths,
        "Appendix J",
        "FedNTD also smoothed the local landscape.",
    ),
    Claim(
        steady_in_beta,
        "Appendix K",
        "FedNTD is not much sensitive to the choice of β; too small τ significantly drops the accuracy.",
    ),
    Claim(
        mse_falls_short,
        "Appendix L",
        "The MSE version shows better accuracy as β grows, but at some degree the model diverges; it cannot "
        "reach FedNTD.",
    ),
)
