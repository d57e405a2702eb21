"""Records the device: copies of tensors to it, as the host sees them, and how long it was idle around a wait.

Nothing here waits for a device or initialises one: if the script has not used a device yet, nothing is recorded.

Two events are recorded on the current stream around each wait, and read some steps later, once both have completed. The
time between them is the device's idle time; from the second event of one wait to the first of the next it was busy.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ..recorder import Recorder
from ..ring import Kind
from .patching import Places, leave, unseen

_now = time.perf_counter_ns

# Steps whose events may be outstanding; beyond that a step goes unheard.
_MAX_PENDING = 512

# Devices that say, without being asked for anything else, whether they are in use.
_KINDS = ("cuda", "xpu", "mtia")


class _Pending(NamedTuple):
    iterator: int
    batch: int
    begun: int
    ended: int
    since: Any
    """Behind the wait before; None: there was none, or its event was lost."""
    before: Any
    after: Any


class DeviceClock:
    """Measures a device's idle time around waits, by events.

    Args:
        recorder: where records go.
        make: makes an event with ``record()``, ``query()`` and ``elapsed_time(later)`` in milliseconds; None: there is
            no device that the script uses, yet.
    """

    def __init__(self, recorder: Recorder, make: Callable[[], Any | None]) -> None:
        self._recorder = recorder
        self._make = make
        self._free: list[Any] = []
        self._pending: deque[_Pending] = deque()
        self._before: Any = None
        self._last: Any = None

    def wait_begins(self) -> None:
        """The loop asks for a batch."""
        self._before = self._recorded()

    def wait_ends(self, iterator: int, batch: int, begun: int, ended: int) -> None:
        """It has it; the wait was from ``begun`` to ``ended``."""
        before, self._before = self._before, None
        after = None if before is None else self._recorded()
        if after is not None:
            self._pending.append(_Pending(iterator, batch, begun, ended, self._last, before, after))
        self._last = after
        self.read()

    def read(self) -> None:
        """Write down what has come, without waiting for what has not."""
        pending = self._pending
        while pending and pending[0].after.query():
            step = pending.popleft()
            idle = round(step.before.elapsed_time(step.after) * 1e6)
            busy = -1 if step.since is None else round(step.since.elapsed_time(step.before) * 1e6)
            self._recorder.ring().write(
                Kind.DEVICE, 0, 0, step.begun, step.ended, step.iterator, step.batch, idle, busy
            )
            self._free.append(step.before)
            if step.since is not None:
                self._free.append(step.since)

    def _recorded(self) -> Any:
        if len(self._pending) >= _MAX_PENDING:
            self._recorder.missing("idle time of the device in some steps", "its events were too far behind")
            return None
        event = self._free.pop() if self._free else self._make()
        if event is None:
            return None
        try:
            event.record()
        except Exception as error:  # as while a graph is captured; it is no error of the script's
            self._recorder.missing("idle time of the device in some steps", f"an event could not be recorded: {error}")
            return None
        return event


def torch_events(torch: Any, recorder: Recorder) -> Callable[[], Any | None]:
    """Return what makes events of the accelerator that the script uses; it gives None as long as it uses none."""

    def make() -> Any | None:
        kind = used_accelerator(torch)
        if kind is None:
            return None
        try:
            return torch.Event(device=kind, enable_timing=True)
        except Exception as error:  # a backend without them
            recorder.missing("idle time of the device", f"{kind} has no events that tell the time: {error}")
            return None

    return make


def accelerators(torch: Any) -> dict[str, Any]:
    """Return torch's modules of kinds of devices, whose ``is_initialized()`` tells whether the script has set them up.

    That sets up nothing: even asking a driver how many devices there are would forbid them to processes forked later.
    """
    modules = ((kind, getattr(torch, kind, None)) for kind in _KINDS)
    return {kind: module for kind, module in modules if hasattr(module, "is_initialized")}


def used_accelerator(torch: Any) -> str | None:
    """Return the kind of device that the script has set up; None if it has none."""
    return next((kind for kind, module in accelerators(torch).items() if module.is_initialized()), None)


_COMPILED = "the script calls torch.compile, which follows what stands in for a tensor's methods"


class Copies:
    """Hears ``Tensor.to`` and ``Tensor.cuda`` where they copy from the host to a device; not where torch compiles.

    Args:
        recorder: where records go.
        watching: puts in the hook that hears whether torch compiles.
    """

    def __init__(self, recorder: Recorder, watching: Places) -> None:
        self._recorder = recorder
        self._watching = watching
        self._places = Places(recorder)
        self._compiled = False

    def hook_torch(self, torch: Any) -> None:
        """Hear whether the script compiles anything: then tensors' methods stay, or become again, torch's own."""
        places = self._places

        def make(compiler: Any) -> Any:
            def compiled(*arguments: Any, **named: Any) -> Any:
                if places.found and not self._compiled:
                    self._recorder.missing("copies to the device", _COMPILED)
                    places.restore()
                self._compiled = True
                try:
                    return compiler(*arguments, **named)
                except BaseException as error:
                    leave(error)
                    raise

            return compiled

        self._watching.replace(torch, "compile", make, "whether the script compiles")

    def hook_tensor(self, tensor: Any) -> None:
        """Hear a class of tensors."""
        if self._compiled:
            self._recorder.missing("copies to the device", _COMPILED)
            return
        for name in ("to", "cuda"):
            self._places.replace(tensor, name, lambda method: _Method(method, self), "copies to the device")

    def close(self) -> None:
        """Put tensors' methods back."""
        self._places.restore()

    @unseen
    def call(self, method: Any, tensor: Any, *arguments: Any, **named: Any) -> Any:
        """Call a method that may copy, and tell of it if it does."""
        begun = _now()
        try:
            copied = method(tensor, *arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        if copied is not tensor and type(tensor.device.type) is str and tensor.device.type == "cpu":
            ended = _now()
            if copied.device.type not in ("cpu", "meta"):
                flags = int(tensor.is_pinned()) | 2 * bool(named.get("non_blocking", False))
                self._recorder.ring().write(Kind.COPY, 0, flags, begun, ended, tensor.nbytes)
        return copied


class _Method:
    """Stands in for a method of torch's, to which it is equal: libraries look methods up in tables."""

    def __init__(self, method: Any, copies: Copies) -> None:
        self.method = method
        self._copies = copies

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else functools.partial(self._copies.call, self.method, tensor)

    @unseen
    def __call__(self, tensor: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return self._copies.call(self.method, tensor, *arguments, **named)
        except BaseException as error:
            leave(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.method

    def __hash__(self) -> int:
        return hash(self.method)


__all__ = ["Copies", "DeviceClock", "accelerators", "torch_events", "used_accelerator"]
