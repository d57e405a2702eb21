"""The seeded datasets of the benchmarks: whatever is random comes from generators with fixed seeds.

They stand in an importable module, because workers started by spawn unpickle them by name; it imports no torchvision,
since those workers would spend seconds on that.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

Sample = TypeVar("Sample", covariant=True)


class Made(Dataset[Sample]):
    """A dataset of ``num_samples``."""

    num_samples: int

    def __len__(self) -> int:
        return self.num_samples


class ReadyBatches(Made[dict[str, torch.Tensor]]):
    """A batch of ``num_tensors`` small tensors for each index, as a dataset of packed records gives them.

    The tensors are copies made on the spot: torch moves a tensor that it sends to shared memory for good, so the same
    tensors sent a second time would cost it less than new ones do.
    """

    def __init__(self, num_samples: int, num_tensors: int, shape: Sequence[int]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.num_samples = num_samples
        self.tensors = {f"field_{number:02d}": torch.rand(*shape, generator=generator) for number in range(num_tensors)}

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.tensors.items()}


class Integers(Dataset[int]):
    """The cheapest samples there are."""

    def __init__(self, num_samples: int) -> None:
        self.values = list(range(num_samples))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


class TokenWindows(Made[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a file of tokens, and the same windows one token later, as language models are trained on them."""

    def __init__(self, path: Path, num_samples: int, length: int) -> None:
        tokens = np.random.Generator(np.random.PCG64(0)).integers(0, 50_000, 32 * num_samples + length + 1)
        tokens.astype(np.uint16).tofile(path)
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.num_samples, self.length = num_samples, length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin, end = 32 * index, 32 * index + self.length
        window, following = self.tokens[begin:end], self.tokens[begin + 1 : end + 1]
        return torch.from_numpy(window.astype(np.int64)), torch.from_numpy(following.astype(np.int64))


class ColumnMajorRows(Made[torch.Tensor]):
    """Rows of a table that lies column by column, as ``torch.tensor(dataframe.values)`` does."""

    def __init__(self, num_rows: int, num_samples: int) -> None:
        self.table = torch.rand(10, num_rows, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).t()
        self.num_samples = num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.table[index * len(self.table) // self.num_samples]


class Windows(Made[torch.Tensor]):
    """Windows of 1,000 points of a recording of 16 channels."""

    def __init__(self, num_points: int, num_samples: int) -> None:
        self.recording = torch.rand(16, num_points, generator=torch.Generator().manual_seed(0))
        self.num_samples = num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        first = index * (self.recording.shape[1] - 1000) // self.num_samples
        return self.recording[:, first : first + 1000]


class Clips(Made[torch.Tensor]):
    """A clip of bytes in memory, made floats of -0.5 to 0.5: samples of many megabytes, and two more that are freed."""

    def __init__(self, megabytes: int, num_samples: int) -> None:
        self.clip = torch.randint(0, 256, (megabytes * 250_000,), dtype=torch.uint8)
        self.num_samples = num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.clip.float() / 255 - 0.5


class Sentences(Dataset[tuple[torch.Tensor, str]]):
    """Token sequences of unequal length, each with its text.

    They lie in two arrays, not in a list: a list would be copied page by page as forked workers read it, and its growth
    would be taken for the loader's.
    """

    def __init__(self, num_samples: int, shortest: int = 5, longest: int = 60) -> None:
        generator = np.random.default_rng(0)
        lengths = generator.integers(shortest, longest + 1, size=num_samples)
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        self.tokens = generator.integers(1, 30_000, size=int(self.ends[-1]))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        tokens = self.tokens[self.starts[index] : self.ends[index]]
        return torch.from_numpy(tokens.copy()), " ".join(map(str, tokens.tolist()))


def pad_sentences(samples: Sequence[tuple[torch.Tensor, str]]) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Collate sequences: tokens padded with zeros to (batch, longest), lengths, and the texts as a list."""
    tokens = [sample[0] for sample in samples]
    lengths = torch.tensor([len(sequence) for sequence in tokens])
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), lengths, [sample[1] for sample in samples]


class RaggedTargets(Made[dict[str, torch.Tensor]]):
    """Samples of 24 small tensors, of 0 to 9 rows each, as of objects in images."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.names = [f"target{number}" for number in range(24)]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: torch.zeros((index + place) % 10, 4) for place, name in enumerate(self.names)}


def as_tuple(samples: Sequence[object]) -> tuple[object, ...]:
    """Collate as detection models want it: samples of unequal shapes stay apart."""
    return tuple(samples)


def heavy_tailed_costs_s(shape: str, num_samples: int, mean_cost_s: float) -> list[float]:
    """Make up what each sample costs; the mean is ``mean_cost_s`` exactly.

    "lognormal": with sigma 1.5; "rare": one sample in a hundred costs fifty times as much as the others.
    """
    generator = np.random.default_rng(0)
    if shape == "lognormal":
        costs = generator.lognormal(mean=0.0, sigma=1.5, size=num_samples)
    elif shape == "rare":
        costs = np.ones(num_samples)
        costs[generator.choice(num_samples, size=num_samples // 100, replace=False)] = 50.0
    else:
        raise ValueError(f"shape must be 'lognormal' or 'rare', got {shape!r}")
    return [float(cost) for cost in costs * (mean_cost_s / costs.mean())]


class UnequalSamples(Dataset[tuple[int, float]]):
    """Samples that take a known time: sample ``index`` sleeps ``costs_s[index]`` seconds.

    Sleeping instead of computing leaves the cores free, so that four workers can be measured on two cores.
    """

    def __init__(self, costs_s: Sequence[float]) -> None:
        self.costs_s = list(costs_s)

    def __len__(self) -> int:
        return len(self.costs_s)

    def __getitem__(self, index: int) -> tuple[int, float]:
        start = time.perf_counter()
        time.sleep(self.costs_s[index])
        return index, time.perf_counter() - start


class FilledImages(Made[torch.Tensor]):
    """Float32 images of shape (3, side, side) that cost next to nothing to make."""

    def __init__(self, num_samples: int, side: int) -> None:
        self.num_samples = num_samples
        self.side = side

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, self.side, self.side), float(index))


class CarryingDataset(Made[tuple[int, float]]):
    """A dataset with a heavy payload, whose samples tell when they were made.

    Samples are pairs of the index and ``time.perf_counter()``; on Linux all processes share that clock.
    """

    def __init__(self, payload: str, payload_bytes: int, num_samples: int) -> None:
        self.num_samples = num_samples
        self.payload: list[str] | list[np.ndarray]
        if payload == "objects":
            self.payload = [
                f"folder_{number % 1000:04d}/picture_{number:012d}.jpeg" for number in range(payload_bytes // 100)
            ]
        elif payload == "arrays":
            generator = np.random.default_rng(0)
            self.payload = [generator.random(payload_bytes // 80) for _ in range(10)]
        else:
            raise ValueError(f"payload must be 'objects' or 'arrays', got {payload!r}")

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, time.perf_counter()
