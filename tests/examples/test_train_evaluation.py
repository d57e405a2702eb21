"""Testing: views, and how images are counted."""

from __future__ import annotations

import contextlib

import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from torch import Tensor, nn
from training.distributed import World
from training.evaluation import evaluate, views_of


def test_views_are_mirrored_and_shifted_images_whose_weights_add_up_to_one() -> None:
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert [(weight, view is images) for weight, view in views_of(images, "plain")] == [(1.0, True)]
    (_, one), (_, mirrored) = views_of(images, "flips")
    assert one is images
    assert torch.equal(mirrored, images.flip(-1))
    weights, views = zip(*views_of(images, "flips-and-shifts"), strict=True)
    assert weights == (0.25, 0.25, 0.125, 0.125, 0.125, 0.125)
    assert views[0] is images
    for plain, flipped in (views[:2], views[2:4], views[4:]):
        assert torch.equal(flipped, plain.flip(-1))
    down, up = views[2], views[4]
    assert torch.equal(down[..., 1:, 1:], images[..., :-1, :-1])
    assert torch.equal(up[..., :-1, :-1], images[..., 1:, 1:])
    assert torch.equal(down[..., 0, 1:], images[..., 1, :-1])  # reflected
    assert torch.equal(up[..., 1:, -1], views[4][..., 1:, -3])


class Leftish(nn.Module):
    """Scores class 0 by the left pixel, 1 by 0.6 of the right one: wrong for images that are darker on the left."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[:, 0, 0, 0], 0.6 * images[:, 0, 0, 1]], dim=1)


def test_images_are_counted_with_and_without_test_time_augmentation() -> None:
    left = torch.tensor([1.0] * 5 + [0.1] * 6)
    images = torch.stack([left, torch.ones(11)], dim=1).view(11, 1, 1, 2)
    batches = [(images[:4], torch.zeros(4).long()), (images[4:], torch.zeros(7).long())]
    common = (Leftish(), batches, World(), contextlib.nullcontext, lambda: 0)
    plain, mirrored = evaluate(*common), evaluate(*common, "flips")
    assert plain is not None
    assert mirrored is not None
    assert (plain.correct, plain.total, plain.correct_of_views, plain.accuracy_of_views) == (5, 11, None, None)
    assert (mirrored.correct, mirrored.total, mirrored.correct_of_views) == (5, 11, 11)
    assert mirrored.accuracy_of_views == 1.0
    assert mirrored.loss == plain.loss


def test_it_is_an_error_if_no_test_image_could_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        evaluate(Leftish(), [], World(), contextlib.nullcontext, lambda: 0)
    assert exited.value.code == 1
    assert capsys.readouterr().err == (
        "train.py: error: no test image could be loaded; repair or remove the damaged ones\n"
    )
