"""One leaf at work: its samples through its stages.

In: indices of the leaf, and what each sample is given. Out: images, written into a batch or as they are.
"""

# N samples, C channels, H and W of the images.

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torchvision import tv_tensors

from ..images.base import Cut, Data, Decoder, Pixels
from ..on_error import name_sample
from ..transforms.chain import compose
from .blocks import BlockMaker, moves_of
from .parameters import Drawing
from .plan import Part
from .readers import ArrayReader, FileReader, PackReader, reader_of_files
from .recognition import members_of
from .rows import cut_of
from .step import Drawn, Kind, Sizes
from .value_steps import PILToTensor, RandomErasing, ToImage, ToTensor
from .values import Values

Given = tuple[Any, ...]

_JPEG = b"\xff\xd8"


class Runner:
    """Makes the images of a leaf.

    Args:
        dataset: the leaf.
        whole: what it is a leaf of; errors name a sample by its index there.
        part: its plan.
        rows: what decodes files.
        blocks: what makes blocks of arrays; None: they are gathered.
    """

    def __init__(self, dataset: Any, whole: Any, part: Part, rows: Decoder, blocks: BlockMaker | None) -> None:
        self.part = part
        self.dataset = dataset
        self._whole = whole
        self.steps, self.states, self.stages = part.steps, part.states, part.stages
        self.drawing = Drawing(self.steps)
        self._rows = rows
        self._blocks = blocks
        self.reader: FileReader | PackReader | ArrayReader
        self.reader = reader_of_files(dataset) if part.source.size is None else ArrayReader(dataset)
        # The rest is called as the dataset calls it, one after the other.
        num_rest = len(part.pipeline.rest)
        self.rest = members_of(dataset.transform)[-num_rest:] if num_rest else []
        stages = self.stages
        self._values: Values | None = None
        if stages.direct and not self.states[stages.alone].dtype.is_floating_point:
            self._values = Values(self.steps[stages.alone : stages.values], self.states[stages.alone])
        pairs = zip(self.steps[: stages.head], self.states, strict=False)
        self._moves = [(place, one) for place, pair in enumerate(pairs) for one in _batched(*pair)]
        self._chain = compose([one for _, one in self._moves]) if self._moves and part.source.size is not None else []

    def ask_for(self, indices: Sequence[Any]) -> None:
        """Let the kernel begin to read the samples' files, if they are files."""
        if not isinstance(self.reader, ArrayReader):
            self.reader.ask_for(indices)

    def raw(self, indices: Sequence[Any], names: Sequence[Any]) -> list[Data] | None:
        """Return the samples' files; None if they are no files.

        Args:
            indices: of the samples.
            names: their indices in the whole dataset.

        Raises:
            OSError: one cannot be read.
        """
        reader = self.reader
        if isinstance(reader, ArrayReader):
            return None
        return [self._named(name, reader.data, index) for index, name in zip(indices, names, strict=True)]

    def sizes(self, raw: Sequence[Data] | None, names: Sequence[Any]) -> Sizes:
        """Return the sizes of the images, as they are in the dataset."""
        if raw is None:
            assert self.part.source.size is not None
            return Sizes.all_of(self.part.source.size, len(names))
        sizes = [self._named(name, self._rows.size, data) for name, data in zip(names, raw, strict=True)]
        return Sizes.of(sizes)

    def write(
        self,
        indices: Sequence[Any],
        names: Sequence[Any],
        raw: Sequence[Data] | None,
        sizes: Sizes,
        drawn: Sequence[Drawn],
        out: Tensor,
        given: Sequence[Given] | None = None,
    ) -> None:
        """Write images into a batch.

        Args:
            indices: of the samples.
            names: their indices in the whole dataset.
            raw: what :meth:`raw` gave.
            sizes: what :meth:`sizes` gave.
            drawn: their parameters.
            out: [N, C, H, W].
            given: the same parameters, sample by sample; None: they are made of the others.
        """
        stages = self.stages
        # Nothing is asked of a single sample where all of them go through as one block.
        by_one = raw is not None or stages.values < len(self.steps) or stages.alone > stages.head
        if given is None:
            given = self.drawing.given(drawn, len(indices)) if by_one else []
        if raw is not None:
            for row, name in enumerate(names):
                size = int(sizes.height[row]), int(sizes.width[row])
                self._named(name, self._write_row, raw[row], size, given[row], out[row])
        elif self._values is not None and stages.alone == stages.head:
            self._write_block(indices, drawn, self._values, out)
        else:
            for row, image in enumerate(self._block(self._places(indices), drawn).permute(0, 2, 3, 1)):
                self._write_one(np.ascontiguousarray(image.numpy()), given[row], out[row])
        if self._values is not None:
            for place in range(stages.values, len(self.steps)):
                self._erase(place, given, out)

    def _erase(self, place: int, given: Sequence[Given], out: Tensor) -> None:
        step = self.steps[place]
        assert isinstance(step, RandomErasing)
        for row, values in enumerate(given):
            box = values[place]
            if box is not None:
                top, left, height, width, _ = box
                out[row, :, top : top + height, left : left + width] = step.values(tuple(out.shape[1:]), box)

    def _places(self, indices: Sequence[Any]) -> Any:
        assert isinstance(self.reader, ArrayReader)
        return self.reader.places(indices)

    def _write_block(self, indices: Sequence[Any], drawn: Sequence[Drawn], values: Values, out: Tensor) -> None:
        places, head = self._places(indices), self.stages.head
        if self._blocks is not None:
            assert self.part.source.size is not None
            moves = moves_of(self.steps[:head], drawn[:head], self.part.source.size, len(places))
            if moves is not None:
                self._blocks.block(self.reader.planes, places, moves, values, out)  # type: ignore[union-attr]  # an array's
                return
        values.write(self._block(places, drawn), out)

    def _block(self, places: Any, drawn: Sequence[Drawn]) -> Tensor:
        """Return images after the head: [N, C, H, W], uint8."""
        assert isinstance(self.reader, ArrayReader)
        images = self.reader.block(places)
        params: list[Any] = [
            {name: torch.as_tensor(values, device="cpu") for name, values in drawn[place].items()}
            for place, _ in self._moves
        ]
        for stage in self._chain:
            images = stage.transform(images, params[: len(stage)])
            params = params[len(stage) :]
        return images

    def _write_row(self, data: Data, size: tuple[int, int], given: Given, out: Tensor) -> None:
        """Write the image of a file."""
        cut = self._cut(size, given)
        if cut is not None and self._values is not None and self.stages.alone == self.stages.head:
            self._rows.row(data, cut, self._values, out)
        else:
            self._write_one(self._head(data, cut, given), given, out)

    def _write_one(self, pixels: Pixels, given: Given, out: Tensor) -> None:
        """Write the image that the head gave."""
        stages, first = self.stages, self.stages.head
        image: Any = pixels
        if stages.alone > first:
            image = _as(pixels, self.states[first].kind)
            if stages.cropped:
                image = self.steps[first].resized(image)  # type: ignore[attr-defined]  # a RandomResizedCrop
                first += 1
            image = self._stepped(image, first, given, stages.alone)
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
        """Return the image that the dataset hands its transform."""
        if data is not None:
            return self._rows.image(data)
        assert isinstance(self.reader, ArrayReader)
        pixels = self.reader.pixels(index)
        return PIL.Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)

    def each(self, index: Any, name: Any, data: Data | None, size: tuple[int, int], given: Given) -> Any:
        """Return one image after all known steps, of the type, dtype and strides that it has without fusion."""
        return self._named(name, self._each, index, data, size, given)

    def _each(self, index: Any, data: Data | None, size: tuple[int, int], given: Given) -> Any:
        head = 0 if self.stages.direct else self.stages.head
        # A row has no "info". Where the user's code gets a PIL image, it comes from the header of the file: that of a
        # JPEG file has all of it.
        info = self.states[-1].kind == "PIL"
        cut = self._cut(size, given) if head else None
        if data is None or cut is None or (info and data[:2] != _JPEG):
            return self._stepped(self.image(index, data), 0, given)
        pixels = self._rows.pixels(data, cut)
        step = self.steps[head] if head < len(self.steps) else None
        if isinstance(step, (ToTensor, PILToTensor, ToImage)):
            return self._stepped(step.from_array(pixels), head + 1, given)
        image = _as(pixels, "PIL")
        if info:
            with PIL.Image.open(io.BytesIO(data)) as header:
                image.info = dict(header.info)
        return self._stepped(image, head, given)

    def _stepped(self, image: Any, first: int, given: Given, last: int | None = None) -> Any:
        for step, values in zip(self.steps[first:last], given[first:last], strict=True):
            image = step.apply(image, values)
        return image

    def _named(self, name: Any, function: Any, *args: Any) -> Any:
        """Call a function; an error names the sample."""
        try:
            return function(*args)
        except Exception as error:
            name_sample(error, self._whole, name)
            raise


def _batched(step: Any, state: Any) -> Any:
    return step.batched(state) or []


def _as(pixels: Pixels, kind: Kind) -> Any:
    """Return pixels as an image of a kind."""
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


__all__ = ["Given", "Runner"]
