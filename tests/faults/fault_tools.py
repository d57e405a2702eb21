"""What the fault tests share: where a fault is placed, what an iteration gave, and what is left of it afterwards."""

from __future__ import annotations

import dataclasses
import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kit.outcomes
import torch
from kit.datasets import Sized
from processes import SOON_S

import fastload

# --- Datasets --------------------------------------------------------------------------------------------------------


class Numbers(Sized):
    """0, 1, ... in one of several forms; at chosen indices something else happens first.

    Args:
        length: what ``len`` says.
        form: ``number``, ``tensor``, ``dict`` or ``ragged`` (which needs ``collate_fn=list``).
        faults: called for its index; what it returns, if not None, takes the sample's place.
    """

    def __init__(self, length: int, form: str = "tensor", faults: dict[int, Callable[[], Any]] | None = None) -> None:
        super().__init__(length)
        self.form = form
        self.faults = faults or {}

    def __getitem__(self, index: int) -> Any:
        fault = self.faults.get(index)
        made = None if fault is None else fault()
        return self.sample(index) if made is None else made

    def sample(self, index: int) -> Any:
        if self.form == "number":
            return index
        if self.form == "dict":
            return {"value": torch.full((3,), index), "name": str(index)}
        if self.form == "ragged":
            return torch.full((index % 4 + 1,), index)
        return torch.full((2, 2), index)


FORMS = ["number", "tensor", "dict", "ragged"]


def collation(form: str) -> dict[str, Any]:
    """Return the loader arguments that a form needs."""
    return {"collate_fn": list} if form == "ragged" else {}


def numbers(batch: Any) -> list[int]:
    """Return the indices of a batch of any form, after checking that every byte of it belongs to them."""
    if isinstance(batch, dict):
        found = batch["value"][:, 0].tolist()
        assert batch["value"].tolist() == [[number] * 3 for number in found]
        assert batch["name"] == [str(number) for number in found]
        return found
    if isinstance(batch, list):
        found = [int(sample[0]) for sample in batch]
        assert [sample.tolist() for sample in batch] == [[number] * (number % 4 + 1) for number in found]
        return found
    if batch.ndim == 1:
        return batch.tolist()
    found = batch[:, 0, 0].tolist()
    assert torch.equal(batch, torch.tensor(found).view(-1, 1, 1).expand(len(found), 2, 2))
    return found


def batches_of(length: int, batch_size: int) -> list[list[int]]:
    """Return what a loader without shuffling gives for ``Numbers(length)``."""
    return [list(range(start, min(start + batch_size, length))) for start in range(0, length, batch_size)]


# --- What an iteration gives -----------------------------------------------------------------------------------------


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Go to the end of an iteration, over errors: the numbers of each batch, or the error in its place."""
    return kit.outcomes.outcomes(iterator, numbers, (KeyboardInterrupt, SystemExit, Exception))


def time_to_error(iterator: Iterator[Any]) -> tuple[list[list[int]], Exception, float]:
    """Return the batches before the first error, the error, and how long the ``next()`` that raised it took."""
    given = []
    while True:
        begun = time.monotonic()
        try:
            batch = next(iterator)
        except StopIteration:
            raise AssertionError(f"the iteration ended without an error, after {len(given)} batches") from None
        except Exception as error:
            took = time.monotonic() - begun
            # Without its frames, which hold the iterator.
            error.__cause__ = error.__context__ = None
            return given, error.with_traceback(None), took
        given.append(numbers(batch))


# --- A place where a worker waits ------------------------------------------------------------------------------------


class Gate:
    """A place in the user's code where a worker says that it has come, and then waits.

    Made of two named pipes, so that it can be pickled to spawned workers, holds no lock that a killed worker could
    take along, and works between threads too.
    """

    _RECORD = struct.Struct("<qq")

    def __init__(self, folder: Path) -> None:
        self._paths = [str(folder / name) for name in ("reached", "release")]
        for path in self._paths:
            os.mkfifo(path)
        # Both ends are open here all the time, so that no open() of a worker waits for us.
        self._ends = [os.open(path, os.O_RDWR) for path in self._paths]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ends": []}

    def __call__(self, tag: int = 0) -> None:
        """In a worker: say that it is here, and wait until the gate is opened."""
        self.announce(tag)
        held = os.open(self._paths[1], os.O_RDONLY)
        try:
            select.select([held], [], [])
        finally:
            os.close(held)

    def announce(self, tag: int = 0) -> None:
        """In a worker: only say that it is here."""
        announced = os.open(self._paths[0], os.O_WRONLY)
        os.write(announced, self._RECORD.pack(os.getpid(), tag))
        os.close(announced)

    def wait_reached(self) -> tuple[int, int]:
        """In the test: block until a worker is there; returns its process id and the tag."""
        assert select.select([self._ends[0]], [], [], SOON_S)[0], "no worker came to the gate"
        pid, tag = self._RECORD.unpack(os.read(self._ends[0], self._RECORD.size))
        return pid, tag

    def open(self) -> None:
        """In the test: let everybody through, from now on."""
        os.write(self._ends[1], b"x")

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


@dataclasses.dataclass(frozen=True)
class AtGate:
    """A fault of :class:`Numbers`: wait at a gate; or say that it is there, and ``then`` do something else."""

    gate: Gate
    tag: int = 0
    then: Callable[[], Any] | None = None

    def __call__(self) -> None:
        if self.then is None:
            self.gate(self.tag)
        else:
            self.gate.announce(self.tag)
            self.then()


# --- Signals ---------------------------------------------------------------------------------------------------------


def send(pid: int, sent: signal.Signals) -> None:
    """Send a signal as a stranger: torch's workers take SIGTERM from their own parent for an orderly end."""
    child = os.fork()
    if child == 0:
        try:
            os.kill(pid, sent)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@dataclasses.dataclass(frozen=True)
class Dies:
    """A fault of :class:`Numbers`: die by a signal, after writing into a file who and when it is."""

    note: Path
    sent: signal.Signals = signal.SIGKILL

    def __call__(self) -> None:
        self.note.write_text(f"{os.getpid()} {time.monotonic()}")
        os.kill(os.getpid(), self.sent)


class ForksOne:
    """A fault of :class:`Numbers`: fork a child, which has what the worker has open and lives on; then something."""

    def __init__(self, then: Callable[[], Any] = lambda: None) -> None:
        self.child = mmap.mmap(-1, 8)
        self.then = then

    def __call__(self) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(5 * SOON_S)
            os._exit(0)
        self.child[:] = child.to_bytes(8, "little")
        self.then()

    def end(self) -> None:
        """In the test: end the child."""
        os.kill(int.from_bytes(self.child[:], "little"), signal.SIGKILL)


def wait_quiet(pid: int, worked: Callable[[], bool]) -> None:
    """Block until a process has worked, and then uses no processor for a while: it waits for something."""
    deadline = time.monotonic() + SOON_S
    quiet, used = 0, ""
    while quiet < 10:
        assert time.monotonic() < deadline, f"process {pid} works and works"
        time.sleep(0.02)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, now = fields[0], f"{fields[11]} {fields[12]}"
        quiet = quiet + 1 if worked() and state == "S" and now == used else 0
        used = now


def loader_of(dataset: Any, **options: Any) -> fastload.DataLoader[Any]:
    """Return a loader; where a test does not say otherwise, with what its dataset's form needs."""
    return fastload.DataLoader(dataset, **collation(getattr(dataset, "form", "")) | options)
