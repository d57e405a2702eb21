"""``python -m benchmarks.pipelines``: one of its pipelines over made images."""

from __future__ import annotations

import argparse
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


@pytest.mark.parametrize("text", ["fuse", "1, fuse=True", "fuse=open('x')", "**{}, fuse=True"])
def test_loader_arguments_that_are_no_named_literals_are_refused(text: str) -> None:
    from benchmarks.pipelines.__main__ import loader_args

    with pytest.raises(argparse.ArgumentTypeError, match="named arguments"):
        loader_args(text)


def test_every_pipeline_is_a_function_of_its_family() -> None:
    from benchmarks import pipelines
    from benchmarks.pipelines.catalogue import PIPELINES

    for name, pipeline in PIPELINES.items():
        source = Path(pipelines.__path__[0], f"{pipeline.family}.py").read_text()
        assert f"def {name}(source: Source, loader_class: Any, num_workers: int" in source
