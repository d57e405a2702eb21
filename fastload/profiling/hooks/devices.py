"""Records the device: copies of tensors to it, as the host sees them, and how long it was idle around a wait.

Nothing here waits for a device or initialises one: if the script has not used a device yet, nothing is recorded.

Two events are recorded on the current stream around each wait, and read some steps later, once both have completed. The
time between them is the device's idle time.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..recorder import Recorder
from ..ring import RecordKind
from .patching import Patches, hook

_now = time.perf_counter_ns

# Steps whose events may be outstanding; a step beyond that is not recorded.
_MAX_PENDING = 512

# Kinds of devices whose module has is_initialized().
_KINDS = ("cuda", "xpu", "mtia")

_COMPILED = "the script calls torch.compile, which traces what replaces a tensor's methods"
_IN_SOME_STEPS = "idle time of the device in some steps"


class DeviceClock:
    """Measures a device's idle time around waits, by the events of torch that ``make`` returns."""

    def __init__(self, recorder: Recorder, make: Callable[[], Any]) -> None:
        self._recorder = recorder
        self._make = make
        self._free: list[Any] = []
        self._pending: deque[tuple[tuple[int, int, int, int], Any, Any]] = deque()
        """Begin and end of a wait, iterator and batch; the events around it."""
        self._before: Any = None

    def wait_begins(self) -> None:
        """The loop asks for a batch."""
        self._before = self._recorded_event()

    def wait_ends(self, iterator: int, batch: int, begun: int, ended: int) -> None:
        """The loop has the batch; the wait was from ``begun`` to ``ended``."""
        before, self._before = self._before, None
        after = None if before is None else self._recorded_event()
        if after is not None:
            self._pending.append(((begun, ended, iterator, batch), before, after))
        self.read()

    def read(self) -> None:
        """Write the events that have completed; does not wait for others."""
        pending = self._pending
        while pending and pending[0][2].query():
            where, before, after = pending.popleft()
            self._recorder.ring().write(RecordKind.DEVICE, 0, 0, *where, round(before.elapsed_time(after) * 1e6))
            self._free += [before, after]

    def _recorded_event(self) -> Any:
        if len(self._pending) >= _MAX_PENDING:
            self._recorder.missing(_IN_SOME_STEPS, "its events were too far behind")
            return None
        try:
            event = self._free.pop() if self._free else self._make()
            event.record()
        except Exception as error:  # such as while a graph is captured; not an error of the script
            self._recorder.missing(_IN_SOME_STEPS, f"an event could not be recorded: {error}")
            return None
        return event


def used_accelerator(torch: Any) -> str | None:
    """Return the kind of device that the script uses; None if it uses none.

    This initialises nothing: even asking a driver for the number of devices would break processes forked later.
    """
    for kind in _KINDS:
        is_used = getattr(getattr(torch, kind, None), "is_initialized", None)
        if is_used is not None and is_used():
            return kind
    return None


class CopyHooks:
    """Records ``Tensor.to`` and ``Tensor.cuda`` where they copy from host to device; not once torch compiles."""

    def __init__(self, recorder: Recorder, session_patches: Patches) -> None:
        self._recorder = recorder
        self._session_patches = session_patches
        self._patches = Patches(recorder)
        self._compiled = False

    def patch_torch(self, torch: Any) -> None:
        """Once the script compiles anything, a tensor's methods must be torch's own again."""
        self._session_patches.replace(torch, "compile", self._compile, "whether the script compiles")

    @hook
    def _compile(self, function: Any, *arguments: Any, **named: Any) -> Any:
        if self._patches.installed and not self._compiled:
            self._recorder.missing("copies to the device", _COMPILED)
            self._patches.restore()
        self._compiled = True
        return function(*arguments, **named)

    def patch_tensor(self, tensor: Any) -> None:
        """Record the copies of a class of tensors."""
        if self._compiled:
            self._recorder.missing("copies to the device", _COMPILED)
            return
        for name in ("to", "cuda"):
            make = functools.partial(_CopyMethod, recorder=self._recorder)
            self._patches.replace(tensor, name, make, "copies to the device")

    def close(self) -> None:
        """Put the methods of tensors back."""
        self._patches.restore()


class _CopyMethod:
    """Replaces a method of a tensor that may copy, and is equal to it: libraries look methods up in tables."""

    def __init__(self, method: Any, recorder: Recorder) -> None:
        self._method = method
        self._recorder = recorder

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else functools.partial(self, tensor)

    def __call__(self, tensor: Any, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        copied = self._method(tensor, *arguments, **named)
        if copied is not tensor and type(tensor.device.type) is str and tensor.device.type == "cpu":
            ended = _now()
            if copied.device.type not in ("cpu", "meta"):
                flags = int(tensor.is_pinned()) | 2 * bool(named.get("non_blocking", False))
                self._recorder.ring().write(RecordKind.COPY, 0, flags, begun, ended)
        return copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._method

    def __hash__(self) -> int:
        return hash(self._method)
