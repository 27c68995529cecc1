"""WSM: Legate, Caccia, Belilovsky, Re-Weighted Softmax Cross-Entropy to Control Forgetting in Federated Learning,
CoLLAs 2023."""

from dataclasses import dataclass

from fedntd.algorithms.balanced import Balanced


@dataclass(frozen=True)
class WSM(Balanced):
    """Each class has the weight in the softmax that it has in the client's data; classes that it lacks have none."""

    smoothing: float = 0.0  # added to each count
