"""The paper's claims, by section, each with a function that checks it against the runs in the ledger."""

from fedntd.paper.evidence import (
    Claim,
    Evidence,
    Finding,
    NotMeasured,
    arrows,
    correlation,
    correlation_within,
    mean,
    where_measured,
)
from fedntd.paper.methods import METHODS
from fedntd.paper.published import LDA, SHARDING, TABLE1_LDA, TABLE1_SHARDING

SETUPS = (*SHARDING, *LDA)
PRINTED = TABLE1_SHARDING | TABLE1_LDA


# --- Section 2: forgetting --------------------------------------------------------------------------------------

LEVELS = {  # from similar to dissimilar clients
    "sharding": [f"CIFAR-10 s={s}" for s in (10, 5, 3, 2)],
    "LDA": [f"CIFAR-10 α={alpha}" for alpha in (0.5, 0.3, 0.1, 0.05)],
}


def forgetting_grows(evidence: Evidence, case: str) -> Finding:
    values = [evidence.forgetting("table1", "FedAvg", column) for column in LEVELS[case]]
    return Finding(values == sorted(values), f"F {arrows(values, 2)}")


def inconsistent(evidence: Evidence, case: str) -> Finding:
    iid, niid = (evidence.over_rounds("fig-consistency", "CIFAR-10", c, "similarity") / 100 for c in ("IID", "α=0.1"))
    return Finding(niid < iid, f"mean similarity to the round before: IID {iid:.3f}, α=0.1 {niid:.3f}")


def local_forgetting(evidence: Evidence, *measures: str) -> list[float]:
    return [evidence.over_rounds("fig-local-forgetting", "FedAvg", "LDA α=0.1", measure) for measure in measures]


def local_forgets(evidence: Evidence, case: str) -> Finding:
    p = local_forgetting(evidence, "global_in_before", "in_local")
    p_out = local_forgetting(evidence, "global_out_before", "out_local")
    numbers = f"on p {arrows(p, 1)} %, on p̃ {arrows(p_out, 1)} %, mean over rounds"
    return Finding(p[1] > p[0] and p_out[1] < p_out[0], numbers)


def average_forgets(evidence: Evidence, case: str) -> Finding:
    p_out = local_forgetting(evidence, "global_out_before", "global_out_after")
    return Finding(p_out[1] < p_out[0], f"on p̃ {arrows(p_out, 1)} %, mean over rounds")


# --- Section 4: Table 1 -----------------------------------------------------------------------------------------


def above_fedavg(evidence: Evidence, setup: str) -> Finding:
    lead = evidence.lead("table1", ("FedNTD", setup), ("FedAvg", setup))
    return Finding(lead > 0, f"{lead:+.1f}")


def first_of_all(evidence: Evidence, setup: str) -> Finding:
    accuracies = evidence.order("table1", {method: (method, setup) for method in METHODS})
    first, place = next(iter(accuracies)), list(accuracies).index("FedNTD") + 1
    if place == 1:
        return Finding(True, "first")
    lead = accuracies[first] - accuracies["FedNTD"]
    return Finding(False, f"place {place} ({first} {lead:+.1f}{in_print(first, setup)})")


def in_print(method: str, setup: str) -> str:
    """The lead of a method over FedNTD in the paper's own table, if it leads: ", in print +0.4"."""
    printed, fedntd = (PRINTED[name, setup].value for name in (method, "FedNTD"))
    return f", in print {printed - fedntd:+.1f}" if printed and fedntd and printed > fedntd else ""


def falls_below_fedavg(evidence: Evidence, method: str) -> Finding:
    leads = where_measured(SETUPS, lambda setup: evidence.lead("table1", (method, setup), ("FedAvg", setup)))
    if not leads:
        raise NotMeasured
    below = sum(lead < 0 for lead in leads.values())
    if not below and len(leads) < len(SETUPS):  # it may fall below on the other set-ups
        raise NotMeasured
    return Finding(below > 0, f"below on {below} of {len(leads)}")


def forgetting_tells_accuracy(evidence: Evidence, setup: str) -> Finding:
    forgotten = where_measured(METHODS, lambda method: evidence.forgetting("table1", method, setup))
    if len(forgotten) < 4:
        raise NotMeasured
    r = correlation([evidence.accuracy("table1", method, setup) for method in forgotten], list(forgotten.values()))
    return Finding(r < -0.7, f"r = {r:.2f}")


def needs_nothing(evidence: Evidence, case: str) -> Finding:
    from fedntd.paper.items.requirements import COLUMNS, does_without

    without = does_without()["FedNTD"]
    return Finding(all(without), ", ".join(c for c, good in zip(COLUMNS, without, strict=True) if good))


# --- Section 5 --------------------------------------------------------------------------------------------------

CURVES = [f"s={s}, E={epochs}" for epochs in (1, 10) for s in (10, 5, 3, 2)]


def keeps_out_local(evidence: Evidence, column: str) -> Finding:
    def gain(measure: str) -> float:
        ours, base = (
            evidence.over_rounds("fig-curves", method, column, measure, last=50) for method in ("FedNTD", "FedAvg")
        )
        return ours - base

    p, p_out = gain("in_local"), gain("out_local")
    return Finding(abs(p) < p_out, f"p {p:+.1f}, p̃ {p_out:+.1f}")


def gap_grows_with_epochs(evidence: Evidence, case: str) -> Finding:
    item = {"s=2": "local-epochs-s2", "α=0.1": "local-epochs-lda"}[case]
    few, many = (evidence.lead(item, ("FedNTD", epochs), ("FedAvg", epochs)) for epochs in ("E=1", "E=10"))
    return Finding(many > few, f"{few:+.1f} at E=1, {many:+.1f} at E=10")


def aligned(evidence: Evidence, partition: str) -> Finding:
    shares = {
        name: [
            mean(run[key] for run in evidence.measured("alignment", f"{m}/{partition}")) for m in ("FedAvg", "FedNTD")
        ]
        for key, name in (("locals", "locals"), ("aggregated", "next global"))
    }
    numbers = ", ".join(f"{name} {arrows(pair, 3)}" for name, pair in shares.items())
    return Finding(all(ours > base for base, ours in shares.values()), numbers)


def divergence_follows_distance(evidence: Evidence, method: str) -> Finding:
    distances = evidence.measured("fig-divergence", f"{method}/s=2")
    r, within = (
        measure(distances["distributions"], distances["weights"]) for measure in (correlation, correlation_within)
    )
    return Finding(r > 0.5, f"r = {r:.2f}, within a round {within:.2f} on average")


def drifts_less(evidence: Evidence, case: str) -> Finding:
    base, ours = (
        mean(evidence.measured("fig-divergence", f"{method}/s=2")["weights"]) for method in ("FedAvg", "FedNTD")
    )
    return Finding(ours < base, f"mean ‖w − w_k‖₁: FedAvg {base:.4g}, FedNTD {ours:.4g}")


# --- appendix ---------------------------------------------------------------------------------------------------

PARTITIONS = ("Sharding s=2", "LDA α=0.1")


def first_with_resnet(evidence: Evidence, partition: str) -> Finding:
    ranking = evidence.order(
        "resnet10", {method: (partition, method) for method in ("FedAvg", "SCAFFOLD", "MOON", "FedNTD")}
    )
    accuracies = ", ".join(f"{method} {accuracy:.1f}" for method, accuracy in ranking.items())
    return Finding(next(iter(ranking)) == "FedNTD", accuracies)


def nearer_to_ntd(evidence: Evidence, partition: str) -> Finding:
    columns = ("KD", *(f"λ={lam}" for lam in (0.1, 0.3, 0.5, 0.7, 0.9)), "NTD")
    path = [evidence.accuracy("kd-ntd", partition, column) for column in columns]
    r = correlation(range(len(path)), path)
    return Finding(path[-1] > path[0] and r > 0.5, f"{arrows(path, 1)} (r = {r:.2f})")


def kd_holds_locals_back(evidence: Evidence, case: str) -> Finding:
    kd, ntd = (evidence.over_rounds("kd-ntd", "Sharding s=2", column, "in_local") for column in ("KD", "NTD"))
    return Finding(ntd > kd, f"personalised accuracy, mean over rounds: KD {kd:.1f} %, NTD {ntd:.1f} %")


def personal_gains(evidence: Evidence, method: str, setup: str) -> tuple[float, float]:
    """Gains over FedAvg: of local models on their own distribution (mean over rounds), and of the global model."""
    ours, base = (evidence.over_rounds("fig-personalized", m, setup, "in_local") for m in (method, "FedAvg"))
    return ours - base, evidence.lead("fig-personalized", (method, setup), ("FedAvg", setup))


def personalises(evidence: Evidence, setup: str) -> Finding:
    local, server = personal_gains(evidence, "FedNTD", setup)
    return Finding(local > 0, f"local {local:+.1f}, server {server:+.1f}")


def scaffold_is_odd(evidence: Evidence, setup: str) -> Finding:
    local, server = personal_gains(evidence, "SCAFFOLD", setup)
    return Finding(local < 0 < server, f"local {local:+.1f}, server {server:+.1f}")


def fedalign_suffers(evidence: Evidence, row: str) -> Finding:
    align, ntd = (evidence.lead("fedalign", (row, method), (row, "FedAvg")) for method in ("FedAlign", "FedNTD"))
    good = align > 0 if row.endswith("α=0.5") else align < 0
    return Finding(good and ntd > 0, f"FedAlign {align:+.1f}, FedNTD {ntd:+.1f}")


def smooths(evidence: Evidence, case: str) -> Finding:
    base, ours = (evidence.measured("fig-landscape", f"16 clients, α=0.5/{method}") for method in ("FedAvg", "FedNTD"))
    rises = [mean(landscape["perturbed"][-1]) for landscape in (base, ours)]
    sharp = [landscape["eigenvalues"][0] for landscape in (base, ours)]
    numbers = f"loss under noise {rises[0]:+.3g} → {rises[1]:+.3g}, sharpest curvature {sharp[0]:.3g} → {sharp[1]:.3g}"
    return Finding(rises[1] < rises[0] and sharp[1] < sharp[0], numbers)


def steady_in_beta(evidence: Evidence, partition: str) -> Finding:
    from fedntd.paper.items.fig_hyper import SWEEPS, column

    tau, beta = ([evidence.accuracy("fig-hyper", partition, column(s, v)) for v in SWEEPS[s]] for s in ("τ", "β"))
    lost, span = max(tau) - tau[0], max(beta) - min(beta)
    return Finding(lost > span, f"the smallest τ costs {lost:.1f} points, β moves it by {span:.1f}")


def mse_falls_short(evidence: Evidence, case: str) -> Finding:
    betas = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3)
    base, ntd = (evidence.accuracy("mse", "Sharding s=2", column) for column in ("FedAvg", "FedNTD β=1"))
    mse = {beta: evidence.accuracy("mse", "Sharding s=2", f"MSE β={beta}") for beta in betas}
    best = max(mse, key=lambda beta: mse[beta])
    failed = [
        f"β={beta}: {count} failed"
        for beta in betas
        if (count := evidence.failed("mse", "Sharding s=2", f"MSE β={beta}"))
    ]
    numbers = f"FedAvg {base:.1f}, best MSE {mse[best]:.1f} at β={best}, FedNTD {ntd:.1f}"
    return Finding(base < mse[best] < ntd and bool(failed), ", ".join([numbers, *failed]))


# fmt: off
CLAIMS: dict[str, Claim] = {
    "forgetting grows": Claim(
        "Section 2.1", "The global model suffers from forgetting more severely as the heterogeneity level increases.",
        forgetting_grows, tuple(LEVELS)),
    "inconsistent": Claim(
        "Section 2.1", "Prediction is highly inconsistent in the non-i.i.d. case.",
        inconsistent),
    "local forgets": Claim(
        "Section 2.2", "After local training, the local models are well-fitted towards p, and the accuracy on p̃ "
        "significantly drops.",
        local_forgets),
    "average forgets": Claim(
        "Section 2.2", "The global model accuracy on p̃ also degrades.",
        average_forgets),
    "above FedAvg": Claim(
        "Section 4.2", "FedNTD outperforms FedAvg on all set-ups.",
        above_fedavg, SETUPS),
    "above all": Claim(
        "Section 4.2", "FedNTD consistently outperforms the baselines on all setups.",
        first_of_all, SETUPS),
    "best mostly": Claim(
        "Section 4.2", "It achieves state-of-the-art results in most cases.",
        first_of_all, SETUPS, mostly=True),
    "others fall below": Claim(
        "Section 4.2", "Even the state-of-the-art methods perform well only in specific setups, and their performance "
        "often deteriorates below FedAvg.",
        falls_below_fedavg, [method for method in METHODS if method not in ("FedAvg", "FedNTD")]),
    "forgetting tells accuracy": Claim(
        "Section 4.2", "The performance in federated learning is closely related to forgetting, improving as the "
        "forgetting reduces.",
        forgetting_tells_accuracy, SETUPS),
    "needs nothing": Claim(
        "Section 4.2", "FedNTD neither requires statefulness, additional communication cost, nor auxiliary data.",
        needs_nothing),
    "keeps out-local": Claim(
        "Section 5", "Both show little change in local accuracy on p, but FedNTD significantly improves the local "
        "accuracy on p̃.",
        keeps_out_local, CURVES),
    "gap grows with epochs": Claim(
        "Section 5", "The gaps are enlarged when the number of local epochs increases.",
        gap_grows_with_epochs, ("s=2", "α=0.1")),
    "aligned": Claim(
        "Section 5.1", "FedNTD significantly enhances the alignment in the NIID cases.",
        aligned, ("s=2", "α=0.05")),
    "divergence follows distance": Claim(
        "Section 5.2", "There is a strong correlation between weight divergence and distribution distance.",
        divergence_follows_distance, ("FedAvg", "FedNTD")),
    "drifts less": Claim(
        "Section 5.2", "FedNTD effectively stabilizes the weight divergence.",
        drifts_less),
    "first with ResNet-10": Claim(
        "Appendix G.3", "FedNTD is the best with ResNet-10, too.",
        first_with_resnet, ("Sharding s=2", "Sharding s=5", "LDA α=0.1")),
    "nearer to NTD": Claim(
        "Appendix H", "Reaching L(λ) to L_NTD significantly improves the performance.",
        nearer_to_ntd, PARTITIONS),
    "KD holds locals back": Claim(
        "Appendix H", "The local model learned by KD shows much lower local performance; FedNTD shows much higher "
        "local performance.",
        kd_holds_locals_back),
    "personalises": Claim(
        "Appendix I", "FedNTD also improves personalized performance.",
        personalises, ("s=2", "s=5", "LDA α=0.1")),
    "SCAFFOLD is odd": Claim(
        "Appendix I", "In all cases, SCAFFOLD shows significantly lower local performance, but it considerably "
        "improves the global convergence.",
        scaffold_is_odd, ("s=2", "s=5", "LDA α=0.1")),
    "FedAlign suffers": Claim(
        "Appendix J", "FedAlign improves at α=0.5, but suffers when the heterogeneity becomes severe; FedNTD "
        "consistently improves.",
        fedalign_suffers, [f"{clients} clients, α={alpha}" for clients in (16, 64) for alpha in (0.05, 0.1, 0.5)]),
    "smooths": Claim(
        "Appendix J", "FedNTD also smoothed the local landscape.",
        smooths),
    "steady in beta": Claim(
        "Appendix K", "FedNTD is not much sensitive to the choice of β; too small τ significantly drops the accuracy.",
        steady_in_beta, PARTITIONS),
    "MSE falls short": Claim(
        "Appendix L", "The MSE version shows better accuracy as β grows, but at some degree the model diverges; it "
        "cannot reach FedNTD.",
        mse_falls_short),
}
# fmt: on
