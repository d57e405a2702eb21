"""Splits change nothing but the order of the work, unless BatchNorm sees them one at a time."""

from __future__ import annotations

import pipeline_by_hand
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision import models


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return models.resnet18(num_classes=10)


def batch() -> tuple[Tensor, Tensor]:
    data = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, 32, 32, generator=data), torch.randint(0, 10, (6,), generator=data)


def gradients(model: nn.Module, *, training: bool) -> tuple[Tensor, list[Tensor]]:
    images, labels = batch()
    model.train(training)
    outputs = model(images)
    cross_entropy(outputs, labels).backward()
    return outputs.detach(), [value.grad for value in model.parameters() if value.grad is not None]


@pytest.mark.parametrize("split_size", [6, 4, 2, 1])
def test_any_split_size_gives_the_same_outputs_and_gradients_with_fixed_norms(split_size: int) -> None:
    outputs, found = gradients(
        pipeline_by_hand.Pipelined(*pipeline_by_hand.halves(make_network()), ["cpu", "cpu"], split_size), training=False
    )
    expected, alone = gradients(make_network(), training=False)
    torch.testing.assert_close(outputs, expected, atol=1e-4, rtol=1e-4)
    assert len(found) == len(alone) == 62
    for left, right in zip(found, alone, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-3)


def test_batch_norm_in_training_changes_the_outputs_of_splits() -> None:
    expected, _ = gradients(make_network(), training=True)
    halves = pipeline_by_hand.halves(make_network())
    whole, _ = gradients(pipeline_by_hand.Pipelined(*halves, ["cpu", "cpu"], 6), training=True)
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    split, _ = gradients(
        pipeline_by_hand.Pipelined(*pipeline_by_hand.halves(make_network()), ["cpu", "cpu"], 3), training=True
    )
    assert (split - expected).abs().max() > 0.01


def test_the_second_half_is_on_the_second_device() -> None:
    model = pipeline_by_hand.Pipelined(*pipeline_by_hand.halves(make_network()), ["cpu", "meta"], 4)
    assert {value.device.type for value in model.back.parameters()} == {"meta"}
    assert model(batch()[0]).shape == (6, 10)


def test_the_bound_is_the_share_of_full_slots() -> None:
    assert pipeline_by_hand.bound(6, 2) == pytest.approx(7 / 12)
    assert pipeline_by_hand.bound(1, 4) == 1.0  # no splits: one device at a time


def test_the_script_sweeps_split_sizes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--network resnet18 --batch-size 4 --side 32 --split-sizes 4,2 --repeats 1"
    monkeypatch.setattr("sys.argv", ["pipeline_by_hand.py", *arguments.split()])
    pipeline_by_hand.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [row.split(" | ")[:2] + row.split(" | ")[-1:] for row in rows] == [
        ["| 4", "1", "1.00 |"],
        ["| 2", "2", "0.75 |"],
    ]
