"""How the memory of worker processes grows, where a dataset has lists that they copy: measured, in bytes.

In: the processes of an epoch, and each batch that the loop gets. Out: notes of the recording; and from these what each
process's own memory grew by. On Linux; nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .recorder import Recorder


class WorkerMemory:
    """Reads the processes' memory after the first batch, the second, the fourth, and so on.

    So the last reading is from the second half of an epoch that may end at any batch, and there are few: each takes
    milliseconds for a gigabyte.

    Args:
        recorder: gets the notes.
        loader: number of the loader.
        pids: of its workers.
    """

    def __init__(self, recorder: Recorder, loader: int, pids: Iterable[int]) -> None:
        self._recorder, self._loader, self._pids = recorder, loader, list(pids)
        self._given = 0

    def given(self) -> None:
        """Count a batch that the loop got."""
        self._given += 1
        if self._given & (self._given - 1):
            return
        found = {pid: num_bytes for pid in self._pids if (num_bytes := private_bytes(pid)) is not None}
        if found:
            self._recorder.note("memory", loader=self._loader, batch=self._given, private=found)


def private_bytes(pid: int) -> int | None:
    """Return the memory that a process alone has written to; None: it has ended, or the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:")), None)


class Growth(NamedTuple):
    """What the workers of a loader grew by, from an epoch's first batch to its last reading."""

    num_bytes: int
    """Of the worker that grew most."""
    batch: int
    """Number of the last batch before the last reading, from 1."""

    def __str__(self) -> str:
        return (
            f"measured: from batch 1 to batch {self.batch:,} of an epoch the memory that one worker process alone has "
            f"written to grew by {self.num_bytes / (1 << 20):,.0f} MiB"
        )


def growth_of(notes: Iterable[Mapping[str, Any]]) -> Growth | None:
    """Return the largest growth within an epoch that the notes of one loader tell of; None: nothing has grown."""
    first: dict[str, int] = {}
    found: Growth | None = None
    for note in notes:
        if note["batch"] == 1:  # an epoch begins, perhaps with the same processes
            first.clear()
        for pid, num_bytes in note["private"].items():
            grown = Growth(num_bytes - first.setdefault(pid, num_bytes), note["batch"])
            if grown.num_bytes > 0 and (found is None or grown > found):
                found = grown
    return found
