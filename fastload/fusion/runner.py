"""Makes the images of one leaf of a dataset, stage by stage: written into a batch, or one by one."""

# N samples, C channels, H and W of the images.

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torchvision import tv_tensors

from ..images.base import Data, Decoder
from ..native import arrays
from ..native.jpeg import is_record
from ..native.rows import Cut, Pixels
from ..pack.records import info_of
from ..transforms.arguments import fill_numbers
from ..transforms.base import BatchShape
from ..transforms.compose import stages_of
from ..transforms.draws import Draws
from ..transforms.erasing import RandomErasing
from ..transforms.gather import steps_of
from ..transforms.sample import Drawn, Kind, Sizes
from ..workers.on_error import name_sample
from .conversions import FromImage, Values
from .plan import Part
from .recognition import members_of
from .sources import ArrayReader, FileReader, PackReader, reader_of_files
from .stages import Drawing, cut_of

if TYPE_CHECKING:
    from ..cache.records import Records

Given = tuple[Any, ...]

_JPEG = b"\xff\xd8"


class Chunk(NamedTuple):
    """Some samples of a leaf."""

    indices: Sequence[Any]
    """In the leaf."""
    names: Sequence[Any]
    """Their indices in the whole dataset, which errors name."""
    files: Sequence[Data] | None
    """None: the images lie in memory."""
    sizes: Sizes
    """Of the images."""
    drawn: Sequence[Drawn]
    """Their parameters, for each step."""

    def size(self, place: int) -> tuple[int, int]:
        """Return the (height, width) of an image."""
        return int(self.sizes.height[place]), int(self.sizes.width[place])


class Runner:
    """Makes the images of a leaf.

    Errors name a sample by its index in ``whole``, which the leaf is of. ``native_blocks``: the native library makes
    blocks of arrays, where one pass can; else torch. ``cache``: where records of files are kept; None: nowhere.
    """

    def __init__(
        self,
        dataset: Any,
        whole: Any,
        part: Part,
        rows: Decoder,
        native_blocks: bool,
        cache: Records | None,
    ) -> None:
        self.part = part
        self.dataset = dataset
        self._whole = whole
        self.steps, self.states, self.stages = part.steps, part.states, part.stages
        self.drawing = Drawing(self.steps)
        self._rows = rows
        self.reader: FileReader | PackReader | ArrayReader
        cache = cache if rows.reads_records else None
        self.reader = reader_of_files(dataset, cache) if part.source.size is None else ArrayReader(dataset)
        # The rest is called as the dataset calls it, one after the other.
        num_rest = len(part.pipeline.rest)
        self.rest = members_of(dataset.transform)[-num_rest:] if num_rest else []
        stages = self.stages
        self._values: Values | None = None
        if stages.direct and not self.states[stages.per_sample].dtype.is_floating_point:
            self._values = Values(self.steps[stages.per_sample : stages.values], self.states[stages.per_sample])
        self._moves: list[tuple[int, Any]] = [
            (place, one) for place in range(stages.head) for one in self.steps[place].batched(self.states[place]) or []
        ]
        """Transforms that move pixels of whole arrays, and the places of their steps."""
        self._chain = stages_of([one for _, one in self._moves]) if self._moves and part.source.size is not None else []
        self._native_blocks = native_blocks and len(self._chain) <= 1
        self._native: arrays.BatchWriter | None = None

    def load(self, indices: Sequence[Any], names: Sequence[Any], draws: Draws) -> Chunk:
        """Read the files of samples, if they are files, and draw their parameters: see :class:`Chunk`."""
        reader, source = self.reader, self.part.source
        if isinstance(reader, ArrayReader):
            assert source.size is not None
            files, sizes = None, Sizes.all_of(source.size, len(names), source.channels)
        else:
            files = [self._named(name, reader.data, index) for index, name in zip(indices, names, strict=True)]
            each = [
                self.decoded(name, index, self._rows.size, data)
                for index, name, data in zip(indices, names, files, strict=True)
            ]
            sizes = Sizes.of(each, source.channels)
        return Chunk(indices, names, files, sizes, self.drawing.draw(draws, sizes))

    def write(self, chunk: Chunk, out: Tensor) -> None:
        """Write images into a batch: ``out``, [N, C, H, W]."""
        stages = self.stages
        # The parameters of single samples are not needed where all of them are made as one block.
        by_one = chunk.files is not None or stages.values < len(self.steps) or stages.per_sample > stages.head
        given = self.drawing.given(chunk.drawn, len(chunk.indices)) if by_one else []
        if chunk.files is not None:
            for row, (name, data) in enumerate(zip(chunk.names, chunk.files, strict=True)):
                index, size = chunk.indices[row], chunk.size(row)
                self.decoded(name, index, self._write_row, data, size, given[row], out[row])
        elif self._values is not None and stages.per_sample == stages.head:
            self._write_block(chunk, self._values, out)
        else:
            for row, image in enumerate(self._block(chunk).permute(0, 2, 3, 1)):
                self._write_one(np.ascontiguousarray(image.numpy()), given[row], out[row])
        for place in range(stages.values, len(self.steps)):
            step = self.steps[place]
            assert isinstance(step, RandomErasing)
            for row, values in enumerate(given):
                if values[place] is not None:
                    top, left, height, width, _ = box = values[place]
                    out[row, :, top : top + height, left : left + width] = step.values(tuple(out.shape[1:]), box)

    def _write_block(self, chunk: Chunk, values: Values, out: Tensor) -> None:
        if not self._native_blocks:
            values.write(self._block(chunk), out)
            return
        assert isinstance(self.reader, ArrayReader)
        images, members = self.reader.images, [one for _, one in self._moves]
        shape = BatchShape(len(chunk.indices), *images.shape[1:])
        rows, cols, after = steps_of(members, self._params(chunk), shape, images.device)
        known = values.table.dtype in arrays.DTYPES
        if self._native is None:
            fill = next((one.map_fill for one in members if one.map_fill is not None), None)
            levels = None if fill is None else fill_numbers("fill", fill, shape.channels, torch.uint8)
            table = values.table if known and not values.copies else None
            self._native = arrays.BatchWriter(images, (after.height, after.width), levels, table)
        pixels = out if known else torch.empty(out.shape, dtype=torch.uint8, device="cpu")
        places = torch.from_numpy(self.reader.places(chunk.indices).astype(np.int64, copy=False))
        self._native.write(pixels, rows, cols, places)
        if not known:
            values.write(pixels, out)

    def _params(self, chunk: Chunk) -> list[Any]:
        drawn = [chunk.drawn[place] for place, _ in self._moves]
        return [{name: torch.from_numpy(values) for name, values in one.items()} for one in drawn]

    def _block(self, chunk: Chunk) -> Tensor:
        """Return the images of an array after the head: [N, C, H, W], uint8."""
        assert isinstance(self.reader, ArrayReader)
        images = self.reader.block(self.reader.places(chunk.indices))
        params = self._params(chunk)
        for stage in self._chain:
            images = stage.transform(images, params[: len(stage.members)])
            params = params[len(stage.members) :]
        return images

    def _write_row(self, data: Data, size: tuple[int, int], given: Given, out: Tensor) -> None:
        cut = self._cut(size, given)
        if cut is not None and self._values is not None and self.stages.per_sample == self.stages.head:
            self._rows.row(data, cut, self._values, out)
        else:
            pixels = self._head(data, cut, given)
            head = self.stages.head
            if self.stages.cropped and self.steps[head].size[1] == 1 and given[head][3] < size[1]:  # type: ignore[attr-defined]
                pixels = _with_gaps(pixels)
            self._write_one(pixels, given, out)

    def _write_one(self, pixels: Pixels, given: Given, out: Tensor) -> None:
        """Write the image that the head gave."""
        stages, first = self.stages, self.stages.head
        image: Any = pixels
        if stages.per_sample > first:
            image = _as(pixels, self.states[first].kind)
            if stages.cropped:
                image = self.steps[first].resize_sample(image)  # type: ignore[attr-defined]  # a RandomResizedCrop
                first += 1
            image = self._stepped(image, first, given, stages.per_sample)
        if self._values is None:
            out.copy_(image)
        else:
            self._values.write(_tensor(image), out)

    def _cut(self, size: tuple[int, int], given: Given) -> Cut | None:
        """Return what a row makes of an image of this size; None if it cannot: the image is padded."""
        stages = self.stages
        part = given[stages.head] if stages.cropped else None
        return cut_of(self.steps[: stages.head], given[: stages.head], *size, part)

    def _head(self, data: Data, cut: Cut | None, given: Given) -> Pixels:
        """Return the pixels of a file after the head: [H, W, C]."""
        if cut is not None:
            return self._rows.pixels(data, cut)
        stages = self.stages
        pixels = _tensor(self._stepped(self._rows.image(data), 0, given, stages.head))
        if stages.cropped:
            top, left, height, width = given[stages.head]
            pixels = pixels[:, top : top + height, left : left + width]
        return np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())

    def image(self, index: Any, data: Data | None) -> PIL.Image.Image:
        """Return the image that the dataset gives its transform."""
        if data is not None:
            return self._rows.image(data)
        assert isinstance(self.reader, ArrayReader)
        image: PIL.Image.Image = _as(self.reader.pixels(index), "PIL")
        return image

    def each(self, chunk: Chunk, place: int, given: Given) -> Any:
        """Return one image after all known steps, of the type, dtype and strides that it has without fusion."""
        data = None if chunk.files is None else chunk.files[place]
        name, index, size = chunk.names[place], chunk.indices[place], chunk.size(place)
        return self.decoded(name, index, self._each, index, data, size, given)

    def _each(self, index: Any, data: Data | None, size: tuple[int, int], given: Given) -> Any:
        head = 0 if self.stages.direct else self.stages.head
        # A row has no "info". Where the user's code gets a PIL image, it comes from the header of the file: that of a
        # JPEG file has all of it.
        info = self.states[-1].kind == "PIL"
        cut = self._cut(size, given) if head else None
        if data is None or cut is None or (info and data[:2] != _JPEG and not is_record(data)):
            return self._stepped(self.image(index, data), 0, given)
        pixels = self._rows.pixels(data, cut)
        step = self.steps[head] if head < len(self.steps) else None
        if isinstance(step, FromImage):
            return self._stepped(step.from_array(pixels), head + 1, given)
        image = _as(pixels, "PIL")
        if info:
            image.info = info_of(data)
        return self._stepped(image, head, given)

    def _stepped(self, image: Any, first: int, given: Given, last: int | None = None) -> Any:
        for step, values in zip(self.steps[first:last], given[first:last], strict=True):
            image = step.transform_sample(image, values)
        return image

    def decoded(self, name: Any, index: Any, function: Any, *args: Any) -> Any:
        """Call a function that decodes; an error names the sample, one of damaged coefficients in its message too.

        ``name``: see :class:`Chunk`; ``index``: in the leaf.
        """
        return self._named(name, self._undamaged, index, function, *args)

    def _undamaged(self, index: Any, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            damage = self.dataset.damage(index, error) if isinstance(self.reader, PackReader) else None
            if damage is not None:
                raise damage from error
            raise

    def _named(self, name: Any, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            name_sample(error, self._whole, name)
            raise


def _with_gaps(pixels: Pixels) -> Pixels:
    """Return the pixels with a gap after each row, as torchvision's slice of the whole image has.

    torch 2.6, and later ones without AVX2, resize to a width of 1 other values of what has no gaps.
    """
    height, width, channels = pixels.shape
    wider = np.empty((height, width + 1, channels), pixels.dtype)
    wider[:, :width] = pixels
    return wider[:, :width]


def _as(pixels: Pixels, kind: Kind) -> Any:
    if kind == "PIL":
        return PIL.Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tv_tensors.Image(tensor) if kind == "Image" else tensor


def _tensor(image: Any) -> Tensor:
    """Return the pixels of an image as a plain tensor: [C, H, W]."""
    if isinstance(image, Tensor):
        return image.as_subclass(Tensor)
    pixels = np.array(image) if isinstance(image, PIL.Image.Image) else image
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels).permute(2, 0, 1)
