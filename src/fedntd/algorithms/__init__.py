"""The methods, one file each. To add one: write the file and add a line here; tests/test_contract.py then checks it."""

from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.fedntd import FedNTD

ALGORITHMS: dict[str, type[FedAvg]] = {"fedavg": FedAvg, "fedntd": FedNTD}
