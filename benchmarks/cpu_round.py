"""How long a round takes on this CPU, against a plain loop that does what the authors' released code does.

    python benchmarks/cpu_round.py [--data DIR] [--precision fp32 bf16] [--rounds 1]

One round of CIFAR-10 s=2 with FedNTD in the paper's setting: 10 clients of 500 samples, 5 epochs, batch 50, so 25,000
training samples and 25,000 teacher forwards; then 115,000 test forwards: every local model on the whole test set and
on its own training samples, and the global model on the test set. The plain loop works as the released code does: a
DataLoader with five worker processes for each client and for the test set, images augmented one by one, accuracies
counted class by class, and torch using all cores for one client at a time. Both take the same measurements in this one
process; what counts is the ratio. Without the CIFAR-10 files, random images of the same shape are used.
"""

import argparse
import copy
import platform
import time
from datetime import date

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fedntd import Augment, Dataset, Federation
from fedntd.config.presets import preset
from fedntd.config.toml import from_table
from fedntd.data.dataset import Part
from fedntd.data.datasets import DATASETS
from fedntd.errors import FedntdError
from fedntd.models.cnn import CNN


class OneByOne(TorchDataset):
    """Images decoded and augmented one at a time, step by step as the usual stack of torchvision transforms does it:
    crop and flip on a PIL image, ToTensor, Normalize, and Cutout through a NumPy mask."""

    def __init__(self, part: Part, dataset: Dataset, indices: np.ndarray, augment: bool) -> None:
        self.images, self.labels = part.x.permute(0, 2, 3, 1).numpy(), part.y.numpy()
        self.mean, self.std = dataset.mean, dataset.std
        self.indices, self.augment = indices, augment

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        place = self.indices[i]
        image = Image.fromarray(self.images[place])
        if self.augment:
            image = ImageOps.expand(image, border=4, fill=0)
            top, left = torch.randint(0, 9, (2,)).tolist()
            image = image.crop((left, top, left + 32, top + 32))
            if torch.rand(1) < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(image, copy=True)).permute(2, 0, 1).contiguous().float().div(255)
        x = x.clone().sub_(torch.tensor(self.mean)[:, None, None]).div_(torch.tensor(self.std)[:, None, None])
        if self.augment:
            mask = np.ones((32, 32), np.float32)
            centre = np.random.randint(32), np.random.randint(32)
            (top, bottom), (left, right) = ((np.clip(c - 8, 0, 32), np.clip(c + 8, 0, 32)) for c in centre)
            mask[top:bottom, left:right] = 0.0
            x *= torch.from_numpy(mask).expand_as(x)
        return x, int(self.labels[place])


def not_true_by_mask(logits: Tensor, labels: Tensor) -> Tensor:
    others = F.one_hot(labels, logits.shape[1]) == 0
    return logits[others].view(len(logits), -1)


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> np.ndarray:
    model.eval()
    right, total = np.zeros(10), np.zeros(10)
    for x, y in loader:
        correct = model(x).logits.argmax(1) == y
        for c in range(10):
            right[c] += correct[y == c].sum().item()
            total[c] += (y == c).sum().item()
    return right / np.maximum(total, 1)


def plain_round(dataset: Dataset, parts: list[np.ndarray], loaders: int) -> float:
    """Seconds of one round, client after client."""

    def loader(samples: OneByOne, shuffle: bool) -> DataLoader:
        return DataLoader(samples, batch_size=50, shuffle=shuffle, num_workers=loaders)

    started = time.perf_counter()
    global_model = CNN((3, 32, 32), 10)
    tests = loader(OneByOne(dataset.test, dataset, np.arange(len(dataset.test.y)), augment=False), shuffle=False)
    uploads = []
    for indices in parts:
        model, teacher = copy.deepcopy(global_model).train(), copy.deepcopy(global_model).eval()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
        own = loader(OneByOne(dataset.train, dataset, indices, augment=True), shuffle=True)
        for _ in range(5):
            for x, y in own:
                optimiser.zero_grad()
                z = model(x).logits
                with torch.no_grad():
                    z_g = teacher(x).logits
                log_q, q_g = not_true_by_mask(z, y).log_softmax(1), not_true_by_mask(z_g, y).softmax(1)
                loss = F.cross_entropy(z, y) + F.kl_div(log_q, q_g, reduction="batchmean")
                loss.backward()
                optimiser.step()
        test(model, own)
        test(model, tests)
        uploads.append(copy.deepcopy(model.state_dict()))
    mean = {name: torch.stack([u[name] for u in uploads]).mean(0) for name in uploads[0]}
    global_model.load_state_dict(mean)
    test(global_model, tests)
    return time.perf_counter() - started


def our_round(dataset: Dataset, precision: str, rounds: int) -> list[float]:
    """Seconds of each round after a first one, which also tests the initial model and warms up."""
    table = preset("cifar10-s2") | {"precision": precision, "device": "cpu"}
    federation = Federation(from_table(table), dataset)
    federation.play_round()
    return [federation.play_round().seconds for _ in range(rounds)]


def cifar10_or_noise(path: str) -> tuple[Dataset, str]:
    try:
        return DATASETS["cifar10"](path), "CIFAR-10"
    except FedntdError:
        rng = torch.Generator().manual_seed(0)
        parts = [
            Part(
                torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng),
                torch.arange(10).repeat(n // 10),
            )
            for n in (50_000, 10_000)
        ]
        names = tuple("0123456789")
        noise = Dataset("noise", parts[0], parts[1], names, (0.5,) * 3, (0.25,) * 3, Augment(4, flip=True, cutout=16))
        return noise, "random images of CIFAR-10's shape"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder of the CIFAR-10 files; empty: the data folder")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=1, help="rounds of ours to time; the median counts")
    parser.add_argument("--loaders", type=int, default=5, help="worker processes of the plain loop's DataLoaders")
    arguments = parser.parse_args()

    dataset, what = cifar10_or_noise(arguments.data)
    shards = np.split(np.argsort(dataset.train.y.numpy(), kind="stable"), 200)
    parts = [np.concatenate([shards[2 * k], shards[2 * k + 1]]) for k in range(10)]
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    print(f"{date.today()}  {machine}, torch {torch.__version__}")
    print(f"one FedNTD round on {what}, all measurements taken\n")
    plain = plain_round(dataset, parts, arguments.loaders)
    print(f"{'plain DataLoader loop':24}{plain:8.1f} s")
    for precision in arguments.precision:
        ours = float(np.median(our_round(dataset, precision, arguments.rounds)))
        print(f"{'fedntd, ' + precision:24}{ours:8.1f} s   {plain / ours:.2f}x faster")


if __name__ == "__main__":
    main()
