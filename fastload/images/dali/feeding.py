"""What a DALI pipeline is fed with: files as the workers read them, and each sample's parameters from its key.

In: indices. Out: (file, target, index), read by the loader's workers; and for a batch of these a
:class:`~fastload.images.dali.running.Ticket`, under way.
"""

# N samples.

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from ...errors import ConfigError, DatasetError
from ...fusion.plan import recognise
from ...fusion.readers import reader_of_files
from ...fusion.sources import Router, leaves
from ...transforms.draws import Draws, draws_for
from ...transforms.sample import Sizes
from ..base import Cut
from ..choice import make_decoder
from .recipe import ARRAYS, Recipe
from .running import Pipelines, Ticket

NUM_UNIFORMS = 16


class Files(Dataset[tuple[bytes, Any, int]]):
    """A dataset's samples, encoded: (file, target, index).

    Args:
        dataset: a folder of files that fusion knows, or one of pairs (encoded image, target).
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        parts = recognise(dataset).parts
        self._router: Router | None = None
        if parts and all(part.source.size is None for part in parts):
            self._router = Router(dataset)
            self._leaves = [(reader_of_files(leaf), leaf.target_transform) for leaf in leaves(dataset)]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> tuple[bytes, Any, int]:
        if self._router is None:
            data, target = self.dataset[index]
            if not isinstance(data, bytes):
                try:
                    data = bytes(memoryview(data))
                except TypeError:
                    raise DatasetError(
                        "a dataset for DALI gives pairs (encoded image, target), the image as bytes or an array of "
                        f"them, and {type(self.dataset).__name__} gives a {type(data).__name__} at index {index!r}"
                    ) from None
            return data, target, int(index)
        leaf, place = self._router.find(index)
        reader, target_transform = self._leaves[leaf]
        target = reader.targets([place])[0]
        return (
            bytes(reader.data(place)),
            target if target_transform is None else target_transform(target),
            int(index),
        )

    def name(self, index: int) -> str:
        """Return what a sample is called in an error."""
        if self._router is None:
            return f"index {index}"
        leaf, place = self._router.find(index)
        return f"index {index}: {self._leaves[leaf][0].path(place)}"


class Scheduling:
    """Sends batches on their way; to be called with their draws at hand.

    Args:
        files: where they come from.
        recipe: says how images are cut; None: not at all.
        pipelines: through which they go.
    """

    def __init__(self, files: Files, recipe: Recipe | None, pipelines: Pipelines) -> None:
        self._files = files
        self._recipe = recipe
        self._pipelines = pipelines
        self._decoder = make_decoder()

    def __call__(self, batch: Any) -> Ticket:
        """Begin a batch of samples of :class:`Files`, collated."""
        files, targets, indices = batch
        draws = draws_for(len(files), None)
        inputs = _Inputs(self, files, targets, indices.tolist(), draws)
        ticket = Ticket(inputs, inputs.explained, (targets, draws))
        self._pipelines.schedule(ticket, len(files), int.from_bytes(draws.key[:4], "little") >> 1)
        return ticket

    def cuts(self, files: Sequence[bytes], indices: Sequence[int], draws: Draws) -> list[Cut]:
        """Return what is made of N images."""
        sizes = [self._size(data, index) for data, index in zip(files, indices, strict=True)]
        if self._recipe is None:
            return [Cut((0, 0, *size), size, "nearest", (0, 0, *size), (False, False)) for size in sizes]
        found: list[Cut] = []
        for index, cut, size in zip(indices, self._recipe.cuts(draws, Sizes.of(sizes)), sizes, strict=True):
            if cut is None:
                raise ValueError(
                    f"the transform's crop is larger than the image of {size}, and DALI pads none, at "
                    f"{self.name(index)}; resize before the crop"
                )
            found.append(cut)
        return found

    def name(self, index: int) -> str:
        """Return what a sample is called in an error."""
        return self._files.name(index)

    def _size(self, data: bytes, index: int) -> tuple[int, int]:
        try:
            return self._decoder.size(data)
        except Exception as error:
            error.add_note(f"at {self.name(index)}")
            raise


class _Inputs:
    """What a pipeline may take of a batch, made when it is asked for."""

    def __init__(
        self, scheduling: Scheduling, files: Sequence[bytes], targets: Any, indices: list[int], draws: Draws
    ) -> None:
        self._scheduling = scheduling
        self._files = files
        self._targets = targets
        self._indices = indices
        self._draws = draws
        self._cuts: list[Cut] | None = None

    def __call__(self, name: str) -> Any:
        if name == "file":
            return [np.frombuffer(data, dtype=np.uint8) for data in self._files]
        if name == "index":
            return np.array(self._indices, dtype=np.int64)
        if name == "uniforms":
            return self._draws.stream("dali uniforms").uniform(count=NUM_UNIFORMS).astype(np.float32)
        if name == "target":
            if isinstance(self._targets, Tensor):
                return np.ascontiguousarray(self._targets.numpy())
            raise ConfigError(f"source('target') is for numbers, and the targets are a {type(self._targets).__name__}")
        if self._cuts is None:
            self._cuts = self._scheduling.cuts(self._files, self._indices, self._draws)
        return ARRAYS[name](self._cuts)

    def explained(self, error: Exception) -> Exception:
        """Return an error of DALI's with the names of the samples that it is about, which it counts in the batch."""
        if type(error) is not RuntimeError:
            return error
        places = sorted({int(place) for place in re.findall(r"#(\d+)", str(error))} & set(range(len(self._indices))))
        about = [self._scheduling.name(self._indices[place]) for place in places]
        where = ", ".join(about) if about else f"one of the indices {self._indices}"
        told = str(error).rpartition("encountered:")[2].partition("Current pipeline")[0].strip()
        named = RuntimeError(f"DALI failed at {where}: {told}")
        named.__cause__ = error
        return named


__all__ = ["NUM_UNIFORMS", "Files", "Scheduling"]
