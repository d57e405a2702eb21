"""Has the probes made by a process of their own, and watches it: one that crashes or hangs costs its own line only.

In: places in ``PROBES``. Out: findings, a probe at a time. Nothing outlives the iteration.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from ..cgroups import processors
from .child import failed
from .finding import Finding
from .probes import PROBES

SECONDS = 120.0
"""After which a probe counts as hanging; importing torch from a slow disk takes half of it."""


def findings(
    places: Sequence[int], begun: Callable[[int], None] = lambda place: None, seconds: float = SECONDS
) -> Iterator[tuple[int, list[Finding]]]:
    """Make probes; yield the place of each and what it has found.

    Args:
        places: in ``PROBES``.
        begun: is told of each probe that begins.
        seconds: that each may take.
    """
    left = list(places)
    while left:
        # A new process for those behind the one that has ended the process before.
        for place, found in _of_one_process(left, begun, seconds):
            left = left[left.index(place) + 1 :]
            yield place, found


def _of_one_process(
    places: Sequence[int], begun: Callable[[int], None], seconds: float
) -> Iterator[tuple[int, list[Finding]]]:
    # Its modules are to be found where ours were, whatever the current folder holds.
    code = f"import sys; sys.path[:] = {sys.path!r}; from fastload.doctor.child import main; main({list(places)!r})"
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            current = places[0]
            for message in _messages(lines, seconds):
                if message is None:
                    process.kill()
                    yield current, [failed(PROBES[current], _silent(seconds))]
                    return
                if "begin" in message:
                    current = message["begin"]
                    begun(current)
                    continue
                yield current, [Finding(*found) for found in message["findings"]]
                if current == places[-1]:
                    return
                current = places[places.index(current) + 1]
            yield current, [failed(PROBES[current], f"{_end(process)}{_last_words(errors)}")]
        finally:
            process.kill()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # it hangs in the kernel: whoever has started us inherits it
                pass
            reader.join(10)  # whom something that the probe has started may keep: then the pipe is left to it
            if not reader.is_alive() and process.stdout is not None:
                process.stdout.close()


def _messages(lines: queue.SimpleQueue[bytes], seconds: float) -> Iterator[dict[str, Any] | None]:
    """Yield what the process says, until it has ended; None if it says nothing for so long."""
    while True:
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            yield None
            return
        if not line.endswith(b"\n"):  # the end, or a line that it was not given the time to write
            return
        yield json.loads(line)


def _read(pipe: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _silent(seconds: float) -> str:
    words = f"gave no answer within {seconds:g} seconds"
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > 2 * processors():
        words += f"; the machine is busy (load {load:.0f}, {processors()} cores), so try again"
    return words


def _end(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(10)
    except subprocess.TimeoutExpired:
        return "its process has closed its output"
    return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


def _last_words(errors: IO[bytes]) -> str:
    """Return the last line that the process has written on standard error, as the end of a sentence."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(size - 2000, 0))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()[:200]}" if lines else ""


__all__ = ["SECONDS", "findings"]
