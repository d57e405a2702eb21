"""What cross_entropy accepts, and how it averages."""

from __future__ import annotations

import cross_entropy as example
import pytest
import torch
from torch.nn import functional as F

EQUALITIES = example.equalities()


@pytest.mark.parametrize("words", EQUALITIES)
def test_both_losses_are_equal(words: str) -> None:
    left, right = EQUALITIES[words]
    assert torch.isfinite(left)
    assert left > 0
    assert torch.allclose(left, right, rtol=0, atol=1e-12)


def test_with_class_weights_the_mean_of_means_is_not_the_mean() -> None:
    logits, classes = example.example()
    weight = torch.arange(1.0, example.CLASSES + 1, dtype=torch.float64)
    means = [F.cross_entropy(logits[half], classes[half], weight) for half in (slice(3), slice(3, 6))]
    whole = F.cross_entropy(logits, classes, weight)
    assert abs(torch.stack(means).mean() - whole) > 1e-3


def test_only_int64_and_uint8_classes_are_accepted() -> None:
    said = example.target_dtypes()
    assert [name for name, answer in said.items() if answer == "accepted"] == ["torch.int64", "torch.uint8"]
    assert all(said.values())


def test_with_a_softmax_before_it_a_perfect_prediction_has_a_large_loss() -> None:
    right, wrong = example.softmax_before_it()
    assert right == 0
    assert wrong > 0.9
