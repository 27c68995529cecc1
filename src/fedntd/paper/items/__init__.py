"""The registry: every item by name, and where it is defined. An item's module is imported only when needed."""

import importlib

from fedntd.errors import require_known
from fedntd.paper.item import Item

ITEMS: dict[str, str] = {
    "table1": "table1:TABLE1",
    "table1-std": "table1:STD",
    "local-epochs-s2": "effects:EPOCHS_S2",
    "local-epochs-lda": "effects:EPOCHS_LDA",
    "sampling-ratio-s2": "effects:RATIO_S2",
    "sampling-ratio-lda": "effects:RATIO_LDA",
    "resnet10": "resnet10:ITEM",
    "kd-ntd": "kd_ntd:ITEM",
    "fedalign": "fedalign:ITEM",
    "mse": "mse:ITEM",
    "alignment": "alignment:ITEM",
    "requirements": "requirements:ITEM",
    "fig-consistency": "fig_consistency:ITEM",
    "fig-distributions": "fig_distributions:ITEM",
    "fig-local-forgetting": "fig_local_forgetting:ITEM",
    "fig-local-training": "fig_local_training:ITEM",
    "fig-curves": "fig_curves:ITEM",
    "fig-divergence": "fig_divergence:ITEM",
    "fig-personalized": "fig_personalized:ITEM",
    "fig-landscape": "fig_landscape:ITEM",
    "fig-hyper": "fig_hyper:ITEM",
    "fig-hypersphere": "fig_hypersphere:ITEM",
    "fig-tsne": "fig_tsne:ITEM",
    "prop1": "prop1:ITEM",
    "prop2": "prop2:ITEM",
    "prop3": "prop3:ITEM",
    # not in the paper: where its numbers come from
    "printed-rule": "printed_rule:ITEM",
    "learning-rate": "learning_rate:ITEM",
    "variants": "variants:ITEM",
}


def find(name: str) -> Item:
    """Import and return the item with this name."""
    require_known(name, ITEMS, f"the paper has no item '{name}'")
    module, _, attribute = ITEMS[name].partition(":")
    return getattr(importlib.import_module(f"fedntd.paper.items.{module}"), attribute)
