"""Recordings and tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import soundfile
import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks.pipelines.source import Source

_NUM_FEATURES = 16


class Clips(Dataset[Any]):
    """A random second of each file, as a log spectrogram."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.window = torch.hann_window(400)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        samples, rate = soundfile.read(self.files[index], dtype="float32")
        start = int(torch.randint(0, len(samples) - rate + 1, ()))
        clip = torch.from_numpy(samples[start : start + rate])
        spectrum = torch.stft(clip, n_fft=400, hop_length=160, window=self.window, return_complex=True)
        return torch.log(spectrum.abs() + 1e-6), index % 10


def audio(source: Source, loader_class: Any, num_workers: int) -> Any:
    def make(folder: Path) -> None:
        generator = np.random.default_rng(0)
        for number in range(1500):
            samples = generator.normal(0, 0.1, 32_000).astype(np.float32)
            soundfile.write(folder / f"{number:04d}.wav", samples, 16_000)

    dataset = Clips(sorted(source.folder("audio", make).iterdir()))
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


def _table(num_rows: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    columns = {f"feature_{number}": generator.normal(size=num_rows) for number in range(_NUM_FEATURES)}
    return pd.DataFrame({**columns, "label": generator.integers(0, 2, num_rows)})


def tensordataset(source: Source, loader_class: Any, num_workers: int) -> Any:
    table = _table(200_000)
    features = torch.tensor(table.drop(columns="label").values, dtype=torch.float32)
    dataset = TensorDataset(features, torch.tensor(table["label"].values))
    return loader_class(dataset, batch_size=256, shuffle=True, num_workers=num_workers)


class Rows(Dataset[Any]):
    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        row = self.table.iloc[index]
        features = torch.tensor(row.drop("label").values, dtype=torch.float32)
        return features, int(row["label"])


def pandas_iloc(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(Rows(_table(6_000)), batch_size=32, shuffle=True, num_workers=num_workers)


class Windows(Dataset[Any]):
    """Windows of a recording of many channels; each is a view of it."""

    def __init__(self, data: torch.Tensor, size: int, step: int) -> None:
        self.data = data
        self.size = size
        self.step = step

    def __len__(self) -> int:
        return (self.data.shape[1] - self.size) // self.step + 1

    def __getitem__(self, index: int) -> Any:
        start = index * self.step
        return self.data[:, start : start + self.size], index % 4


def windows(source: Source, loader_class: Any, num_workers: int) -> Any:
    data = torch.randn(32, 500_000, generator=torch.Generator().manual_seed(0))  # 64 MB
    return loader_class(Windows(data, 256, 50), batch_size=32, shuffle=True, num_workers=num_workers)
