"""timm builds torch's DataLoader by itself; under ``fastload run`` what it builds is ours."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

SCRIPT = """
import json, torch
from timm.data import create_loader
from torchvision.datasets import FakeData

if __name__ == "__main__":
    loader = create_loader(
        FakeData(20, (3, 40, 40), 10), input_size=(3, 32, 32), batch_size=4, is_training=True, num_workers=2,
        device=torch.device("cpu"), persistent_workers=False, **{options},
    )
    epochs = [len([images for images, labels in loader if images.shape == (4, 3, 32, 32)]) for _ in range(2)]
    inside = getattr(loader, "loader", loader)
    mro = [f"{{base.__module__}}.{{base.__name__}}" for base in type(inside).__mro__]
    statistics = inside.statistics()
    print(json.dumps([epochs, statistics.batches, statistics.num_workers, mro[:2], "fastload.loader.DataLoader" in mro]))
"""


@pytest.mark.parametrize("use_prefetcher", [True, False])
def test_create_loader_gives_our_class(run_script: Callable[..., str], use_prefetcher: bool) -> None:
    printed = run_script(SCRIPT.format(options={"use_prefetcher": use_prefetcher}))
    epochs, batches, num_workers, mro, ours = json.loads(printed.splitlines()[-1])
    assert (epochs, batches, num_workers, ours) == ([5, 5], 10, 2, True)
    assert mro[0] == "fastload.loader.DataLoader"


def test_its_own_loader_class_for_many_epochs_gets_our_engine(run_script: Callable[..., str]) -> None:
    printed = run_script(SCRIPT.format(options={"use_multi_epochs_loader": True}))
    epochs, batches, _, mro, ours = json.loads(printed.splitlines()[-1])
    assert (epochs, batches, ours) == ([5, 5], 10, True)
    assert mro[0] == "timm.data.loader.MultiEpochsDataLoader"
