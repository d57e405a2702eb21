"""``python -m benchmarks.peers`` with made images and the sides that need nothing installed; and its guards."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes with four small JPEG files each, of noise from black to white."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for label in range(3):
        (folder / "train" / f"class_{label}").mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 2, size=(6, 8, 3), dtype=np.uint8) * 255
            image = Image.fromarray(pixels).resize((80, 60), Image.Resampling.NEAREST)
            image.save(folder / "train" / f"class_{label}" / f"{number}.jpeg", quality=95)
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *arguments], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.thorough
def test_the_sides_that_need_nothing_are_measured_and_the_others_say_what_is_missing(data, tmp_path):
    from benchmarks.figures.rows import read_file
    from benchmarks.peers.catalogue import ALL

    file, rows_file, packed = tmp_path / "results.jsonl", tmp_path / "peers.csv", tmp_path / "packed"
    arguments = ["--data", str(data), "--envs", str(tmp_path), "--packed", str(packed), "--num-images", "600"]
    arguments += ["--repetitions", "1", "--json", str(file), "--rows", str(rows_file)]
    result = run(*arguments, "images-uint8", "fastload, coefficients", "torch", "torchvision.io", "dali")
    assert result.returncode == 0, result.stderr
    [found] = [json.loads(line) for line in file.read_text().splitlines()]
    assert found["benchmark"] == "images-uint8"
    assert found["failed"] == {}
    assert list(found["sides"]) == ["fastload", "fastload, coefficients", "torch", "torchvision.io"]
    for metrics in found["sides"].values():
        assert list(metrics) == ["images/s", "first batch ms", "CPU ms/image"]
        assert all(len(numbers["values"]) == 1 and numbers["median"] > 0 for numbers in metrics.values())
    rates = {side: metrics["images/s"]["median"] for side, metrics in found["sides"].items()}
    ratio_to = {one["theirs"]: one for one in found["comparisons"]}
    for side, goal in {"torch": 2.4, "torchvision.io": 1.7}.items():
        ratio = ratio_to[side]
        assert ratio["value"] == pytest.approx(rates["fastload"] / rates[side])
        assert (ratio["least_ratio"], ratio["reached"]) == (goal, ratio["value"] >= goal)
    assert list(found["skipped"]) == ["DALI"]
    assert "benchmarks.peers.install" in found["skipped"]["DALI"]
    assert found["versions_of_sides"]["torch"]["torch"] == torch.__version__
    rows = read_file(rows_file)
    metrics = ["images/s", "first batch ms", "CPU ms/image"]
    assert [(row.side, row.metric) for row in rows] == [(side, metric) for side in found["sides"] for metric in metrics]
    assert {row.side: row.value for row in rows if row.metric == "images/s"} == pytest.approx(rates, rel=1e-5)
    ratios = {row.ratio_of: row.ratio for row in rows if row.ratio is not None}
    expected = {f"fastload / {side}": ratio["value"] for side, ratio in ratio_to.items()}
    assert ratios == pytest.approx(expected, rel=1e-5)
    assert {(row.n, row.date, row.machine) for row in rows} == {(1, found["date"], found["machine"])}
    assert all(side in result.stdout for side in ("fastload", "torchvision.io", "not measured: images-uint8: DALI"))
    links = list((packed / "images-600").glob("*/*.jpeg"))
    assert len(links) == 600
    assert len({link.resolve() for link in links}) == 12
    assert [case.share for case in ALL] == sorted(case.share for case in ALL)


@pytest.mark.slow
def test_a_name_that_fits_nothing_and_a_folder_without_jpegs_are_errors(tmp_path):
    assert "no case, side or peer is called 'nobody'" in run("--data", str(tmp_path), "nobody").stderr
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "note.txt").write_text("no image")
    result = run("--data", str(tmp_path), "images-uint8", "torch")
    assert result.returncode != 0
    assert "--data must be an ImageFolder tree" in result.stderr


def test_a_name_selects_sides_by_their_own_name_or_by_their_peer():
    from benchmarks.peers.__main__ import _choose

    found = {case.name: [side.name for side in case.sides] for case in _choose(["ffcv", "torch", "cifar"])}
    assert found == {"cifar": ["fastload", "torch", "FFCV"]}
    assert len(_choose(["spdl"])[0].sides) == 3


@pytest.mark.thorough
def test_sides_that_fail_are_left_out_and_the_others_go_on(data, tmp_path):
    from benchmarks.peers.catalogue import ALL, Beside
    from benchmarks.peers.runner import Runner
    from benchmarks.runner import Measured

    case = ALL[1]
    torch_side = next(side for side in case.sides if side.name == "torch")
    broken = Beside(name="broken", package="standard", options={"loader": "torch", "unknown": 1})
    unpackable = Beside(name="unpackable", package="standard", options={"loader": "torch"}, packed="nothing")
    sides = (broken, torch_side, unpackable)
    arguments = {**case.arguments, "num_images": 600}
    asked: list[str] = []

    async def measure() -> Measured:
        async with Runner(None, data / "train", tmp_path, asked.append) as runner:
            # Its time is over: one round, and no second.
            return await runner.measure(dataclasses.replace(case, sides=sides), arguments, 5, time.monotonic())

    found = asyncio.run(measure())
    assert {name: len(values) for name, values in found.measurements.items()} == {"torch": 1}
    assert "unexpected keyword argument 'unknown'" in found.failed["broken"]
    assert "has no attribute 'pack'" in found.failed["unpackable"]
    assert [what.partition(": ")[2] for what in asked] == ["broken", "torch", "", "torch"]
    assert not (tmp_path / "nothing-600").exists()


def _work(**changes: Any) -> Any:
    from benchmarks.peers.loaders import Work

    values: dict[str, Any] = {"values": "float32", "num_images": 600, "batch_size": 4, "num_workers": 2}
    return Work(images=Path(), packed=Path(), **{**values, **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda images, labels: (images[:3], labels), "of shape"),
        (lambda images, labels: (images.permute(0, 2, 3, 1), labels), "of shape"),
        (lambda images, labels: (images.double(), labels), "must be torch.float32"),
        (lambda images, labels: (images.clamp(0, 1), labels), "must go from"),
        (lambda images, labels: (images * 10, labels), "must go from"),
        (lambda images, labels: (images, labels.float()), "labels must be integers"),
        (lambda images, labels: (images, labels.sort().values), "must be shuffled"),
    ],
)
def test_a_batch_that_is_less_than_the_work_is_refused(change, message):
    from benchmarks.peers.measuring import NotTheWork, _check_batch

    images = torch.linspace(-2.1, 2.6, 4 * 3 * 32 * 32).view(4, 3, 32, 32)
    labels = torch.tensor([2, 0, 1, 1])
    _check_batch(images, labels, _work(), 32)
    _check_batch(images.contiguous(memory_format=torch.channels_last), labels, _work(), 32)
    with pytest.raises(NotTheWork, match=message):
        _check_batch(*change(images, labels), _work(), 32)


def test_an_epoch_must_be_every_image_once():
    from benchmarks.peers.measuring import NotTheWork, _check_labels

    expected = Counter({0: 2, 1: 2})
    _check_labels(Counter([0, 1, 1, 0]), expected)
    for labels in ([0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0, 2]):
        with pytest.raises(NotTheWork, match="each of 4 images once"):
            _check_labels(Counter(labels), expected)
