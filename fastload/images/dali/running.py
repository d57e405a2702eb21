"""DALI at work: batches go into a pipeline ahead of time, and come out in order.

In: the inputs of a batch, by name, in a :class:`Ticket`. Out: tensors in that ticket, or the error that stands in their
place. A pipeline that has failed is not used again: what was under way in it is done once more in another one.

DALI itself is imported where a pipeline is made.

NOTE [Outputs and executors]
Batches are scheduled before others have come out, and outputs are taken without a copy. DALI's dynamic executor, the
default since DALI 2.0, has no bound on the first, and its outputs own their memory. The others block in the second
``schedule_run``, and use the memory of outputs again behind ``release_outputs``; so they are refused. ``share_outputs``
is given no stream: it returns when all work on the outputs is done, so that any stream may read them at once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...errors import ConfigError


class Kind(NamedTuple):
    """What an input is for each sample."""

    dtype: str | None
    """NumPy's and DALI's name; None: whatever the targets are."""
    ndim: int | None


INPUTS: Mapping[str, Kind] = {
    "file": Kind("uint8", 1),
    "index": Kind("int64", 0),
    "target": Kind(None, None),
    "crop_start": Kind("int32", 1),
    "crop_shape": Kind("int32", 1),
    "resized": Kind("float32", 1),
    "window_start": Kind("int32", 1),
    "mirror": Kind("int32", 0),
    "mirror_vertically": Kind("int32", 0),
    "uniforms": Kind("float32", 1),
}
"""What :func:`source` can give; its docstring says what they are."""

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
            f"fastload.images.dali needs NVIDIA DALI, which cannot be imported: {error}; install fastload[dali], or "
            "nvidia-dali-cuda120 where CUDA is 12, or use fastload.DataLoader(..., fuse=True), which needs no DALI"
        ) from error
    return nvidia.dali


def source(name: str) -> Any:
    """Return an input of a pipeline: what the loader knows of each sample.

    For functions with ``@pipeline_def`` that are given to :class:`~fastload.images.dali.DALILoader` as ``pipeline``.

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
def _declaring() -> Iterator[dict[str, Any]]:
    declared: dict[str, Any] = {}
    token = _declared.set(declared)
    try:
        yield declared
    finally:
        _declared.reset(token)


class Ticket:
    """A batch that is under way in a pipeline, or has come out of it.

    Args:
        inputs: (name) -> an array [N, ...], or a list of N arrays.
        explained: (DALI's error) -> the one that is raised in the batch's place.
        rest: what does not go through the pipeline.
    """

    def __init__(self, inputs: Callable[[str], Any], explained: Callable[[Exception], Exception], rest: Any) -> None:
        self.inputs = inputs
        self.explained = explained
        self.rest = rest
        self.run: Running | None = None
        """Where it is under way."""
        self.outputs: list[Tensor] | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether it has come out."""
        return self.outputs is not None or self.error is not None


class Running:
    """One pipeline, and what is under way in it.

    Args:
        factory: what ``@pipeline_def`` made.
        options: its keyword arguments.

    Raises:
        ConfigError: it takes nothing from the loader, or has an executor that cannot be used.

    Tickets that nobody holds any more come out and are dropped.
    """

    def __init__(self, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        with _declaring() as declared:
            self._pipeline = factory(**options)
        if not declared:
            raise ConfigError(
                "the pipeline takes nothing from the loader: its function is to call fastload.images.dali.source, at "
                "least source('file')"
            )
        self._names = list(declared)
        if not getattr(self._pipeline, "exec_dynamic", False):
            raise ConfigError(
                "DALILoader needs DALI's dynamic executor, the default since DALI 2.0, and this pipeline has another; "
                "leave exec_dynamic, exec_async, exec_pipelined and exec_separated out of pipeline_def, or update DALI"
            )
        self._queue: deque[tuple[weakref.ref[Ticket], dict[str, Any]]] = deque()
        self.torn = False
        """Whether it has failed, or was interrupted in between."""

    def schedule(self, ticket: Ticket) -> None:
        """Begin a batch, behind all others.

        Raises:
            RuntimeError: the pipeline has failed, at this batch or one before.
            Exception: what the making of the inputs raises, or DALI for inputs of the wrong kind.
        """
        inputs = {name: ticket.inputs(name) for name in self._names}
        ticket.run = self
        self._queue.append((weakref.ref(ticket), inputs))
        if self.torn:
            return
        self.torn = True
        for name, values in inputs.items():
            self._pipeline.feed_input(name, values)
        self._pipeline.schedule_run()
        self.torn = False

    def advance(self) -> None:
        """Wait for the oldest batch, and put it into its ticket."""
        self.torn = True
        ticket, inputs = self._queue[0][0](), self._queue[0][1]
        try:
            shared = self._pipeline.share_outputs()
            outputs = [_tensor(output, place) for place, output in enumerate(shared)]
            self._pipeline.release_outputs()
        except (RuntimeError, ValueError) as error:
            self._queue.popleft()
            if ticket is not None:
                ticket.error = ticket.explained(error)
            return
        self._queue.popleft()
        del inputs  # not before: DALI read them where they lay
        if ticket is not None:
            ticket.outputs = outputs
        self.torn = False

    def end(self) -> list[Ticket]:
        """End the pipeline and its threads, and return the tickets that were under way. Waits for those begun."""
        self.torn = True
        self._pipeline = None
        tickets = [ref() for ref, _ in self._queue]
        self._queue.clear()
        return [ticket for ticket in tickets if ticket is not None]


class Pipelines:
    """Makes pipelines, and sends batches through.

    Args:
        factory: what ``@pipeline_def`` made.
        options: its keyword arguments, but for the seed and the size of batches.
        reseeded: each pass has a pipeline of its own, seeded for its epoch.
    """

    def __init__(self, factory: Callable[..., Any], options: dict[str, Any], *, reseeded: bool) -> None:
        self._factory = factory
        self._options = options
        self._reseeded = reseeded
        self._seed = 0
        self._most = 0
        self._current: Running | None = None

    def begin(self) -> None:
        """Begin a pass."""
        if self._reseeded:
            self._current = None

    def schedule(self, ticket: Ticket, num_samples: int, seed: int) -> None:
        """Begin a batch.

        Args:
            ticket: of the batch.
            num_samples: in it. A pipeline has a largest batch: for one that is larger there is another pipeline.
            seed: of DALI's own random operators, 31 bits.

        Raises:
            Exception: what the making of a pipeline or of the inputs raises.
        """
        self._seed = seed
        if num_samples > self._most:
            self._most, self._current = num_samples, None
        if self._current is None:
            self._current = self._made()
        try:
            self._current.schedule(ticket)
        except RuntimeError:  # it may be an earlier batch's; reading this one raises it
            if not self._current.torn:
                raise

    def finish(self, ticket: Ticket) -> list[Tensor]:
        """Return what has become of a batch. Blocks until it has.

        Raises:
            Exception: the ticket's.
        """
        while not ticket.done:
            run = ticket.run
            assert run is not None
            if run.torn:
                self._again(run, ticket)
            else:
                run.advance()
        if ticket.error is not None:
            error, ticket.error = ticket.error, None  # whose traceback holds the ticket
            raise error
        assert ticket.outputs is not None
        return ticket.outputs

    def close(self) -> None:
        """End the pipeline and its threads; what is under way is forgotten."""
        if self._current is not None:
            self._current.end()
            self._current = None

    def _made(self) -> Running:
        return Running(self._factory, {**self._options, "batch_size": self._most, "seed": self._seed})

    def _again(self, failed: Running, asked: Ticket) -> None:
        """Do what was under way in a pipeline that has failed once more: one by one, to see which it was."""
        run, tickets = failed, failed.end()
        for ticket in tickets if asked in tickets else [*tickets, asked]:
            if run.torn:
                run = self._made()
            try:
                run.schedule(ticket)
            except Exception as error:
                ticket.error = ticket.explained(error)
            else:
                run.advance()
        if self._current is failed:
            self._current = None if run.torn else run
        elif not run.torn:
            run.end()


def _tensor(output: Any, place: int) -> Tensor:
    """Return an output as a tensor, in DALI's memory, which the tensor keeps."""
    if not output.is_dense_tensor():
        raise ValueError(
            f"a batch's samples are to have one shape, and those of output {place} have "
            f"{sorted(set(map(tuple, output.shape())))}: resize or crop them to one"
        )
    return from_dlpack(output.as_tensor())


__all__ = ["INPUTS", "Kind", "Pipelines", "Running", "Ticket", "import_dali", "source"]
