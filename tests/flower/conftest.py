"""Real processes first: a federation takes longest, and waits for its own processes a lot."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.name.startswith(("test_real", "test_guide", "test_scale")))
