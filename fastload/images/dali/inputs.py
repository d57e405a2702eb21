"""What a DALI pipeline is fed with: files as the workers read them, and each sample's numbers from its key."""

# N samples.

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import PIL.Image
from torch import Tensor
from torch.utils.data import Dataset

from ...errors import ConfigError, DatasetError
from ...transforms.draws import Draws
from ...workers.on_error import file_of


class Files(Dataset[tuple[bytes, Any, int]]):
    """A dataset of pairs (encoded image, target), with the index: (file, target, index)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> tuple[bytes, Any, int]:
        data, target = self.dataset[index]
        if not isinstance(data, bytes | bytearray | np.ndarray):
            raise DatasetError(
                "a dataset for DALI gives pairs (encoded image, target), the image as bytes or an array of them, got a "
                f"{type(data).__name__} at index {index!r}"
            )
        return bytes(data), target, int(index)

    def name(self, index: int) -> str:
        """Return what a sample is called in an error."""
        file = file_of(self.dataset, index)
        return f"index {index}" if file is None else f"index {index}: {file}"


class Ticket:
    """A batch that is under way in a pipeline, or has come out of it, and what a pipeline may take of it."""

    def __init__(self, dataset: Files, batch: Any, draws: Draws) -> None:
        self._dataset, self.draws = dataset, draws
        self.files: Sequence[bytes]
        self.files, self.targets, indices = batch
        self.indices: list[int] = indices.tolist()
        self.values: dict[str, Any] = {}  # what the pipeline was fed with: it reads files where they lie
        self.run: Any  # where it is under way
        self.outputs: list[Tensor] | None = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Note an error, with the samples that Pillow cannot load either: DALI does not say which it was."""
        self.outputs, self.error = None, error
        if type(error) is RuntimeError:
            about = []
            for data, index in zip(self.files, self.indices, strict=True):
                try:
                    PIL.Image.open(io.BytesIO(data)).load()
                except Exception:
                    about.append(self._dataset.name(index))
            message = str(error).rpartition("encountered:")[2].partition("Current pipeline")[0].strip()
            where = ", ".join(about) or f"one of the indices {self.indices}"
            self.error = RuntimeError(f"DALI failed at {where}: {message}")
            self.error.__cause__ = error


INPUTS: Mapping[str, tuple[str | None, int, Callable[[Ticket], Any]]] = {
    "file": ("UINT8", 1, lambda batch: [np.frombuffer(data, dtype=np.uint8) for data in batch.files]),
    "index": ("INT64", 0, lambda batch: np.array(batch.indices, dtype=np.int64)),
    "target": (None, 0, lambda batch: np.ascontiguousarray(batch.targets)),
    "uniforms": ("FLOAT", 1, lambda batch: batch.draws.stream("dali uniforms").uniform(count=16).astype(np.float32)),
}
"""What ``source`` can give: DALI's dtype, None: that of the targets; dimensions of a sample; what returns a batch's."""

DECLARED: ContextVar[dict[str, Any] | None] = ContextVar("DECLARED", default=None)
"""What ``source`` has returned, by name, while a pipeline is made."""


def import_dali() -> Any:
    """Return the module ``nvidia.dali``; a ConfigError if it cannot be imported."""
    try:
        import nvidia.dali.fn
        import nvidia.dali.types
    except ImportError as error:
        raise ConfigError(
            f"fastload.images.dali needs NVIDIA DALI, which cannot be imported: {error}; pip install "
            "nvidia-dali-cuda130 (nvidia-dali-cuda120 where CUDA is 12), or use fastload.DataLoader, which needs none"
        ) from error
    return nvidia.dali


def source(name: str) -> Any:
    """Return an input of a pipeline, a ``DataNode`` of the CPU: what the loader knows of each sample.

    For functions with ``@pipeline_def`` that are given to ``fastload.images.dali.DALILoader`` as ``pipeline``.

    Args:
        name: ``"file"``: the encoded image, [num_bytes], uint8. ``"index"``: in the dataset, int64. ``"target"``: the
            number, or array, that the dataset gives. ``"uniforms"``: [16], float32: random numbers in [0, 1) from
            the sample's key, from which arguments of DALI's operators can be made.

    Raises:
        ConfigError: there is no such input, or no such pipeline is being made.
    """
    declared = DECLARED.get()
    if declared is None or name not in INPUTS:
        raise ConfigError(
            f"source() takes one of {', '.join(map(repr, INPUTS))}, in the function that a DALILoader is given as "
            f"pipeline, while the loader calls it; got {name!r}"
        )
    if name not in declared:
        dali, (dtype, ndim, _) = import_dali(), INPUTS[name]
        options = {} if dtype is None else {"dtype": getattr(dali.types, dtype), "ndim": ndim}
        # Files are not copied: their memory is kept until the batch has come out.
        declared[name] = dali.fn.external_source(name=name, no_copy=name == "file", **options)
    return declared[name]
