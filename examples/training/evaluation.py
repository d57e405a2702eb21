"""Testing on all ranks: each image counts exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .distributed import World, fail_together
from .errors import RunError


@dataclass(frozen=True)
class EvaluationResult:
    """The result over the images of all ranks."""

    correct: int
    total: int
    loss: float
    """Mean over the images."""

    correct_of_views: int | None = None
    """Images that the mean score over several views classifies correctly; None: only one view was tested."""

    @property
    def accuracy(self) -> float:
        """Fraction of the images that were classified correctly."""
        return self.correct / self.total

    @property
    def accuracy_of_views(self) -> float | None:
        """Fraction of the images that the mean score over several views classifies correctly."""
        return None if self.correct_of_views is None else self.correct_of_views / self.total


def views_of(images: Tensor, kind: str) -> list[tuple[float, Tensor]]:
    """Return the views of images [N, C, H, W] for test-time augmentation, each with its weight; the plain ones first.

    ``"plain"``: the images. ``"flips"``: also mirrored. ``"flips-and-shifts"``: also both shifted by a pixel, down and
    right, and up and left, with reflected borders; the four shifted views together weigh as much as the other two.

    Source: Jordan, arXiv 2404.00498, legacy/airbench94.py, for the shifts and weights.
    """
    views = [(1.0, images)]
    if kind == "flips-and-shifts":
        padded = nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")
        views = [(0.5, images), (0.25, padded[..., :-2, :-2]), (0.25, padded[..., 2:, 2:])]
    if kind == "plain":
        return views
    return [(weight / 2, view) for weight, one in views for view in (one, one.flip(-1))]


@torch.inference_mode()
def evaluate(
    network: nn.Module,
    loader: Any,
    world: World,
    autocast: Callable[[], Any],
    interrupted: Callable[[], int],
    views: str = "plain",
) -> EvaluationResult | None:
    """Test a network; return None if a rank was interrupted. All ranks must call this.

    Pass the plain network: the forward pass of DistributedDataParallel broadcasts buffers, so ranks with different
    numbers of batches would wait for each other forever. The ranks communicate once, at the end, and add up integers;
    a mean of the ranks' means would be wrong.
    """
    network.eval()
    if world.size > 1:  # batch normalisation has other statistics on each rank: rank 0's are tested
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
    counts = torch.zeros(4, dtype=torch.int64, device=world.device)
    loss = torch.zeros((), dtype=torch.float64, device=world.device)
    for images, labels in loader:
        if interrupted():
            counts[3] += 1
            break
        images, labels = images.to(world.device), labels.to(world.device)
        with autocast():
            scores = [(weight, network(view).float()) for weight, view in views_of(images, views)]
        plain, mean = scores[0][1], torch.stack([weight * score for weight, score in scores]).sum(dim=0)
        loss += nn.functional.cross_entropy(plain, labels, reduction="sum")
        counts[0] += (plain.argmax(dim=1) == labels).sum()
        counts[1] += (mean.argmax(dim=1) == labels).sum()
        counts[2] += len(labels)
    correct, correct_of_views, total, num_interrupted = world.sum(counts).tolist()  # waits for the device
    loss_sum = world.sum(loss).item()
    if num_interrupted:
        return None
    with fail_together(world):
        if not total:
            raise RunError("no test image could be loaded; repair or remove the damaged ones")
    return EvaluationResult(correct, total, loss_sum / total, None if views == "plain" else correct_of_views)
