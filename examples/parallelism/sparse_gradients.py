"""Sparse gradients in DistributedDataParallel, and why one module cannot be on two kinds of devices.

    torchrun --nproc-per-node=2 examples/parallelism/sparse_gradients.py

Of ``nn.Embedding(sparse=True)`` only the used rows are sent. "Distributed can use CPU and GPU together", say the notes:
not in one module; a part that stays on the CPU needs its own DDP.

Measured (two ranks, gloo, torch 2.13): of 1,000 rows each rank uses at most 16, the averaged gradient has at most 32,
and it is bit-identical to the mean of the dense gradients. Adam rejects sparse gradients; SGD, Adagrad and SparseAdam
support them. A DDP that is deleted after ``forward`` silently averages nothing.
"""

import torch
import torch.distributed as dist
from common import joined, run_rank
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NUM_ROWS, WIDTH, WORDS = 1000, 4, 16


class Bag(nn.Module):
    """The mean of a few rows of a table, times a vector."""

    def __init__(self, *, sparse: bool, head_device: str = "cpu") -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.table = nn.Embedding(NUM_ROWS, WIDTH, sparse=sparse)
            self.head = nn.Linear(WIDTH, 1, device=head_device)

    def forward(self, words: Tensor) -> Tensor:
        """Return one number for each row of ``words``: [N, words] of int64."""
        made: Tensor = self.head(self.table(words).mean(dim=1))
        return made


def words_of(rank: int) -> Tensor:
    """Return this rank's batch: two lines of words."""
    return torch.randint(0, NUM_ROWS, (2, WORDS // 2), generator=torch.Generator().manual_seed(rank))


def averaged_gradients(rank: int) -> tuple[Tensor, Tensor]:
    """Return the table's gradient as DDP makes it, and the mean over the ranks of the dense ones."""
    module = Bag(sparse=True)
    model = DistributedDataParallel(module)  # with a name: what it does in backward() ends with it
    model(words_of(rank)).square().sum().backward()
    alone = Bag(sparse=False)
    alone(words_of(rank)).square().sum().backward()
    sparse, dense = module.table.weight.grad, alone.table.weight.grad
    assert sparse is not None
    assert dense is not None
    dist.all_reduce(dense)
    return sparse.coalesce(), dense / dist.get_world_size()


def steppers() -> dict[str, str]:
    """Return what each optimizer says to a sparse gradient."""
    said = {}
    for make in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam, torch.optim.Adam):
        module = Bag(sparse=True)
        module(words_of(0)).sum().backward()
        try:
            make(module.table.parameters(), lr=0.1).step()
        except RuntimeError as error:
            said[make.__name__] = str(error)
        else:
            said[make.__name__] = "steps"
    return said


def two_kinds_of_devices() -> str:
    """Return what DDP says to a module of which one part is on the CPU and another elsewhere."""
    try:
        DistributedDataParallel(Bag(sparse=False, head_device="meta"))
    except ValueError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Show all three; rank 0 prints."""
    with joined("cpu") as rank:
        sparse, mean = averaged_gradients(rank.number)
        mixed = two_kinds_of_devices()  # on all ranks, since DDP compares them
        if rank.number == 0:
            rows = sparse.indices().shape[1]
            print(f"averaged gradient: {sparse.layout}, {rows} of {NUM_ROWS} rows")
            print(f"farthest from the mean of the dense ones: {(sparse.to_dense() - mean).abs().max().item():.0e}")
            for name, said in steppers().items():
                print(f"{name}: {said}")
            print(f"two kinds of devices: {mixed}")


if __name__ == "__main__":
    run_rank(main)
