"""NVIDIA DALI behind the loader's interface: fastload's order and each sample's numbers, a DALI pipeline's batches.

::

    samplers ─> (file, target, index) ─> keys ─> numbers ─> the user's pipeline ─> tensors
                     └─────────── bytes ────────────┘

Batches go into a pipeline ahead of time, and come out in order. A pipeline that has failed is not used again: what was
under way in it is done once more, each batch alone, since DALI does not say which of them it was.

NOTE [Outputs and executors]
Batches are scheduled before others have come out, and outputs are taken without a copy. DALI's dynamic executor, the
default since DALI 2.0, has no bound on the first, and its outputs own their memory. The others block in the second
``schedule_run``, and use the memory of outputs again behind ``release_outputs``; so they are refused. ``share_outputs``
is given no stream: it returns when all work on the outputs is done, so that any stream may read them at once.
"""

# N samples.

from __future__ import annotations

import contextlib
import io
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.dlpack import from_dlpack

from ..base.checks import check_count
from ..device.streams import Streams, device_of, streams_of
from ..errors import ConfigError, DatasetError
from ..loader import DataLoader
from ..transforms.draws import Draws, draws_for
from ..workers.on_error import file_of

__all__ = ["DALILoader", "source"]


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


class Ticket:
    """A batch that is under way in a pipeline, or has come out of it, and what a pipeline may take of it."""

    def __init__(self, batch: Any, draws: Draws) -> None:
        self.draws = draws
        self.files: Sequence[bytes]
        self.files, self.targets, indices = batch
        self.indices: list[int] = indices.tolist()
        self.values: dict[str, Any] = {}  # what the pipeline was fed with: it reads files where they lie
        self.run: Running  # where it is under way
        self.outputs: list[Tensor] | None = None


INPUTS: Mapping[str, tuple[str | None, int, Callable[[Ticket], Any]]] = {
    "file": ("UINT8", 1, lambda batch: [np.frombuffer(data, dtype=np.uint8) for data in batch.files]),
    "index": ("INT64", 0, lambda batch: np.array(batch.indices, dtype=np.int64)),
    "target": (None, 0, lambda batch: np.ascontiguousarray(batch.targets)),
    "uniforms": ("FLOAT", 1, lambda batch: batch.draws.stream("dali uniforms").uniform(count=16).astype(np.float32)),
}
"""Inputs that ``source`` can give: (DALI's dtype, None: the targets'; dimensions of a sample; getter of a batch)."""

DECLARED: ContextVar[dict[str, Any] | None] = ContextVar("DECLARED", default=None)
"""Results of ``source``, by name, while a pipeline is built."""


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


class Running:
    """One pipeline, and what is under way in it."""

    def __init__(self, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        declared: dict[str, Any] = {}
        token = DECLARED.set(declared)
        try:
            self._pipeline = factory(**options)
        finally:
            DECLARED.reset(token)
        if not getattr(self._pipeline, "exec_dynamic", False):
            raise ConfigError(
                "DALILoader needs DALI's dynamic executor, the default since DALI 2.0, and this pipeline has another; "
                "leave exec_dynamic, exec_async, exec_pipelined and exec_separated out of pipeline_def, or update DALI"
            )
        self._names = list(declared)
        self._tickets: deque[Ticket] = deque()
        self.failed = False  # or interrupted in between

    def schedule(self, ticket: Ticket) -> None:
        """Begin a batch, behind all others."""
        ticket.values = {name: INPUTS[name][2](ticket) for name in self._names}
        ticket.run = self
        if not self.failed:
            self.failed = True
            for name, values in ticket.values.items():
                self._pipeline.feed_input(name, values)
            self._pipeline.schedule_run()
            self._tickets.append(ticket)
            self.failed = False

    def advance(self) -> None:
        """Wait for the oldest batch, and put it into its ticket."""
        self.failed = True
        outputs = [from_dlpack(output.as_tensor()) for output in self._pipeline.share_outputs()]
        self._pipeline.release_outputs()
        ticket = self._tickets.popleft()
        ticket.outputs = outputs
        ticket.values.clear()
        self.failed = False

    def end(self) -> None:
        """End the pipeline and its threads. Waits for the batches that were begun."""
        self.failed, self._pipeline = True, None


class Pipelines:
    """The transform of the loader's batches: sends them through DALI ahead of time, and finishes each in ``next()``.

    Makes the pipelines, one for each pass, seeded for its epoch: ``factory`` is what ``@pipeline_def`` made, and
    ``options`` are its keyword arguments, but for the seed and the size of batches. ``streams``: of the device; None:
    the CPU. Holds no loader, so that a loader that is deleted ends its threads at once.
    """

    def __init__(
        self, files: Files, factory: Callable[..., Any], options: dict[str, Any], streams: Streams | None
    ) -> None:
        self._files, self._factory, self._options, self._streams = files, factory, options, streams
        self._seed = self._largest = 0
        """Seed of the pipeline, and its largest batch."""
        self._current: Running | None = None
        self._read: deque[tuple[Any, list[Tensor]]] = deque()
        """Outputs in DALI's memory that torch's stream may still be reading, and the events behind."""

    def begin(self) -> None:
        """Begin a pass."""
        self._current = None

    def __call__(self, batch: Any) -> Ticket:
        """Begin a batch of samples, collated; called with its draws at hand."""
        draws = draws_for(len(batch[0]), None)
        ticket = Ticket(batch, draws)
        self._seed = int.from_bytes(draws.key[:4], "little") >> 1  # DALI takes 31 bits
        if len(batch[0]) > self._largest:  # a pipeline has a largest batch
            self._largest, self._current = len(batch[0]), None
        if self._current is None:
            self._current = self._made()
        with contextlib.suppress(RuntimeError):  # it may be an earlier batch's; reading this one raises it
            self._current.schedule(ticket)
        return ticket

    def fastload_finish(self, ticket: Ticket) -> list[Any]:
        """Return the user's batch, for ``Builder.build``, or raise its error. Blocks until it has come out."""
        while ticket.outputs is None and not ticket.run.failed:
            with contextlib.suppress(RuntimeError, ValueError):
                ticket.run.advance()
        if ticket.outputs is None:
            self._do_again(ticket)
        outputs, targets, streams = ticket.outputs, ticket.targets, self._streams
        assert outputs is not None
        if streams is not None:
            outputs = self._owned(outputs, streams)
            if isinstance(targets, Tensor):
                targets = streams.to_device(targets)  # through page-locked memory: the host does not wait
        return [*outputs, targets]

    def _owned(self, outputs: list[Tensor], streams: Streams) -> list[Tensor]:
        """Return copies of outputs in memory of torch's.

        DALI knows nothing of torch's streams: it uses the memory of an output again as soon as nobody holds it, though
        kernels that read it are still queued. So outputs are held until the event behind their copies has come.
        """
        while self._read and self._read[0][0].query():
            self._read.popleft()
        if len(self._read) > 2:  # the host waits for a device that is further behind
            self._read[0][0].synchronize()
            self._read.popleft()
        copies = [output.clone() for output in outputs]
        self._read.append((streams.mark(streams.compute), outputs))
        return copies

    def close(self) -> None:
        """End the pipeline and its threads, when the device has read its outputs; what is under way is dropped."""
        while self._read:
            self._read[0][0].synchronize()
            self._read.popleft()
        if self._current is not None:
            self._current.end()
            self._current = None

    __del__ = close

    def _made(self) -> Running:
        return Running(self._factory, {**self._options, "batch_size": self._largest, "seed": self._seed})

    def _do_again(self, ticket: Ticket) -> None:
        """Do a batch alone that was under way in a pipeline that has failed, or raise its error."""
        ticket.run.end()
        if self._current is ticket.run:
            self._current = None
        run = self._made()
        try:
            run.schedule(ticket)
            run.advance()
        except RuntimeError as error:
            told = str(error).rpartition("encountered:")[2].partition("Current pipeline")[0].strip()
            raise RuntimeError(f"DALI failed at {self._suspects(ticket)}: {told}") from error
        finally:
            run.end()

    def _suspects(self, ticket: Ticket) -> str:
        """Return the samples that Pillow cannot load either: DALI does not say which it was."""
        found = []
        for data, index in zip(ticket.files, ticket.indices, strict=True):
            try:
                PIL.Image.open(io.BytesIO(data)).load()
            except Exception:
                file = file_of(self._files.dataset, index)
                found.append(f"index {index}" if file is None else f"index {index}: {file}")
        return ", ".join(found) or f"one of the indices {ticket.indices}"


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
