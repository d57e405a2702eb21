"""DALI at work: batches go into a pipeline ahead of time, and come out in order.

A pipeline that has failed is not used again: what was under way in it is done once more in another one.

NOTE [Outputs and executors]
Batches are scheduled before others have come out, and outputs are taken without a copy. DALI's dynamic executor, the
default since DALI 2.0, has no bound on the first, and its outputs own their memory. The others block in the second
``schedule_run``, and use the memory of outputs again behind ``release_outputs``; so they are refused. ``share_outputs``
is given no stream: it returns when all work on the outputs is done, so that any stream may read them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...device.streams import Streams
from ...errors import ConfigError
from ...transforms.draws import draws_for
from .inputs import DECLARED, INPUTS, Files, Ticket


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
        self.tickets: deque[Ticket] = deque()
        self.failed = False  # or interrupted in between

    def schedule(self, ticket: Ticket) -> None:
        """Begin a batch, behind all others."""
        ticket.values = {name: INPUTS[name][2](ticket) for name in self._names}
        ticket.run = self
        self.tickets.append(ticket)
        if not self.failed:
            self.failed = True
            for name, values in ticket.values.items():
                self._pipeline.feed_input(name, values)
            self._pipeline.schedule_run()
            self.failed = False

    def advance(self) -> None:
        """Wait for the oldest batch, and put it into its ticket."""
        self.failed = True
        ticket = self.tickets[0]
        try:
            ticket.outputs = [from_dlpack(output.as_tensor()) for output in self._pipeline.share_outputs()]
            self._pipeline.release_outputs()
            self.failed = False
        except (RuntimeError, ValueError) as error:
            ticket.fail(error)
        self.tickets.popleft().values.clear()

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
        """Of the pipeline, and its largest batch."""
        self._current: Running | None = None
        self._read: deque[tuple[Any, list[Tensor]]] = deque()
        """Outputs in DALI's memory that torch's stream may still be reading, and the events behind."""

    def begin(self) -> None:
        """Begin a pass."""
        self._current = None

    def __call__(self, batch: Any) -> Ticket:
        """Begin a batch of samples, collated; called with its draws at hand."""
        draws = draws_for(len(batch[0]), None)
        ticket = Ticket(self._files, batch, draws)
        self._seed = int.from_bytes(draws.key[:4], "little") >> 1  # DALI takes 31 bits
        if len(batch[0]) > self._largest:  # a pipeline has a largest batch
            self._largest, self._current = len(batch[0]), None
        if self._current is None:
            self._current = self._made()
        try:
            self._current.schedule(ticket)
        except RuntimeError:  # it may be an earlier batch's; reading this one raises it
            if not self._current.failed:
                raise
        return ticket

    def fastload_finish(self, ticket: Ticket) -> list[Any]:
        """Return the user's batch, for ``Builder.build``, or raise its error. Blocks until it has come out."""
        while ticket.outputs is None and ticket.error is None:
            if ticket.run.failed:
                self._do_again(ticket.run)
            else:
                ticket.run.advance()
        if ticket.error is not None:
            error, ticket.error = ticket.error, None  # whose traceback holds the ticket
            raise error
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

    def _do_again(self, failed: Running) -> None:
        """Do what was under way in a pipeline that has failed once more: one by one, to see which it was."""
        tickets = list(failed.tickets)
        failed.end()
        if self._current is failed:
            self._current = None
        for ticket in tickets:
            run = self._made()
            try:
                run.schedule(ticket)
            except Exception as error:
                ticket.fail(error)
            else:
                run.advance()
            run.end()
