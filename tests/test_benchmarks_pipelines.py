"""``python -m benchmarks.pipelines``: one of its pipelines over made images."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the benchmarks can be imported, here and in the processes that they start."""
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.chdir(REPOSITORY)


def test_a_pipeline_is_measured(tmp_path: Path) -> None:
    from benchmarks.pipelines import measuring
    from benchmarks.spec import Side

    (tmp_path / "class").mkdir()
    for number in range(200):
        Image.effect_noise((12, 9), 64).convert("RGB").save(tmp_path / "class" / f"{number}.jpg")
    arguments = {"pipeline": "own_v1", "images": str(tmp_path), "made": str(tmp_path), "num_workers": 1}
    ours = Side(name="ours", package="fastload", options={"seeding": "torch"})

    measured = measuring.epoch(ours, **arguments)
    assert all(float(str(measured[name])) > 0 for name in ("samples/s steady", "epoch ms", "CPU us/sample"))
