"""The picture of a loader's transform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

from fastload import ConfigError, DataLoader, DistributedBatchSampler
from fastload.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, ToDtype, preview


class Ramps(Dataset[Any]):
    """Each image is dark at its left side."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.arange(0, 240, 12, dtype=torch.uint8).expand(3, 10, 20), index


def loader_of(transform: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(Ramps(), 4, shuffle=True, seed=1, batch_transform=transform, **options)


def tiles(path: Any, rows: int, columns: int) -> Any:
    picture = np.asarray(Image.open(path))
    assert picture.shape == (rows * 14 + 4, columns * 24 + 4, 3)
    return [
        [picture[14 * row + 4 : 14 * row + 14, 24 * column + 4 : 24 * column + 24] for column in range(columns)]
        for row in range(rows)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_are_samples_and_columns_their_versions(tmp_path, num_workers):
    loader = loader_of(RandomHorizontalFlip(), num_workers=num_workers)
    before = loader.state_dict()
    written = preview(loader, tmp_path / "p.png", num_samples=3, num_versions=6)
    found = tiles(written, 3, 7)
    original = Ramps()[0][0].permute(1, 2, 0).numpy()
    kinds = set()
    for row in found:
        assert (row[0] == original).all()
        for tile in row[1:]:
            assert (tile == original).all() or (tile == original[:, ::-1]).all()
            kinds.add(bool((tile == original).all()))
    assert kinds == {True, False}
    assert loader.state_dict() == before


def test_the_users_generators_are_left_alone(tmp_path):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    preview(DataLoader(Ramps(), 4, shuffle=True, batch_transform=RandomHorizontalFlip()), tmp_path / "p.png")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_version_is_what_the_loader_gives(tmp_path):
    transform = RandomCrop((10, 20), padding=3)
    found = tiles(preview(loader_of(transform), tmp_path / "p.png", num_samples=4, num_versions=1), 4, 2)
    images, _ = next(iter(loader_of(transform)))
    for row, image in zip(found, images, strict=True):
        assert (row[1] == image.permute(1, 2, 0).numpy()).all()


def test_normalisation_is_undone_and_other_sizes_are_scaled(tmp_path):
    transform = Compose([RandomCrop(5), ToDtype(torch.float32, scale=True), Normalize((0.5,) * 3, (0.2,) * 3)])
    found = tiles(preview(loader_of(transform), tmp_path / "p.png", num_samples=1, num_versions=2), 1, 3)
    assert set(np.unique(found[0][1])) <= set(range(0, 240, 12))


class Streamed(IterableDataset[Any]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < 12:
            self.at += 1
            yield torch.full((3, 4, 4), self.at, dtype=torch.uint8)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_nothing_of_the_loader_is_changed(tmp_path):
    def orders(*, shown: bool) -> Any:
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(Ramps(), 4, shuffle=True, generator=generator, batch_transform=RandomHorizontalFlip())
        if shown:
            preview(loader, tmp_path / "p.png")
        return [labels.tolist() for _, labels in loader]

    assert orders(shown=True) == orders(shown=False)
    stream = DataLoader(Streamed(), 4, batch_transform=RandomHorizontalFlip())
    iterator = iter(stream)
    next(iterator)
    preview(stream, tmp_path / "p.png")
    assert next(iterator)[0, 0, 0, 0] == 5


def test_a_rank_alone_may_look(tmp_path):
    ranks = [
        DataLoader(
            Ramps(),
            batch_sampler=DistributedBatchSampler(Ramps(), 4, rank=rank, world_size=2),
            batch_transform=RandomHorizontalFlip(),
        )
        for rank in range(2)
    ]
    before = vars(ranks[0].batch_sampler.sampler).copy()
    preview(ranks[0], tmp_path / "p.png")
    assert vars(ranks[0].batch_sampler.sampler) == before


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        (lambda: loader_of(None), {}, "and this loader has None"),
        (lambda: TorchDataLoader(Ramps()), {}, "and this loader has None"),
        (lambda: loader_of(lambda batch: batch), {}, "shows what a batch_transform of fastload.transforms does"),
        (lambda: DataLoader([], 4, batch_transform=RandomHorizontalFlip()), {}, "gives no batch"),
        (lambda: loader_of(RandomHorizontalFlip()), {"num_samples": 0}, "num_samples must be an integer"),
        (lambda: loader_of(RandomHorizontalFlip()), {"num_versions": True}, "num_versions must be an integer"),
    ],
)
def test_what_cannot_be_shown_is_a_clear_error(loader, options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        preview(loader(), tmp_path / "p.png", **options)
    assert not list(tmp_path.iterdir())
