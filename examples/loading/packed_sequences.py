"""Sequences of different lengths: padded by the loader, packed in the step, batched by length.

    python examples/loading/packed_sequences.py [--device cuda]

The lengths of a ``PackedSequence`` must be int64 *on the CPU*: a prefetcher that
copies everything to the device breaks this, or makes every step wait for it, so ``keep_on_host``. A ``PackedSequence``
made by ``collate_fn`` is copied too, by its own ``to``.

Measured (torch 2.13, CPU; 2,000 sequences of 3 to 60 rows, global batches of 32): 69 % of a batch is padding without
``DistributedBatchSampler(lengths=...)``, 3 % with it, and 1, 2 and 4 ranks make 62 steps each.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_sequence
from torch.utils.data import Dataset

from fastload import DataLoader, DistributedBatchSampler

WIDTH = 4


class Sequences(Dataset[tuple[Tensor, int]]):
    """Sequences [length, 4], float32, of 3 to 60 rows; the class is whether the first numbers' sum is positive."""

    def __init__(self, num: int = 2000) -> None:
        generator = torch.Generator().manual_seed(0)
        shares = torch.rand(num, generator=generator)
        self.lengths = (3 + 57 * shares**3).long()  # most are short and few are long, as in texts
        self.rows = torch.randn(int(self.lengths.sum()), WIDTH, generator=generator).split(self.lengths.tolist())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index], int(self.rows[index][:, 0].sum() > 0)


def pad(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """Collate to sequences [N, longest, 4], lengths [N] and classes [N], both int64."""
    sequences, classes = zip(*samples, strict=True)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return {
        "sequences": pad_sequence(list(sequences), batch_first=True),
        "lengths": lengths,
        "classes": torch.tensor(classes),
    }


def pack(samples: list[tuple[Tensor, int]]) -> tuple[PackedSequence, Tensor]:
    """Collate to what ``nn.GRU`` takes as it is. Its ``batch_sizes`` stay on the CPU wherever it is moved."""
    sequences, classes = zip(*samples, strict=True)
    return pack_sequence(list(sequences), enforce_sorted=False), torch.tensor(classes)


class Network(nn.Module):
    """Read a sequence to its end and tell its class."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(WIDTH, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, packed: PackedSequence) -> Tensor:
        """Return logits [N, 2], in the batch's order."""
        _, last = self.reader(packed)
        logits: Tensor = self.head(last[-1])
        return logits


def make_loader(data: Sequences, global_batch_size: int, device: str, *, rank: int = 0, world_size: int = 1) -> Any:
    """Return this rank's loader: batches on the device, their lengths on the host."""
    sampler = DistributedBatchSampler(
        data, global_batch_size, lengths=data.lengths, seed=0, rank=rank, world_size=world_size
    )
    return DataLoader(
        data, batch_sampler=sampler, collate_fn=pad, num_workers=1, device=device, keep_on_host=("lengths",)
    )


def padding(data: Sequences, batches: Any) -> float:
    """Return the share of a padded batch that is padding, over batches of indices."""
    real = room = 0
    for batch in batches:
        lengths = data.lengths[batch]
        real, room = real + int(lengths.sum()), room + len(batch) * int(lengths.max())
    return 1 - real / room


def main() -> None:
    """Train for an epoch, and compare batches with and without buckets."""
    parser = argparse.ArgumentParser(description="Train on sequences of different lengths.")
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    data = Sequences()
    network = Network().to(device)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    loss_sum = torch.zeros((), device=device)
    loader = make_loader(data, 32, device)
    for batch in loader:
        packed = pack_padded_sequence(batch["sequences"], batch["lengths"], batch_first=True, enforce_sorted=False)
        loss = nn.functional.cross_entropy(network(packed), batch["classes"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach()
    print(f"mean loss of {len(loader)} steps: {loss_sum.item() / len(loader):.3f}")
    plain = DistributedBatchSampler(data, 32, seed=0)
    print(f"padding: {padding(data, plain):.0%}; in buckets {padding(data, loader.batch_sampler):.0%}")
    for world_size in (1, 2, 4):
        steps = [len(make_loader(data, 32, device, rank=rank, world_size=world_size)) for rank in range(world_size)]
        print(f"steps of {world_size} ranks: {steps}")


if __name__ == "__main__":
    main()
