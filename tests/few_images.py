"""The packaged images with few to test on: a run of a round or two would test models for most of its time."""

from dataclasses import replace

from fedntd import Dataset
from fedntd.data.dataset import Part
from fedntd.data.datasets import DATASETS, fashion_mini


def fashion_with_few_test_images(path: str, count: int = 100) -> Dataset:
    whole = fashion_mini(path)
    return replace(whole, test=Part(whole.test.x[:count], whole.test.y[:count]))


def leave_few_test_images() -> None:
    """For a whole process; the fixture `few_test_images` does it for a test."""
    DATASETS["fashion-mini"] = fashion_with_few_test_images
