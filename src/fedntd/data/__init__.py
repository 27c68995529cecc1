"""Datasets, and partitions of their samples among clients."""

from typing import TYPE_CHECKING

from fedntd.support.lazy import lazy

if TYPE_CHECKING:
    from fedntd.data.augment import Augment
    from fedntd.data.dataset import Dataset, Part, from_tensors
    from fedntd.data.datasets import DATASETS
    from fedntd.data.partition import PARTITIONS, iid, lda, sharding

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Augment",
    "Dataset",
    "Part",
    "from_tensors",
    "iid",
    "lda",
    "sharding",
]

__getattr__ = lazy(
    __name__,
    {
        "Augment": "augment",
        "DATASETS": "datasets",
        "Dataset": "dataset",
        "PARTITIONS": "partition",
        "Part": "dataset",
        "from_tensors": "dataset",
        "iid": "partition",
        "lda": "partition",
        "sharding": "partition",
    },
)
