"""Analysis of federated runs: functions on weights, batches and runs, which also work on runs of your own.

rounds          a run restored from its folder; a round with its local models; one client's training step by step
alignment       which class each neuron prefers, and how many neurons of two models agree
divergence      how far local weights move, against how far a client's classes are from the global model's
diversity       gradient diversity (definition 2) and proposition 1
distillation    the divergence of two models' answers, split into true and not-true classes (proposition 2)
minimax         the most robust distribution to start from (proposition 3)
landscape       loss under noise, the Hessian's largest eigenvalues, the loss over a plane
features        features on the circle, and t-SNE of features
"""

from typing import TYPE_CHECKING

from fedntd.support.lazy import lazy

if TYPE_CHECKING:
    from fedntd.analysis.alignment import mean_activations, preferred_classes
    from fedntd.analysis.distillation import KLSplit, kl_split
    from fedntd.analysis.divergence import (
        Correlation,
        Distances,
        correlation,
        distances,
        distribution_distances,
        weight_distances,
    )
    from fedntd.analysis.diversity import (
        class_gradients,
        diversity_of_mixtures,
        gradient_diversity,
        gram_matrix,
        local_gradients,
    )
    from fedntd.analysis.features import CircleCNN, angles, circle_density, tsne
    from fedntd.analysis.landscape import Eigenpairs, Landscape, Loss, loss_surface, perturbed_losses, top_eigenpairs
    from fedntd.analysis.minimax import worst_distance
    from fedntd.analysis.rounds import (
        Inside,
        Trace,
        class_accuracy,
        next_cohort,
        next_round,
        out_of,
        reopen,
        start_from,
        trace_client,
        watch,
    )

__all__ = [
    "CircleCNN",
    "Correlation",
    "Distances",
    "Eigenpairs",
    "Inside",
    "KLSplit",
    "Landscape",
    "Loss",
    "Trace",
    "angles",
    "circle_density",
    "class_accuracy",
    "class_gradients",
    "correlation",
    "distances",
    "distribution_distances",
    "diversity_of_mixtures",
    "gradient_diversity",
    "gram_matrix",
    "kl_split",
    "local_gradients",
    "loss_surface",
    "mean_activations",
    "next_cohort",
    "next_round",
    "out_of",
    "perturbed_losses",
    "preferred_classes",
    "reopen",
    "start_from",
    "top_eigenpairs",
    "trace_client",
    "tsne",
    "watch",
    "weight_distances",
    "worst_distance",
]

__getattr__ = lazy(
    __name__,
    {
        "CircleCNN": "features",
        "Correlation": "divergence",
        "Distances": "divergence",
        "Eigenpairs": "landscape",
        "Inside": "rounds",
        "KLSplit": "distillation",
        "Landscape": "landscape",
        "Loss": "landscape",
        "Trace": "rounds",
        "angles": "features",
        "circle_density": "features",
        "class_accuracy": "rounds",
        "class_gradients": "diversity",
        "correlation": "divergence",
        "distances": "divergence",
        "distribution_distances": "divergence",
        "diversity_of_mixtures": "diversity",
        "gradient_diversity": "diversity",
        "gram_matrix": "diversity",
        "kl_split": "distillation",
        "local_gradients": "diversity",
        "loss_surface": "landscape",
        "mean_activations": "alignment",
        "next_cohort": "rounds",
        "next_round": "rounds",
        "out_of": "rounds",
        "perturbed_losses": "landscape",
        "preferred_classes": "alignment",
        "reopen": "rounds",
        "start_from": "rounds",
        "top_eigenpairs": "landscape",
        "trace_client": "rounds",
        "tsne": "features",
        "watch": "rounds",
        "weight_distances": "divergence",
        "worst_distance": "minimax",
    },
)
