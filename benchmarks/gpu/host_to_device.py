"""Bytes per second to the device: ``fastload.prefetch`` and ``DataLoader(device=...)`` against the plain copy.

Claim: ``prefetch`` reaches at least 0.9 of a loop of ``copy_(non_blocking=True)`` from page-locked memory, on one
stream.

The sides: "plain copy": that loop; "prefetch": ``fastload.prefetch`` over the same page-locked batches; "processes" and
"threads": a loader whose workers give ready batches of the same size, all they do being to hand them over; the host
copies these into page-locked memory first. A time runs from before ``iter()`` to behind the last copy; workers are
persistent, and an epoch goes before. The consumer touches nothing of a batch.

Meaningless if: the device is the CPU, to which nothing is copied; or there are fewer cores than workers.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.gpu.made_data import ReadyBatches, noise
from benchmarks.gpu.measuring import measuring, seconds_of
from benchmarks.loops import describe, kept, make_loader
from benchmarks.spec import Measurement, Side
from fastload import prefetch

# Several, so that no copy finds its source in a cache.
_NUM_SOURCES = 4


@measuring
def copies(side: Side, *, device: str, num_batches: int, shape: list[int], num_workers: int) -> Measurement:
    where = torch.device(device)
    sources: list[Tensor] = kept(
        "sources", lambda: [_locked(noise(*shape, seed=i), where) for i in range(_NUM_SOURCES)]
    )
    in_turn = [sources[number % _NUM_SOURCES] for number in range(num_batches)]
    work: Callable[[], object]
    statistics: dict[str, object] = {}
    if side.name == "plain copy":
        places = kept("places", lambda: [torch.empty_like(sources[0], device=where) for _ in range(2)])

        def work() -> None:
            for number, source in enumerate(in_turn):
                places[number % 2].copy_(source, non_blocking=True)

    elif side.name == "prefetch":

        def work() -> None:
            _pass_over(iter(prefetch(in_turn, where)))

    else:
        loader = kept(
            side.name,
            lambda: make_loader(
                side,
                ReadyBatches(num_batches, tuple(shape)),
                batch_size=None,
                num_workers=num_workers,
                persistent_workers=True,
                device=device,
            ),
        )

        def work() -> None:
            _pass_over(iter(loader))
            statistics.update(describe(loader))

    seconds = seconds_of(work, where)
    return {"GB/s": num_batches * math.prod(shape) / seconds / 1e9, "statistics": statistics}


def _locked(images: Tensor, device: torch.device) -> Tensor:
    """Return images in page-locked memory, where the device has a use for it."""
    return images.pin_memory() if device.type == "cuda" else images


def _pass_over(batches: Iterator[Tensor]) -> None:
    for _batch in batches:
        pass
