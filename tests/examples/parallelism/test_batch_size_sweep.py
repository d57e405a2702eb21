"""The sweep: the learning rate follows the batch, the same seed gives the same result, norms can be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import batch_size_sweep
import pytest


def swept(monkeypatch: pytest.MonkeyPatch, log: Path, *arguments: str) -> list[dict[str, float]]:
    words = ["--seeds", "1", "--threads", "1", "--workers", "0", "--log", str(log), *arguments]
    monkeypatch.setattr("sys.argv", ["batch_size_sweep.py", *words])
    batch_size_sweep.main()
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_runs_are_logged_and_repeatable_and_the_rate_follows_the_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for _ in range(2):
        runs = swept(monkeypatch, tmp_path / "log", "--batch-sizes", "32,128", "--epochs", "2")
    assert [(run["batch_size"], run["lr"]) for run in runs] == 2 * [(32, 0.0125), (128, 0.05)]
    for name in ("loss", "test_correct", "test_loss"):
        assert [run[name] for run in runs[:2]] == [run[name] for run in runs[2:]]
    assert runs[0]["test_correct"] > 0.4 * runs[0]["test_images"]  # chance is 10 %
    assert all(run["test_images"] == 360 for run in runs)
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 32", "| 128"]
    assert rows[1].endswith("| 1 | 95.3 |")  # the notes' figure stands beside ours


def test_train_pys_options_reach_it_such_as_a_network_without_norms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    norms, plain = [], batch_size_sweep.train.build_network

    def build_network(name: str, channels: int, num_classes: int, norm: str, **options: Any) -> Any:
        norms.append(norm)
        return plain(name, channels, num_classes, norm, **options)

    monkeypatch.setattr(batch_size_sweep.train, "build_network", build_network)
    options = ("--norm", "none", "--clip-norm", "1", "--batch-sizes", "64", "--limit-batches", "3")
    (run,) = swept(monkeypatch, tmp_path / "log", *options, "--epochs", "1")
    assert norms == ["none"]
    assert run["loss"] == pytest.approx(2.3, abs=0.2)  # of a network that knows nothing yet: log(10)
