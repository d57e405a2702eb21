"""DALI at work: batches go into a pipeline ahead of time, and come out in order.

In: a batch of files. Out: the user's batch, or the error that is raised in its place; in between a :class:`Ticket`. A
pipeline that has failed is not used again: what was under way in it is done once more in another one.

NOTE [Outputs and executors]
Batches are scheduled before others have come out, and outputs are taken without a copy. DALI's dynamic executor, the
default since DALI 2.0, has no bound on the first, and its outputs own their memory. The others block in the second
``schedule_run``, and use the memory of outputs again behind ``release_outputs``; so they are refused. ``share_outputs``
is given no stream: it returns when all work on the outputs is done, so that any stream may read them at once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...device.streams import Streams
from ...errors import ConfigError
from ...transforms.draws import draws_for
from .inputs import BatchInputs, Files, declaring_inputs
from .recipe import Recipe

_MOST_READ = 2
"""Batches whose outputs are held, at most, before the next: the host waits for a device that is further behind."""


class Ticket:
    """A batch that is under way in a pipeline, or has come out of it."""

    def __init__(self, inputs: BatchInputs) -> None:
        self.inputs = inputs
        self.run: Running
        """Where it is under way."""
        self.outputs: list[Tensor] | None = None
        self.error: Exception | None = None


class Running:
    """One pipeline, and what is under way in it. Tickets that nobody holds any more come out and are dropped.

    Raises:
        ConfigError: it takes nothing from the loader, or has an executor that cannot be used.
    """

    def __init__(self, factory: Callable[..., Any], options: dict[str, Any]) -> None:
        with declaring_inputs() as declared:
            self._pipeline = factory(**options)
        if not declared:
            raise ConfigError(
                "the pipeline takes nothing from the loader; its function must call fastload.images.dali.source, at "
                "least source('file')"
            )
        self._names = list(declared)
        if not getattr(self._pipeline, "exec_dynamic", False):
            raise ConfigError(
                "DALILoader needs DALI's dynamic executor, the default since DALI 2.0, and this pipeline has another; "
                "leave exec_dynamic, exec_async, exec_pipelined and exec_separated out of pipeline_def, or update DALI"
            )
        self._queue: deque[tuple[weakref.ref[Ticket], dict[str, Any]]] = deque()
        self.failed = False
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
        if self.failed:
            return
        self.failed = True
        for name, values in inputs.items():
            self._pipeline.feed_input(name, values)
        self._pipeline.schedule_run()
        self.failed = False

    def advance(self) -> None:
        """Wait for the oldest batch, and put it into its ticket."""
        self.failed = True
        ticket, inputs = self._queue[0][0](), self._queue[0][1]
        try:
            outputs = [_tensor(output, place) for place, output in enumerate(self._pipeline.share_outputs())]
            self._pipeline.release_outputs()
        except (RuntimeError, ValueError) as error:
            self._queue.popleft()
            if ticket is not None:
                ticket.error = ticket.inputs.named(error)
            return
        self._queue.popleft()
        del inputs  # not before: DALI read them where they lay
        if ticket is not None:
            ticket.outputs = outputs
        self.failed = False

    def end(self) -> list[Ticket]:
        """End the pipeline and its threads, and return the tickets that were under way. Waits for those begun."""
        self.failed = True
        self._pipeline = None
        tickets = [ref() for ref, _ in self._queue]
        self._queue.clear()
        return [ticket for ticket in tickets if ticket is not None]


class Pipelines:
    """The transform of the loader's batches: sends them through DALI ahead of time, and finishes each in ``next()``.

    Makes the pipelines. Holds no loader, so that a loader that is deleted ends its threads at once.

    Args:
        files: what batches are made of.
        recipe: how images are cut, and what is done after DALI; None: neither.
        factory: what ``@pipeline_def`` made.
        options: its keyword arguments, but for the seed and the size of batches.
        streams: of the device; None: the CPU.
        reseeded: each pass has a pipeline of its own, seeded for its epoch.
    """

    def __init__(
        self,
        files: Files,
        recipe: Recipe | None,
        factory: Callable[..., Any],
        options: dict[str, Any],
        streams: Streams | None,
        *,
        reseeded: bool,
    ) -> None:
        self._files, self._recipe = files, recipe
        self._factory, self._options = factory, options
        self._streams = streams
        self._reseeded = reseeded
        self._seed = 0
        self._largest = 0
        """The largest batch of the pipeline."""
        self._current: Running | None = None
        self._read: deque[tuple[Any, list[Tensor]]] = deque()
        """Outputs in DALI's memory that torch's stream may still be reading, and the events behind."""

    def begin(self) -> None:
        """Begin a pass."""
        if self._reseeded:
            self._current = None

    def __call__(self, batch: Any) -> Ticket:
        """Begin a batch of samples, collated; called with its draws at hand.

        Raises:
            Exception: what the making of a pipeline or of the inputs raises.
        """
        num_samples = len(batch[0])
        draws = draws_for(num_samples, None)
        ticket = Ticket(BatchInputs(self._files, self._recipe, batch, draws))
        self._seed = int.from_bytes(draws.key[:4], "little") >> 1  # DALI takes 31 bits
        # A pipeline has a largest batch: for one that is larger there is another pipeline.
        if num_samples > self._largest:
            self._largest, self._current = num_samples, None
        if self._current is None:
            self._current = self._made()
        try:
            self._current.schedule(ticket)
        except RuntimeError:  # it may be an earlier batch's; reading this one raises it
            if not self._current.failed:
                raise
        return ticket

    def fastload_finish(self, ticket: Ticket) -> list[Any]:
        """Return the user's batch, for ``Builder.build``. Blocks until it has come out.

        Raises:
            Exception: the ticket's.
        """
        while ticket.outputs is None and ticket.error is None:
            if ticket.run.failed:
                self._do_again(ticket.run, ticket)
            else:
                ticket.run.advance()
        if ticket.error is not None:
            error, ticket.error = ticket.error, None  # whose traceback holds the ticket
            raise error
        outputs, targets, streams = ticket.outputs, ticket.inputs.targets, self._streams
        assert outputs is not None
        if streams is not None:
            outputs = self._owned(outputs, streams)
            if isinstance(targets, Tensor):
                targets = streams.to_device(targets)  # through page-locked memory: the host does not wait
        if self._recipe is not None and self._recipe.tail is not None:
            outputs = [self._recipe.tail(outputs[0], draws=ticket.inputs.draws)]
        return [*outputs, targets]

    def _owned(self, outputs: list[Tensor], streams: Streams) -> list[Tensor]:
        """Return copies of outputs in memory of torch's.

        DALI knows nothing of torch's streams: it uses the memory of an output again as soon as nobody holds it, though
        kernels that read it are still queued. So outputs are held until the event behind their copies has come.
        """
        while self._read and self._read[0][0].query():
            self._read.popleft()
        if len(self._read) > _MOST_READ:
            self._read[0][0].synchronize()
            self._read.popleft()
        copies = [output.clone() for output in outputs]
        self._read.append((streams.mark_compute(), outputs))
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

    def _do_again(self, failed: Running, asked: Ticket) -> None:
        """Do what was under way in a pipeline that has failed once more: one by one, to see which it was."""
        run, tickets = failed, failed.end()
        for ticket in tickets if asked in tickets else [*tickets, asked]:
            if run.failed:
                run = self._made()
            try:
                run.schedule(ticket)
            except Exception as error:
                ticket.error = ticket.inputs.named(error)
            else:
                run.advance()
        if self._current is failed:
            self._current = None if run.failed else run
        elif not run.failed:
            run.end()


def _tensor(output: Any, place: int) -> Tensor:
    """Return an output as a tensor, in DALI's memory, which the tensor keeps."""
    if not output.is_dense_tensor():
        raise ValueError(
            f"all samples of a batch must have one shape, but output {place} of the pipeline has "
            f"{sorted(set(map(tuple, output.shape())))}; resize or crop them to one"
        )
    return from_dlpack(output.as_tensor())
