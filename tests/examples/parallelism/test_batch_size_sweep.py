"""The sweep: the learning rate follows the batch, the same seed gives the same result, norms can be left out."""

from __future__ import annotations

import json
from pathlib import Path

import batch_size_sweep
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset


def swept(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["batch_size_sweep.py", "--device", "cpu", *arguments])
    batch_size_sweep.main()


def test_runs_are_logged_and_repeatable_and_the_rate_follows_the_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "runs.jsonl"
    for _ in range(2):
        swept(monkeypatch, "--batch-sizes", "32,128", "--seeds", "1", "--epochs", "2", "--log", str(log))
    runs = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(run["batch_size"], run["lr"]) for run in runs] == 2 * [(32, 0.0125), (128, 0.05)]
    assert all(
        (first["train"], first["test"]) == (again["train"], again["test"])
        for first, again in zip(runs[:2], runs[2:], strict=True)
    )
    assert runs[0]["test"] > 40.0  # chance is 10 %
    for run in runs:  # shares of the images of each part, in per cent
        for name, num_images in (("train", 1437), ("test", 360)):
            assert run[name] * num_images / 100 == pytest.approx(round(run[name] * num_images / 100), abs=1e-6)
    table = capsys.readouterr().out.splitlines()[:4]
    assert [row.split(" | ")[0] for row in table[2:]] == ["| 32", "| 128"]
    assert table[3].endswith("| 1 | 95.3 |")  # the notes' figure stands beside ours


def test_testing_does_not_change_the_network_or_its_statistics() -> None:
    images, cpu = batch_size_sweep.load_digits(), torch.device("cpu")
    network = batch_size_sweep.proxy(1, "batch")
    before = [value.clone() for value in network.state_dict().values()]
    few = [TensorDataset(*(part[place : place + 1] for part in images.test.tensors)) for place in range(10)]
    one_by_one = [batch_size_sweep.accuracy(network, one, images.plain, cpu) for one in few]
    together = TensorDataset(*(part[:10] for part in images.test.tensors))
    assert batch_size_sweep.accuracy(network, together, images.plain, cpu) == pytest.approx(sum(one_by_one) / 10)
    assert all(torch.equal(*pair) for pair in zip(before, network.state_dict().values(), strict=True))
    assert network.training


def test_a_network_without_norms_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kinds = {type(layer) for layer in batch_size_sweep.proxy(1, "none").modules()}
    assert nn.BatchNorm2d not in kinds
    assert nn.BatchNorm2d in {type(layer) for layer in batch_size_sweep.proxy(1, "batch").modules()}
    log = tmp_path / "runs.jsonl"
    options = ("--norm", "none", "--decay", "linear", "--clip", "1", "--lr-256", "1.6", "--batch-sizes", "32")
    swept(monkeypatch, *options, "--seeds", "1", "--epochs", "4", "--log", str(log))
    run = json.loads(log.read_text())
    assert run["norm"] == "none"
    assert run["test"] > 40.0


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero(decay: str) -> None:
    rates = [batch_size_sweep.learning_rate(step, 100, 0.4, decay) for step in range(100)]
    assert rates.index(max(rates)) in (4, 5)
    assert max(rates) == pytest.approx(0.4)
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.01
    middle = batch_size_sweep.learning_rate(52, 100, 0.4, decay)
    assert middle == pytest.approx(0.2, abs=0.01)
