"""The same weights, bit for bit, from run to run: all settings that it needs, in one function.

    python examples/parallelism/deterministic_flags.py --seed 1 --workers 2

Missing in the notes: ``torch.use_deterministic_algorithms`` raises for operations that have no deterministic algorithm,
and fills new memory with NaN, which reveals reads of it; sums depend on the number of threads; and no setting reaches
the loader's workers, see worker_count.py.

Measured (torch 2.13, CPU): hashes of the weights are equal for 0 and 2 workers and differ between seeds.
"""

import hashlib
import os
import random

import numpy as np
import torch
from common import descend, options
from torch import Tensor, nn
from torch.utils.data import Dataset

from fastload import DataLoader


def make_deterministic(seed: int, *, warn_only: bool = False) -> None:
    """Seed the global generators and choose deterministic operations. Call this first, on every rank."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of all devices
    torch.backends.cudnn.benchmark = False  # otherwise the fastest algorithm of this run is used
    torch.use_deterministic_algorithms(True, warn_only=warn_only)  # covers cudnn.deterministic
    # PYTHONHASHSEED, the order of sets of strings, can only be set before Python starts.


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Images of noise, augmented by more of it."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
        return image + 0.1 * torch.randn(1, 8, 8), torch.tensor(index % 3)


def train(seed: int, num_workers: int, device: str) -> str:
    """Train for two epochs and return a digest of the weights."""
    make_deterministic(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(288, 3)
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    loader = DataLoader(Noisy(), 16, shuffle=True, seed=seed, num_workers=num_workers)
    for _ in range(2):
        for images, classes in loader:
            loss = nn.functional.cross_entropy(network(images.to(device)), classes.to(device))
            descend(optimizer, loss)
    digest = hashlib.sha256()
    for value in network.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def refused() -> str:
    """Return what an operation says that has no deterministic variant."""
    try:
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))  # which of the two is written last?
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "nothing"


def main() -> None:
    """Train and print the digest."""
    args = options(__doc__, seed=1, workers=2, device="cpu")
    torch.set_num_threads(1)  # another number would add in another order
    print(f"weights {train(args.seed, args.workers, args.device)}")
    print(f"new memory holds {torch.empty(2).tolist()}")
    print(f"put_ says: {refused()}")


if __name__ == "__main__":
    main()
