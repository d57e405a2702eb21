"""A dataset whose transform is fused: the same samples, given the same parameters.

::

    files                     [ row: decode, crop, resize, crop, flip, values ]   [ erasing ]
    arrays                    [ block: crops, flips and values of a chunk     ]   [ erasing ]
    arrays that are resized   [ row ]                                             [ erasing ]
"""

# N samples, C channels, H and W of the images.

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors

from ..buffers.layout import Layout, Row, TensorLeaf
from ..cache.records import Records
from ..images import decoder
from ..keys.seeding import BATCH, Keys, Seeder
from ..late.geometry import Geometry
from ..measurement.measurement import add_decoding
from ..native import arrays
from ..native.rows import Cut
from ..observe import Watch
from ..transforms.base import BatchShape, Params, Transform
from ..transforms.draws import Draws
from ..transforms.gather import MovingTransform, steps_of
from ..transforms.resize import RandomResizedCrop
from ..workers.fused import FusedLoader
from ..workers.on_error import name_sample
from ..workers.samples import Job
from .plan import recognise
from .sources import Arrays
from .transforms import ImageKind, Size

# Files that are opened, and so asked for, before the first of them is read.
_FILES = 16

_LOW = (1 << 64) - 1
_FLIPS = Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.FLIP_LEFT_RIGHT
_CPU = torch.device("cpu")


class FusedSamples(NamedTuple):
    """A chunk of samples."""

    images: Tensor
    """[N, C, H, W]."""
    targets: list[Any]
    kind: ImageKind

    def samples(self) -> list[tuple[Any, Any]]:
        """Return the samples as the dataset gives them: pairs of image and target."""
        images: Iterable[Any] = self.images
        if self.kind == "Image":
            images = (tv_tensors.Image(image) for image in self.images)
        return list(zip(images, self.targets, strict=True))

    def batch(self) -> list[Any]:
        """Return what torch's ``default_collate`` makes of the samples."""
        # A tuple, as default_collate makes a column of samples: it gives strings back as they are.
        return [self.images, default_collate(tuple(self.targets))]  # type: ignore[arg-type]  # it says list

    def copied(self) -> FusedSamples:
        """Return the same with images in memory of their own."""
        return self._replace(images=self.images.clone())


class FusedDataset:
    """A map-style dataset with its transform fused.

    Args:
        dataset: one that ``recognise`` fuses. It is looked at again when an epoch begins.
        seed: of the samples' keys: the loader's, or its base seed.
        cache: where records of files are kept, if the native library reads them; None: nowhere. It is not pickled.
    """

    in_next = False
    """True if ``next()`` loads the samples, whatever ``num_workers`` says."""

    def __init__(self, dataset: Any, seed: int, cache: Records | None = None) -> None:
        self.dataset, self.seed = dataset, seed
        self._uses_native = decoder.why_not_native() is None
        self._cache = cache if self._uses_native else None
        self._lock = threading.Lock()
        self._decoded: dict[str, int] = {}
        self._epoch: int | None = None
        self._look()

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedDataset, (self.dataset, self.seed)

    def loader(self, job: Job, seeder: Seeder, watch: Watch | None) -> FusedLoader:
        """Return what loads the samples of a job, for one worker, whose copy of the dataset may have been changed."""
        return FusedLoader(FusedDataset(job.dataset, self.seed, job.cache), job, seeder, watch)

    def follows(self, epoch: int) -> bool:
        """Return whether samples can be made here, or the dataset must load them itself: decided as an epoch begins."""
        if epoch != self._epoch:
            self._look()
            self._epoch = epoch
        return self.plan.fused

    def _look(self) -> None:
        """Look at the dataset, and prepare what all chunks need."""
        self.plan = recognise(self.dataset, self._cache)
        if self.plan.found is None:
            return
        self._chosen, self._source, self._pipeline = self.plan.found
        pipeline, source = self._pipeline, self._source
        assert pipeline.size is not None
        self._table = pipeline.table
        self._yields = self._table.dtype, (pipeline.channels, *pipeline.size)
        moves = [step for step, _ in pipeline.steps if isinstance(step, MovingTransform)]
        fills = {move.map_fill for move in moves if move.map_fill is not None}
        self._fill = [int(level) for level in next(iter(fills))] if fills else None
        by_library = self._uses_native and self._table.dtype in arrays.DTYPES and len(fills) <= 1
        self._by_block = isinstance(source, Arrays) and pipeline.resize is None and by_library

    def load(
        self, indices: Sequence[Any], ids: Iterable[int], epoch: int, *, out: Tensor | None = None
    ) -> FusedSamples:
        """Load a chunk of samples.

        Args:
            indices: of the samples.
            ids: their names, as :func:`fastload.keys.seeding.sample_id` gives them.
            epoch: 0, 1, ...
            out: rows for the images, contiguous, of a layout that :meth:`fits`; None: new ones.
        """
        dtype, shape = self._yields
        images = torch.empty((len(indices), *shape), dtype=dtype, device="cpu") if out is None else out
        if not len(indices):
            return FusedSamples(images, [], self._pipeline.kind)
        places = indices
        for chosen in self._chosen:
            places = [chosen[index] for index in places]
        draws = draws_of(self.seed, epoch, ids)
        if self._by_block:
            self._write_block(places, draws, images)
        else:
            self._write_rows(places, indices, draws, images)
        for step, name in self._pipeline.erasing:
            step.erase(images, step.draw(draws.stream(name), BatchShape(*images.shape)))
        return FusedSamples(images, self._source.targets(places), self._pipeline.kind)

    def fits(self, layout: Layout) -> bool:
        """Return whether images can be written into rows of this layout."""
        root = layout.root
        if not isinstance(root, Row) or root.kind is not tuple:
            return False
        image = root.children[0]
        return isinstance(image, TensorLeaf) and (image.dtype, tuple(image.shape)) == self._yields

    def decoded(self) -> dict[str, int]:
        """Return how many files were decoded since the last call, by what decoded them: for Pillow with the reason."""
        with self._lock:
            counts, self._decoded = self._decoded, {}
        return counts

    def _drawn(self, draws: Draws, sizes: list[Size]) -> list[tuple[Any, Params, list[Size]]]:
        """Return each step before erasing, its parameters, and the sizes of the images before it."""
        found = []
        for step, name in self._pipeline.steps:
            params: Params = {}
            if isinstance(step, RandomResizedCrop):
                parts = step.parts(draws.stream(name), *np.array(sizes).T)
                params = {key: torch.from_numpy(values) for key, values in parts.items()}
            elif type(step).draw is not Transform.draw:
                # What draws by the size of an image comes where all have one: see _random_crop.
                params = step.draw(draws.stream(name), BatchShape(len(draws), self._pipeline.channels, *sizes[0]))
            found.append((step, params, sizes))
            after = {size: step.shape_after(BatchShape(1, 0, *size))[2:] for size in set(sizes)}
            sizes = [after[size] for size in sizes]
        return found

    def _write_block(self, places: Sequence[Any], draws: Draws, out: Tensor) -> None:
        source = self._source
        assert isinstance(source, Arrays)
        assert source.size is not None
        which = torch.from_numpy(source.places(places))
        drawn: list[Any] = self._drawn(draws, [source.size])
        shape = BatchShape(len(places), source.channels, *source.size)
        rows, cols, _ = steps_of([move for move, *_ in drawn], [params for _, params, _ in drawn], shape, _CPU)
        arrays.write_batch(out, torch.from_numpy(source.planes), rows, cols, which, self._fill, self._table)

    def _write_rows(self, places: Sequence[Any], indices: Sequence[Any], draws: Draws, out: Tensor) -> None:
        for first in range(0, len(places), _FILES):
            part = slice(first, first + _FILES)
            rows = [functools.partial(self._named, index) for index in indices[part]]
            with ExitStack() as opened:
                pairs = list(zip(rows, places[part], strict=True))
                files = [named(self._source.open, place, opened) for named, place in pairs]
                data = [named(self._source.data, file) for named, file in zip(rows, files, strict=True)]
            sizes = [named(decoder.size_of, its) for named, its in zip(rows, data, strict=True)]
            drawn = self._drawn(draws.of(part), sizes)
            for row, (named, its) in enumerate(zip(rows, data, strict=True)):
                named(self._write_row, its, row, sizes[row], drawn, out[first + row])

    def _write_row(self, data: Any, row: int, size: Size, drawn: list[Any], out: Tensor) -> None:
        geometry: Any = Geometry.whole(size[1], size[0])  # of which all parts lie within the image
        resize = self._pipeline.resize
        if resize is not None:
            (_, params, _), *drawn = drawn
            height, width = resize.shape_after(BatchShape(1, 0, *size))[2:]
            if params:
                left, top, w, h = (int(params[side][row]) for side in ("left", "top", "width", "height"))
                geometry = geometry.cropped((left, top, left + w, top + h))
            geometry = geometry.resized((width, height), resize.interpolation)
        moves = [
            (move, {name: values[row : row + 1] for name, values in params.items()}, sizes[row])
            for move, params, sizes in drawn
        ]
        moved = _moved(geometry, moves)
        if moved is not None:
            self._write(data, moved.cut, self._table, out)
            return
        width, height = geometry.shown_size
        images = torch.empty((1, len(out), height, width), dtype=torch.uint8, device="cpu")
        self._write(data, geometry.cut, None, images[0])
        for move, params, _ in moves:
            images = move.transform(images, params)
        decoder.look_up(self._table, images[0], out)

    def _write(self, data: Any, cut: Cut, table: Tensor | None, out: Tensor) -> None:
        begun = time.perf_counter_ns()
        by = decoder.write_row(data, cut, table, out)
        if not isinstance(data, np.ndarray):
            add_decoding(begun)
            with self._lock:
                self._decoded[by] = self._decoded.get(by, 0) + 1

    def _named(self, index: Any, function: Any, *args: Any) -> Any:
        """Call a function; an error names the sample by its index in the dataset."""
        try:
            return function(*args)
        except Exception as error:
            name_sample(error, self.dataset, index)
            raise


def _moved(geometry: Any, moves: Sequence[tuple[MovingTransform, Params, Size]]) -> Any:
    """Return the geometry of one image after moves, each with the image's size before it; None: they pad it."""
    for move, params, before in moves:
        shape, corner = BatchShape(1, 1, *before), [0, 0]
        height, width = move.shape_after(shape)[2:]
        for axis, steps in enumerate(move.steps(params, shape, _CPU)):
            for kind, values, first, _ in steps:
                value = 0 if values is None else int(values[0])
                if kind != arrays.StepKind.FLIP:
                    corner[axis] += first + value
                elif value:
                    geometry = geometry.transposed_by(_FLIPS[axis])
        top, left = corner
        geometry = geometry.cropped((left, top, left + width, top + height))
        if geometry is None:
            return None
    return geometry


def draws_of(seed: int, epoch: int, ids: Iterable[int]) -> Draws:
    """Return the draws that a batch of samples with these ids (:func:`~fastload.keys.seeding.sample_id`) has."""
    names = list(ids)
    key = Keys(seed, epoch, BATCH).key(0)
    try:
        return Draws(key, np.array(names, dtype=np.int64))
    except OverflowError:  # some are repeats, which the bits above tell from the first
        low = np.array([name & _LOW for name in names], dtype=np.uint64).astype(np.int64)
        return Draws(key, low, np.array([name >> 64 for name in names], dtype=np.int64))
