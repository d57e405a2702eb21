"""The loader, and the pipeline that does what its dataset's transform says."""

# N samples, C channels, H and W of the images.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from ...arguments import check_count
from ...base.worker_kinds import WorkerMethod
from ...device.streams import device_of, streams_of
from ...engine.statistics import Statistics
from ...errors import ConfigError
from ...fusion.plan import recognise
from ...loader import DataLoader
from .inputs import Files, import_dali, source
from .pipelines import Pipelines
from .recipe import Recipe, Scaling, recipe_of


class DALILoader:
    """Loads batches of images with NVIDIA DALI, in the order and with the crops and flips of fastload.

    The same seed, epoch and index give the same crop and flip, for any batch size, workers, ranks and decoder. Steps
    that DALI does not do (colours, erasing) are done on the batch after it. docs/dali.md says how DALI's pixels differ
    from Pillow's, and how its own random operators are seeded.

    A batch is ``[images, targets]``: images [N, 3, H, W] of the transform's dtype, and targets as torch collates them;
    with a pipeline of several outputs ``[output, ..., targets]``. It stays valid as long as you hold it. The last
    batch may be shorter.

    Args:
        dataset: a torchvision ImageFolder or DatasetFolder, or a Subset or ConcatDataset of them, with the transforms
            that ``DataLoader(..., fuse=True)`` knows; or, with ``pipeline``, also any map-style dataset of pairs
            (encoded image, target).
        batch_size: samples in a batch.
        shuffle: whether each epoch has another random order.
        sampler: as in ``fastload.DataLoader``.
        batch_sampler: as in ``fastload.DataLoader``.
        num_workers: workers that read files; 0: this process reads them.
        drop_last: whether the last batch is left out if it is not full.
        generator: as in ``fastload.DataLoader``.
        prefetch_factor: as in ``fastload.DataLoader``.
        persistent_workers: as in ``fastload.DataLoader``.
        worker_method: as in ``fastload.DataLoader``.
        seed: as in ``fastload.DataLoader``.
        overlap_epochs: as in ``fastload.DataLoader``.
        pipeline: a function with DALI's ``@pipeline_def`` whose inputs come from ``source``. It is called with
            ``batch_size``, ``num_threads``, ``device_id``, ``prefetch_queue_depth`` and ``seed``; its outputs replace
            the images. The dataset's transform may then only crop, resize and flip, for ``source``. None: a pipeline
            that does what the dataset's transform says.
        device: ``"cpu"``; or ``"cuda"``: DALI decodes by its ``"mixed"`` device, and batches are on the GPU. Not
            verified: no GPU.
        num_threads: DALI's threads; None: the number of cores of this process.
        prefetch_queue_depth: batches that DALI works on in addition to the current one; at least 1.

    Raises:
        ConfigError: DALI is not installed, an argument is out of its range, or a transform is not supported.
        RuntimeError: from ``next()``, instead of a batch: an image cannot be decoded; the message names the file. The
            next call continues with the next batch.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        worker_method: WorkerMethod = "multiprocessing",
        seed: int | None = None,
        overlap_epochs: bool = True,
        pipeline: Callable[..., Any] | None = None,
        device: torch.device | str | int = "cpu",
        num_threads: int | None = None,
        prefetch_queue_depth: int = 2,
    ) -> None:
        self.dataset = dataset
        self.pipeline = pipeline
        self.device = device_of(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ConfigError(f"DALI knows the devices 'cpu' and 'cuda', got {device=}")
        if pipeline is not None and not callable(pipeline):
            raise ConfigError(f"pipeline must be a function with @pipeline_def, got {pipeline!r}")
        if num_threads is not None:
            num_threads = check_count("num_threads", num_threads)
        self.prefetch_queue_depth = check_count("prefetch_queue_depth", prefetch_queue_depth)
        parts = recognise(dataset).parts
        self._recipe: Recipe | None = None
        if pipeline is None or any(part.pipeline.steps or part.pipeline.rest for part in parts):
            self._recipe = recipe_of(dataset, whole=pipeline is None)
        import_dali()  # after what needs none is checked, and before what only its systems have
        self.num_threads = len(os.sched_getaffinity(0)) if num_threads is None else num_threads
        files = Files(dataset)
        self._pipelines = Pipelines(
            files,
            self._recipe,
            _built_in(self._recipe, self.device) if pipeline is None else pipeline,
            {
                "num_threads": self.num_threads,
                "device_id": self.device.index if self.device.type == "cuda" else None,
                # Of one: more are scheduled ahead, and DALI would begin by running as many as are in its queue.
                "prefetch_queue_depth": 1,
            },
            streams_of(self.device),
            reseeded=pipeline is not None,
        )
        self.loader: DataLoader[Any] = DataLoader(
            files,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            drop_last=drop_last,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            worker_method=worker_method,
            seed=seed,
            overlap_epochs=overlap_epochs,
            batch_transform=self._pipelines,
            prefetch_to_device=self.prefetch_queue_depth,
        )
        """Gives the order, and reads the files."""

    def __iter__(self) -> Iterator[list[Any]]:
        self._pipelines.begin()
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def batch_size(self) -> int | None:
        """As of torch's loader."""
        return self.loader.batch_size

    @property
    def sampler(self) -> Any:
        """As of torch's loader."""
        return self.loader.sampler

    @property
    def batch_sampler(self) -> Any:
        """As of torch's loader."""
        return self.loader.batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """See ``fastload.DataLoader.set_epoch``."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See ``fastload.DataLoader.state_dict``: what was given out counts, not what DALI works on."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``fastload.DataLoader.load_state_dict``.

        Raises:
            StateError: it is no such state, or belongs to another loader; this loader is as it was.
        """
        self.loader.load_state_dict(state)

    def statistics(self) -> Statistics:
        """Return what the loader did that reads the files."""
        return self.loader.statistics()

    def close(self) -> None:
        """End the workers and DALI's pipeline, with its threads. The loader can be used again."""
        self.loader.close()
        self._pipelines.close()


def _built_in(recipe: Recipe | None, device: torch.device) -> Callable[..., Any]:
    """Return the pipeline of a recipe."""
    assert recipe is not None
    dali = import_dali()
    fn, types = dali.fn, dali.types
    dtypes = {torch.uint8: types.UINT8, torch.float16: types.FLOAT16, torch.float32: types.FLOAT}
    scaling = recipe.scaling or Scaling(torch.uint8, [0.0] * 3, [1.0] * 3)

    def images() -> Any:
        made = fn.decoders.image_slice(
            source("file"),
            source("crop_start"),
            source("crop_shape"),
            axes=(0, 1),
            device="cpu" if device.type == "cpu" else "mixed",
            output_type=types.RGB,
            adjust_orientation=False,  # as torchvision
        )
        if recipe.interpolation is not None:
            made = fn.resize(
                made,
                size=source("resized"),
                interp_type=getattr(types, f"INTERP_{recipe.interpolation}"),
                antialias=recipe.interpolation != "NN",
            )
        if recipe.window is not None:
            made = fn.slice(made, start=source("window_start"), shape=list(recipe.window), axes=(0, 1))
        if recipe.flips_vertically:
            made = fn.flip(made, horizontal=0, vertical=source("mirror_vertically"))
        return fn.crop_mirror_normalize(
            made,
            dtype=dtypes[scaling.dtype],
            output_layout="CHW",
            mean=scaling.mean,
            std=scaling.std,
            mirror=source("mirror"),
        )

    factory: Callable[..., Any] = dali.pipeline_def(images)
    return factory
