"""The loader."""

# N samples.

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from ...base.checks import check_count
from ...device.streams import device_of, streams_of
from ...loader import DataLoader
from .inputs import Files, import_dali
from .pipelines import Pipelines


class DALILoader(DataLoader[Any]):
    """A ``fastload.DataLoader`` whose batches an NVIDIA DALI pipeline makes, from files that the workers read.

    The same seed, epoch and index give the same inputs of the pipeline (``source``), for any batch size, workers and
    ranks. docs/coming-from.md says how DALI's own random operators are seeded.

    A batch is ``[output, ..., targets]``: the pipeline's outputs, [N, ...], and targets as torch collates them. It
    stays valid as long as you hold it. The last batch may be shorter.

    Args:
        dataset: a map-style dataset of pairs (encoded image, target), the image as bytes or an array of them.
        batch_size: samples in a batch.
        pipeline: a function with DALI's ``@pipeline_def`` whose inputs come from ``source``. It is called with
            ``batch_size``, ``num_threads``, ``device_id``, ``prefetch_queue_depth`` and ``seed``.
        device: ``"cpu"``; or ``"cuda"``, where outputs of the pipeline are on the GPU. Not verified: no GPU.
        num_threads: DALI's threads; None: the number of cores of this process.
        prefetch_queue_depth: batches that DALI works on in addition to the current one; at least 1.
        arguments: as in ``fastload.DataLoader``: ``shuffle``, ``sampler``, ``num_workers``, ``seed`` and others.

    Raises:
        ConfigError: DALI is not installed, or an argument is out of its range.
        RuntimeError: from ``next()``, instead of a batch: an image cannot be decoded; the message names the file. The
            next call continues with the next batch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        pipeline: Callable[..., Any],
        device: torch.device | str | int = "cpu",
        num_threads: int | None = None,
        prefetch_queue_depth: int = 2,
        **arguments: Any,
    ) -> None:
        place = device_of(device)
        depth = check_count("prefetch_queue_depth", prefetch_queue_depth)
        import_dali()  # after what needs none is checked, and before what only its systems have
        options = {
            "num_threads": num_threads or len(os.sched_getaffinity(0)),
            "device_id": place.index if place.type == "cuda" else None,
            # Of one: more are scheduled ahead, and DALI would begin by running as many as are in its queue.
            "prefetch_queue_depth": 1,
        }
        files = Files(dataset)
        self._pipelines = Pipelines(files, pipeline, options, streams_of(place))
        super().__init__(files, batch_size, batch_transform=self._pipelines, prefetch_to_device=depth, **arguments)

    def __iter__(self) -> Any:
        self._pipelines.begin()
        return super().__iter__()

    def close(self) -> None:
        """End the workers and DALI's pipeline, with its threads. The loader can be used again."""
        super().close()
        self._pipelines.close()
