"""timm builds torch's DataLoader by itself; under ``fastload run`` what it builds is ours."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, torch
from timm.data import create_loader
from torchvision.datasets import FakeData

def facts(**options):
    loader = create_loader(
        FakeData(20, (3, 40, 40), 10), input_size=(3, 32, 32), batch_size=4, is_training=True, num_workers=2,
        device=torch.device("cpu"), persistent_workers=False, **options,
    )
    epochs = [len([images for images, labels in loader if images.shape == (4, 3, 32, 32)]) for _ in range(2)]
    inside = getattr(loader, "loader", loader)
    classes = [f"{base.__module__}.{base.__name__}" for base in type(inside).__mro__]
    statistics = inside.statistics()
    ours = "fastload.loader.DataLoader" in classes
    return [epochs, statistics.batches, statistics.num_workers, classes[0], ours]

if __name__ == "__main__":
    every = [facts(use_prefetcher=True), facts(use_prefetcher=False), facts(use_multi_epochs_loader=True)]
    print(json.dumps(every))
"""


def test_create_loader_gives_our_class_and_its_own_class_gets_our_engine(run_script: Callable[..., str]) -> None:
    with_prefetcher, without, many_epochs = json.loads(run_script(SCRIPT).splitlines()[-1])
    assert with_prefetcher == [[5, 5], 10, 2, "fastload.loader.DataLoader", True]
    assert without == with_prefetcher
    assert many_epochs == [[5, 5], 10, 2, "timm.data.loader.MultiEpochsDataLoader", True]
