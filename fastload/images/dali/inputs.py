"""What a DALI pipeline is fed with: files as the workers read them, and each sample's parameters from its key.

In: indices. Out: (file, target, index), read by the loader's workers; and for a batch of these the arrays that a
pipeline has asked for with ``source``.
"""

# N samples.

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from ...errors import ConfigError, DatasetError
from ...fusion.plan import recognise
from ...fusion.sources import Router, reader_of_files
from ...native.rows import Cut, whole
from ...pack.records import file_of
from ...transforms.draws import Draws
from ...transforms.sample import Sizes
from ..choice import make_decoder
from .recipe import Recipe


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
            self._leaves = [(reader_of_files(leaf, None), leaf.target_transform) for leaf in self._router.leaves]

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
        data, target = bytes(file_of(reader.data(place))), reader.targets([place])[0]
        return data, target if target_transform is None else target_transform(target), int(index)

    def name(self, index: int) -> str:
        """Return what a sample is called in an error."""
        if self._router is None:
            return f"index {index}"
        leaf, place = self._router.find(index)
        return f"index {index}: {self._leaves[leaf][0].path(place)}"


class BatchInputs:
    """What a pipeline may take of a batch, made when it is asked for. Without a recipe, images are not cut."""

    def __init__(self, dataset: Files, recipe: Recipe | None, batch: Any, draws: Draws) -> None:
        self._dataset = dataset
        self._recipe = recipe
        self.files: Sequence[bytes]
        self.files, self.targets, indices = batch
        self.indices: list[int] = indices.tolist()
        self.draws = draws

    def __call__(self, name: str) -> Any:
        """Return an input of N samples: an array [N, ...], or a list of N arrays."""
        return INPUTS[name].values(self)

    @functools.cached_property
    def cuts(self) -> list[Cut]:
        """What is made of each image."""
        decoder, sizes = make_decoder(), []
        for data, index in zip(self.files, self.indices, strict=True):
            try:
                sizes.append(decoder.size(data))
            except Exception as error:
                error.add_note(f"at {self._dataset.name(index)}")
                raise
        if self._recipe is None:
            return [whole(*size) for size in sizes]
        found: list[Cut] = []
        for index, cut, size in zip(self.indices, self._recipe.cuts(self.draws, Sizes.of(sizes)), sizes, strict=True):
            if cut is None:
                raise ValueError(
                    f"the transform's crop is larger than the image of {size}, and DALI pads none, at "
                    f"{self._dataset.name(index)}; resize before the crop"
                )
            found.append(cut)
        return found

    def target_array(self) -> Any:
        """Return the targets, which must be numbers.

        Raises:
            ConfigError: they are not.
        """
        if isinstance(self.targets, Tensor):
            return np.ascontiguousarray(self.targets.numpy())
        raise ConfigError(f"source('target') is for numbers, and the targets are a {type(self.targets).__name__}")

    def named(self, error: Exception) -> Exception:
        """Return an error of DALI's with the names of the samples that it is about, which it counts in the batch."""
        if type(error) is not RuntimeError:
            return error
        places = sorted({int(place) for place in re.findall(r"#(\d+)", str(error))} & set(range(len(self.indices))))
        about = [self._dataset.name(self.indices[place]) for place in places]
        where = ", ".join(about) if about else f"one of the indices {self.indices}"
        message = str(error).rpartition("encountered:")[2].partition("Current pipeline")[0].strip()
        named = RuntimeError(f"DALI failed at {where}: {message}")
        named.__cause__ = error
        return named


class Input(NamedTuple):
    """What ``source`` gives of each sample."""

    dtype: str | None
    """NumPy's and DALI's name; None: whatever the targets are."""
    ndim: int | None
    values: Callable[[BatchInputs], Any]
    """Returns those of a batch."""


def _of_cuts(dtype: str, ndim: int, value: Callable[[Cut], Any]) -> Input:
    return Input(dtype, ndim, lambda batch: np.array([value(cut) for cut in batch.cuts], dtype=dtype))


INPUTS: Mapping[str, Input] = {
    "file": Input("uint8", 1, lambda batch: [np.frombuffer(data, dtype=np.uint8) for data in batch.files]),
    "index": Input("int64", 0, lambda batch: np.array(batch.indices, dtype=np.int64)),
    "target": Input(None, None, BatchInputs.target_array),
    "crop_start": _of_cuts("int32", 1, lambda cut: cut.box[:2]),
    "crop_shape": _of_cuts("int32", 1, lambda cut: cut.box[2:]),
    "resized": _of_cuts("float32", 1, lambda cut: cut.size),
    "window_start": _of_cuts("int32", 1, lambda cut: cut.window[:2]),
    "mirror": _of_cuts("int32", 0, lambda cut: cut.flips[0]),
    "mirror_vertically": _of_cuts("int32", 0, lambda cut: cut.flips[1]),
    "uniforms": Input(
        "float32", 1, lambda batch: batch.draws.stream("dali uniforms").uniform(count=16).astype(np.float32)
    ),
}
"""What ``source`` can give; its docstring says what they are."""

_declared: ContextVar[dict[str, Any] | None] = ContextVar("_declared", default=None)


def import_dali() -> Any:
    """Return the module ``nvidia.dali``.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        import nvidia.dali.fn
        import nvidia.dali.types
    except ImportError as error:
        raise ConfigError(
            f"fastload.images.dali needs NVIDIA DALI, which cannot be imported: {error}; pip install "
            "nvidia-dali-cuda130 (nvidia-dali-cuda120 where CUDA is 12), or use fastload.DataLoader(..., fuse=True), "
            "which needs no DALI"
        ) from error
    return nvidia.dali


def source(name: str) -> Any:
    """Return an input of a pipeline: what the loader knows of each sample.

    For functions with ``@pipeline_def`` that are given to ``fastload.images.dali.DALILoader`` as ``pipeline``.

    Args:
        name: ``"file"``: the encoded image, [num_bytes], uint8. ``"index"``: in the dataset, int64. ``"target"``: the
            number, or array, that the dataset gives. ``"uniforms"``: [16], float32: random numbers in [0, 1) from
            the sample's key, from which arguments of DALI's operators can be made. And what the dataset's transform
            says, all of the image where there is none: ``"crop_start"`` and ``"crop_shape"``: [2], int32: top and left,
            height and width, in pixels of the image as it is encoded; ``"resized"``: [2], float32: height and width
            that this is resized to; ``"window_start"``: [2], int32: top and left of what is kept of that; ``"mirror"``
            and ``"mirror_vertically"``: int32: 1 for images that are flipped in the end.

    Returns:
        A ``DataNode`` of the CPU; the same one for the same name.

    Raises:
        ConfigError: there is no such input, or no such pipeline is being made.
    """
    declared = _declared.get()
    if name not in INPUTS:
        raise ConfigError(f"source() takes one of {', '.join(map(repr, INPUTS))}, got {name!r}")
    if declared is None:
        raise ConfigError(
            f"source({name!r}) is for the function that a DALILoader is given as pipeline, while the loader calls it"
        )
    if name not in declared:
        dali, kind = import_dali(), INPUTS[name]
        options: dict[str, Any] = {} if kind.ndim is None else {"ndim": kind.ndim}
        if kind.dtype is not None:
            options["dtype"] = getattr(dali.types, kind.dtype.upper().replace("FLOAT32", "FLOAT"))
        # Files are not copied: their memory is kept until the batch has come out.
        declared[name] = dali.fn.external_source(name=name, no_copy=name == "file", **options)
    return declared[name]


@contextmanager
def declaring_inputs() -> Iterator[dict[str, Any]]:
    """Let ``source`` declare inputs in this context; gives those that it has declared, by name."""
    declared: dict[str, Any] = {}
    token = _declared.set(declared)
    try:
        yield declared
    finally:
        _declared.reset(token)
