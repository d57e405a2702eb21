"""Testing on all ranks: each image counts exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .processes import Place, stop_together


@dataclass(frozen=True)
class Tested:
    """What all ranks together found."""

    correct: int
    total: int
    loss: float
    """The mean over the images."""

    correct_of_views: int | None = None
    """Those that the mean score of several views classified correctly; None where there is one view."""

    @property
    def accuracy(self) -> float:
        """Share of the images that were classified correctly."""
        return self.correct / self.total

    @property
    def accuracy_of_views(self) -> float | None:
        """Share of the images that the mean score of several views classified correctly."""
        return None if self.correct_of_views is None else self.correct_of_views / self.total


def views_of(images: Tensor, kind: str) -> list[tuple[float, Tensor]]:
    """Return what the network is to see of images, [N, C, H, W] each, and its share of the mean score.

    ``"plain"``: the images as they are. ``"flips"``: these, and mirrored. ``"flips-and-shifts"``: both also shifted by
    a pixel, down and right, and up and left, where the border is reflected; these four together count as much as the
    two. The first is always the images as they are.

    Source: Jordan, arXiv 2404.00498, for the shifts and their shares, as legacy/airbench94.py has them.
    """
    seen = [(1.0, images)]
    if kind == "flips-and-shifts":
        padded = nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")
        seen = [(0.5, images), (0.25, padded[..., :-2, :-2]), (0.25, padded[..., 2:, 2:])]
    if kind == "plain":
        return seen
    return [(share / 2, view) for share, one in seen for view in (one, one.flip(-1))]


@torch.inference_mode()
def evaluate(
    network: nn.Module,
    loader: Any,
    place: Place,
    autocast: Callable[[], Any],
    interrupted: Callable[[], int],
    views: str = "plain",
) -> Tested | None:
    """Test a network; None if some rank was interrupted. All ranks must call this.

    The network is the plain one, not DistributedDataParallel around it: its forward pass broadcasts buffers, so ranks
    with unequal numbers of batches would wait for one another for ever. The ranks meet once, at the end, and add
    up integers; an average of the ranks' averages would be another number.

    Args:
        network: the same on all ranks, but for buffers.
        loader: this rank's share.
        place: of this rank.
        autocast: makes the context of the forward pass.
        interrupted: says whether this rank has got a signal; asked at each batch.
        views: what the network sees of each image besides; see :func:`views_of`.

    Raises:
        SystemExit: not one image could be loaded.
    """
    network.eval()
    if place.world_size > 1:  # each rank's last step updated its own statistics of BatchNorm: rank 0's are tested
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
    counts = torch.zeros(4, dtype=torch.int64, device=place.device)
    loss = torch.zeros((), dtype=torch.float64, device=place.device)
    for images, labels in loader:
        if interrupted():
            counts[3] += 1
            break
        images, labels = images.to(place.device), labels.to(place.device)
        with autocast():
            seen = [(share, network(view).float()) for share, view in views_of(images, views)]
        plain, mean = seen[0][1], torch.stack([share * scores for share, scores in seen]).sum(dim=0)
        loss += nn.functional.cross_entropy(plain, labels, reduction="sum")
        counts[0] += (plain.argmax(dim=1) == labels).sum()
        counts[1] += (mean.argmax(dim=1) == labels).sum()
        counts[2] += len(labels)
    if place.world_size > 1:
        dist.all_reduce(counts)
        dist.all_reduce(loss)
    correct, of_views, total, num_interrupted = counts.tolist()  # sync point
    if num_interrupted:
        return None
    if not total:
        stop_together("not one of the test images can be loaded; repair or remove them", place, 1)
    return Tested(correct, total, loss.item() / total, None if views == "plain" else of_views)
