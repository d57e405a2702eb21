"""What an actor does, in this process and without Ray."""

from __future__ import annotations

import random
from typing import Any

from fastload import DataLoader
from fastload.engine.build import Builder
from fastload.engine.kept import Kept
from fastload.keys.seeding import GlobalSeeder
from fastload.sampling.epochs import Epoch
from fastload.spec import spec_of
from fastload.workers.fetch import Fetcher
from fastload.workers.ray.actor import RayWorker


class Draws:
    """Samples that fail by what they draw."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if random.random() < 0.5:
            raise ValueError(f"tails at {index}")
        return index


def test_a_sample_that_is_tried_again_draws_what_it_drew_in_its_task() -> None:
    dataset: Any = Draws()
    loader: Any = DataLoader(dataset, 64, num_workers=1, on_error="skip", seed=1)
    job, _ = Builder(spec_of(loader), Kept()).job(Epoch(number=0, known=None, base_seed=7))
    worker = RayWorker()
    worker._fetcher = Fetcher(job, 0, "here", GlobalSeeder())
    indices = list(range(10, 40))
    worker._fetcher.samples.load(indices, 3, 10)
    failed = {failure.row for failure in worker._fetcher.samples.failures}
    assert 5 < len(failed) < 25
    tried = worker.try_samples(3, 10, list(enumerate(indices)))
    assert [row for row, is_loaded in enumerate(tried) if not is_loaded] == sorted(failed)
