"""``python -m benchmarks.pipelines``: how it compares samples, and one of its pipelines over made images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the benchmarks can be imported, here and in the processes that they start."""
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.chdir(REPOSITORY)


def test_equal_batches_do_not_differ_and_one_bit_is_found_with_its_place() -> None:
    from benchmarks.pipelines.samples import difference, prints_of

    batch = {"images": torch.zeros(4, 3), "boxes": [np.ones(2), "a"], "label": 1}
    other = {**batch, "images": torch.zeros(4, 3).index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(-0.0))}

    assert difference([prints_of(batch)], [prints_of(batch)]) is None
    found = difference([prints_of(batch), prints_of(other)], [prints_of(batch)] * 2)
    assert found is not None
    assert "1 of 2 batches; first number 1: batch['images']" in found
    assert "differs in 1 of 4 rows" in found


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "batch is Tensor torch.float32 (2,), not Tensor torch"),
        ((1, 2), [1, 2], "batch is tuple of 2, not list of 2"),
        (True, 1, "batch is bool, not int"),
        (Image.new("L", (2, 2)), Image.new("RGB", (2, 2)), "batch is Image L (2, 2)"),
    ],
)
def test_another_type_differs(ours: object, theirs: object, text: str) -> None:
    from benchmarks.pipelines.samples import difference, prints_of

    found = difference([prints_of(ours)], [prints_of(theirs)])
    assert found is not None
    assert text in found


def test_a_pipeline_is_measured_and_its_samples_are_compared(tmp_path: Path) -> None:
    from benchmarks.pipelines import measuring
    from benchmarks.pipelines.samples import difference
    from benchmarks.spec import TORCH, Side

    (tmp_path / "class").mkdir()
    for number in range(200):
        Image.effect_noise((12, 9), 64).convert("RGB").save(tmp_path / "class" / f"{number}.jpg")
    arguments = {"pipeline": "own_v1", "images": str(tmp_path), "made": str(tmp_path), "num_workers": 1}
    ours = Side(name="ours", package="fastload", options={"seeding": "torch"})

    measured = measuring.epoch(ours, **arguments)
    assert all(float(str(measured[name])) > 0 for name in ("samples/s steady", "epoch ms", "CPU us/sample"))
    found = [measuring.samples(side, **arguments)["batches"] for side in (ours, TORCH)]
    assert difference(*found) is None
