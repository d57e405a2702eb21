"""Image files that a device decodes: workers read them and draw their crops, the device makes the pixels.

::

    indices ─> files, headers ─┐
    ids, epoch ─> crops, flips ┴─> cut and file, as bytes ──> nvJPEG ─> crop, resize, flip ─> rows of uint8 ─> (tail)
               in the workers                                            on the device

In: indices and ids of a chunk's samples. Out: one ``bytes`` object for each: its :class:`~fastload.images.Cut`, its
index and its file; and of a batch of these the images, [N, 3, H, W], on the device. Crops and flips are those of every
other decoder; the pixels are nvJPEG's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..buffers.layout import Layout
from ..errors import ConfigError, DatasetError
from ..images import Cut, nvjpeg
from ..images.base import Data
from ..pack.records import file_of
from ..transforms.resampling import resize_natively
from ..transforms.resize import RandomResizedCrop, Resize
from ..workers.on_error import name_sample
from .dataset import FusedDataset, Loaded
from .plan import FusedTail, Plan
from .runner import Chunk, Runner
from .stages import cut_of, num_cut

# What torch resizes with on a device as Pillow does, but for the last bit; and what stands where nothing is resized.
_FILTERS = ("nearest", "bilinear", "bicubic")
# Box, size and window, the filter's place, flips; and the sample's index, for errors.
_HEAD = struct.Struct("<10iB??q")


def why_not(plan: Plan) -> str | None:
    """Return why a device cannot decode the files of a dataset; None if it can.

    Args:
        plan: of what the workers do, as :meth:`Plan.split` returns it.
    """
    if not plan.fused:
        return plan.reason
    for part in plan.parts:
        if part.source.size is not None:
            return f"the images of {part.source} lie in memory: there are no files"
        if part.pipeline.rest:
            return f"{part.pipeline.rest[0]} is called in the workers, where there would be no pixels"
        head = num_cut(part.steps, part.states, through=True)
        if head < len(part.steps):
            return f"{part.steps[head].shown} is done in the workers, where there would be no pixels"
        for step in part.steps:
            if isinstance(step, RandomResizedCrop | Resize) and step.interpolation not in _FILTERS[1:]:
                return f"{step.shown} has another filter than 'bilinear' and 'bicubic'"
    if plan.yields is None or plan.yields.shape is None:
        return "its images have different sizes; crop or resize all of them to one"
    return None


class EncodedDataset(FusedDataset):
    """Loads for each sample the file and its cut, for :class:`DeviceDecoding`.

    Raises:
        ConfigError: as :class:`FusedDataset`; or a device cannot decode its files.
    """

    def _make(self, plan: Plan) -> None:
        reason = why_not(plan)
        if reason is not None:
            raise ConfigError(
                f"decoder='nvjpeg' decodes files on the device, right after they are read, and in the {plan.dataset} "
                f"that cannot be: {reason}; use decoder='auto'"
            )
        super()._make(plan)

    def fits(self, layout: Layout) -> bool:
        """Whether images can be written into rows of this layout: there are none yet."""
        return False

    def load(self, indices: Sequence[Any], ids: Iterable[int], epoch: int, **options: Any) -> Loaded:
        """Load a chunk of samples: see :meth:`FusedDataset.load`. The images are ``bytes``."""
        return super().load(indices, ids, epoch, **options)._replace(kind=None)

    def _room(self, count: int, out: Tensor | None) -> list[Any]:
        return [None] * count

    def _make_images(self, runner: Runner, chunk: Chunk, rows: Sequence[int], images: Any) -> None:
        assert chunk.files is not None
        given = runner.drawing.given(chunk.drawn, len(rows))
        for place, row in enumerate(rows):
            height, width = chunk.size(place)
            cut = cut_of(runner.steps, given[place], height, width)
            if cut is None:
                error = DatasetError(
                    f"the crop is larger than the image of ({height}, {width}), and decoder='nvjpeg' pads none; resize "
                    "before the crop, or use decoder='auto'"
                )
                name_sample(error, self.dataset, chunk.names[place])
                raise error
            name, index = chunk.names[place], chunk.indices[place]
            images[row] = packed(cut, int(name), runner.decoded(name, index, file_of, chunk.files[place]))


class DeviceDecoding:
    """Makes a batch of images of a batch of :class:`EncodedDataset`: a transform of batches.

    Args:
        dataset: whose samples they are; names the file in an error.
        size: (height, width) of all of them.
        device: where.
        channels_last: how the images lie.
        tail: the dataset's steps after its crops, resizes and flips; None: there are none.
        count: called with the numbers of decoded images, by decoder.
    """

    def __init__(
        self,
        dataset: Any,
        size: tuple[int, int],
        device: torch.device,
        channels_last: bool,
        tail: FusedTail | None,
        count: Callable[[dict[str, int]], None],
    ) -> None:
        self._dataset = dataset
        self._size = size
        self._device = device
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._tail = tail
        self._count = count

    def __call__(self, batch: Sequence[Any]) -> list[Any]:
        """Decode the first part of a batch; what else there is stays.

        Raises:
            Exception: what Pillow raises for a file that cannot be decoded, with a note of its index and path.
        """
        samples, *rest = batch
        cuts, indices, files = zip(*map(unpacked, samples), strict=True)

        def name(error: Exception, place: int) -> None:
            name_sample(error, self._dataset, indices[place])

        counts: dict[str, int] = {}
        images = nvjpeg.decode_batch(files, self._device, counts=counts, name=name)
        self._count(counts)
        shape = (len(images), 3, *self._size)
        rows = torch.empty(shape, dtype=torch.uint8, device=self._device, memory_format=self._format)
        for row, image, cut in zip(rows, images, cuts, strict=True):
            row.copy_(made(image, cut))
        return [rows if self._tail is None else self._tail(rows), *rest]


def packed(cut: Cut, index: int, data: Data) -> bytes:
    """Return a cut, the sample's index in the dataset and a file as one object, which collation passes on as it is."""
    flips = cut.flips
    head = _HEAD.pack(*cut.box, *cut.size, *cut.window, _FILTERS.index(cut.interpolation), *flips, index)
    return b"".join((head, data))


def unpacked(sample: bytes) -> tuple[Cut, int, memoryview]:
    """Return the cut, the index and the file of :func:`packed`."""
    *values, index = _HEAD.unpack_from(sample)
    cut = Cut(
        tuple(values[:4]), tuple(values[4:6]), _FILTERS[values[10]], tuple(values[6:10]), (values[11], values[12])
    )
    return cut, index, memoryview(sample)[_HEAD.size :]


def made(image: Tensor, cut: Cut) -> Tensor:
    """Return what a cut makes of an image, [3, H, W] of uint8, on its device. The host does not wait for it."""
    part = _part(image, cut.box)
    if cut.size != cut.box[2:]:
        # As Pillow 13: one direction after the other, whole levels in between; first the rows of what is tall.
        (height, width), (rows, columns) = cut.box[2:], cut.size
        rows_first = height - rows > max(0, 2 * (width - columns))
        for size in ((rows, width) if rows_first else (height, columns), cut.size):
            resized = resize_natively(part[None].float(), size, cut.interpolation, antialias=True)[0]
            part = (resized + 0.5).floor().clamp(0, 255).to(torch.uint8)  # halves upwards, as Pillow
    part = _part(part, cut.window)
    dims = [dim for dim, flipped in zip((2, 1), cut.flips, strict=True) if flipped]
    return part.flip(dims) if dims else part


def _part(image: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    top, left, height, width = box
    return image[:, top : top + height, left : left + width]
