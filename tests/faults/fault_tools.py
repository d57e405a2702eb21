"""What the fault tests share: where a fault is placed, what an iteration gave, and what is left of it afterwards."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import re
import select
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import SOON_S
from shared_files import files_of_this_process

import fastload

# A tenth of the draws that a test names, so that a run takes minutes; more, or other ones, without a change to a file.
_DRAWS = float(os.environ.get("FASTLOAD_FAULT_DRAWS", "0.1"))
_FIRST_DRAW = int(os.environ.get("FASTLOAD_FAULT_FIRST_DRAW", "0"))


# --- Where and how ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A way of loading."""

    name: str
    method: str | None
    """``fork``, ``spawn`` or ``forkserver`` for processes; ``thread``; None: without workers."""
    transport: str = ""
    """What FASTLOAD_TRANSPORT is set to."""

    @property
    def processes(self) -> bool:
        return self.method not in (None, "thread")

    def options(self, num_workers: int = 2) -> dict[str, Any]:
        """Return the arguments of a loader of this kind."""
        if self.method is None:
            return {"num_workers": 0}
        if self.method == "thread":
            return {"num_workers": num_workers, "worker_method": "thread"}
        return {"num_workers": num_workers, "multiprocessing_context": self.method}


PACKETS = Kind(name="packets", method="fork")
PIPES = Kind(name="pipes", method="fork", transport="pipes")
THREAD = Kind(name="thread", method="thread")
INLINE = Kind(name="inline", method=None)
SPAWN = Kind(name="spawn", method="spawn")
SPAWN_PIPES = Kind(name="spawn-pipes", method="spawn", transport="pipes")


def of_kinds(*kinds: Kind) -> pytest.MarkDecorator:
    """Run a test, which takes ``kind``, once for each; the fixture of that name chooses the transport."""
    cases = [pytest.param(kind, marks=_marks(kind, kinds)) for kind in kinds]
    return pytest.mark.parametrize("kind", cases, ids=[kind.name for kind in kinds], indirect=True)


def _marks(kind: Kind, kinds: Sequence[Kind]) -> Sequence[pytest.MarkDecorator]:
    # Spawned workers import torch: seconds each. Pipes, which Linux does not use, are slow tests beside packets.
    is_slow = kind.method == "spawn" or (kind is PIPES and PACKETS in kinds)
    return [pytest.mark.slow] if is_slow else []


forked = of_kinds(PACKETS, PIPES)
with_workers = of_kinds(PACKETS, PIPES, THREAD)
everywhere = of_kinds(PACKETS, PIPES, THREAD, INLINE)


def persistent_or_not(*kinds: Kind) -> pytest.MarkDecorator:
    """Run a test, which takes ``kind`` and ``persistent``: both ways for the first kind, in turn for the others."""
    both = [(kinds[0], False), *((kind, place % 2 == 0) for place, kind in enumerate(kinds))]
    names = [f"{kind.name}-{persistent}" for kind, persistent in both]
    cases = [pytest.param(kind, persistent, marks=_marks(kind, kinds)) for kind, persistent in both]
    return pytest.mark.parametrize(("kind", "persistent"), cases, ids=names, indirect=["kind"])


def draws(count: int) -> pytest.MarkDecorator:
    """Run a test, which takes ``draw``, several times: a source of random places and times, named by its number."""
    last = _FIRST_DRAW + max(1, round(count * _DRAWS))
    return pytest.mark.parametrize("draw", range(_FIRST_DRAW, last), ids="draw{}".format, indirect=True)


class Draw(random.Random):
    """Random parameters that are printed as they are drawn, so that a failing test shows them."""

    def show(self, **drawn: Any) -> None:
        print("drawn:", ", ".join(f"{name}={value!r}" for name, value in drawn.items()))

    def loading(self, kind: Kind, *, max_workers: int = 3) -> dict[str, Any]:
        """Draw the arguments of a loader of this kind that must not change what it gives."""
        options = kind.options(self.randint(1, max_workers))
        if options["num_workers"]:
            options |= {
                "prefetch_factor": self.randint(1, 4),
                "persistent_workers": self.random() < 0.5,
            }
        options["batch_size"] = self.randint(1, 7)
        options |= self.choice(
            [{}, {"chunk_size": 1}, {"chunk_size": 2}, {"chunk_size": "batch"}, {"seeding": "torch"}]
        )
        self.show(loading=options)
        return options


# --- Datasets --------------------------------------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    """0, 1, ... in one of several forms; at chosen indices something else happens first.

    Args:
        length: what ``len`` says.
        form: ``number``, ``tensor``, ``dict`` or ``ragged`` (which needs ``collate_fn=list``).
        faults: called for its index; what it returns, if not None, takes the sample's place.
    """

    def __init__(self, length: int, form: str = "tensor", faults: dict[int, Callable[[], Any]] | None = None) -> None:
        self.length = length
        self.form = form
        self.faults = faults or {}

    def __len__(self) -> int:
        return self.length

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


def outcomes(iterator: Iterator[Any], at_most: int = 10_000) -> list[Any]:
    """Go to the end of an iteration, over errors: the numbers of each batch, or the error in its place.

    An error that comes again and again would never end; ``at_most`` is where that fails the test.
    """
    found: list[Any] = []
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return found
        except (KeyboardInterrupt, SystemExit, Exception) as error:
            # Without its frames, which hold the iterator.
            found.append(error.with_traceback(None))
        else:
            found.append(numbers(batch))
        assert len(found) < at_most, f"no end after {at_most} outcomes, the last was {found[-1]!r}"


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
        self._reached = str(folder / "reached")
        self._release = str(folder / "release")
        os.mkfifo(self._reached)
        os.mkfifo(self._release)
        # Both ends are open here all the time, so that no open() of a worker waits for us.
        self._ends: list[int] | None = [os.open(path, os.O_RDWR) for path in (self._reached, self._release)]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ends": None}

    def __call__(self, tag: int = 0) -> None:
        """In a worker: say that it is here, and wait until the gate is opened."""
        self.announce(tag)
        held = os.open(self._release, os.O_RDONLY)
        try:
            while not select.select([held], [], [], None)[0]:
                pass
        finally:
            os.close(held)

    def announce(self, tag: int = 0) -> None:
        """In a worker: only say that it is here."""
        announced = os.open(self._reached, os.O_WRONLY)
        os.write(announced, self._RECORD.pack(os.getpid(), tag))
        os.close(announced)

    def wait_reached(self) -> tuple[int, int]:
        """In the test: block until a worker is there; returns its process id and the tag."""
        assert self._ends is not None
        assert select.select([self._ends[0]], [], [], SOON_S)[0], "no worker came to the gate"
        pid, tag = self._RECORD.unpack(os.read(self._ends[0], self._RECORD.size))
        return pid, tag

    def open(self) -> None:
        """In the test: let everybody through, from now on."""
        assert self._ends is not None
        os.write(self._ends[1], b"x")

    def close(self) -> None:
        for end in self._ends or []:
            os.close(end)
        self._ends = None


@dataclasses.dataclass(frozen=True)
class AtGate:
    """A fault of :class:`Numbers`: wait at a gate."""

    gate: Gate
    tag: int = 0

    def __call__(self) -> None:
        self.gate(self.tag)


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


class Assassin:
    """A process that waits for a worker at a gate, and sends it a signal there.

    Of its own, since the worker may get to the gate only while the test is inside ``next()``.

    Args:
        gate: where.
        sent: what is sent.
        wait_for: workers that must be at the gate; the first of them is the victim.
    """

    _RECORD = struct.Struct("<qqd")

    def __init__(self, gate: Gate, sent: signal.Signals, wait_for: int = 1) -> None:
        self._told, telling = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                victim, tag = next(gate.wait_reached() for _ in range(wait_for))
                # Noted before: what follows in the test is later, in any case.
                os.write(telling, self._RECORD.pack(victim, tag, time.monotonic()))
                os.kill(victim, sent)
            finally:
                os._exit(0)
        os.close(telling)

    def report(self) -> tuple[int, int, float]:
        """Return whom it has killed, the tag of that place, and when (as by ``time.monotonic``)."""
        record = os.read(self._told, self._RECORD.size)
        os.close(self._told)
        os.waitpid(self._child, 0)
        assert record, "no worker came to the gate"
        victim, tag, when = self._RECORD.unpack(record)
        return victim, tag, when


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


# --- What is left ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a process has that others could run out of."""

    threads: Counter[str]
    processes: Counter[str]
    descriptors: Counter[str]
    shared_files: Counter[str]
    mappings: Counter[str]

    @classmethod
    def now(cls) -> Footprint:
        return cls(
            threads=Counter(thread.name for thread in threading.enumerate()),
            processes=Counter(_children()),
            descriptors=Counter(_descriptors()),
            shared_files=Counter(files_of_this_process()),
            mappings=Counter(_mappings()),
        )

    def more_than(self, before: Footprint) -> dict[str, Counter[str]]:
        """Return what is here and was not before."""
        more = {
            field.name: getattr(self, field.name) - getattr(before, field.name) for field in dataclasses.fields(self)
        }
        return {name: found for name, found in more.items() if found}


def assert_nothing_left(before: Footprint, within: float = SOON_S) -> None:
    """Block until this process has nothing that it had not before."""
    deadline = time.monotonic() + within
    while True:
        gc.collect()
        left = Footprint.now().more_than(before)
        if not left:
            return
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)


def _children() -> Iterator[str]:
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                children = file.read().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile, or the system does not tell
            if os.path.exists(f"/proc/self/task/{thread}"):
                raise
            continue
        for child in children:
            try:
                with open(f"/proc/{child}/cmdline") as file:
                    yield f"{child} {file.read()[-80:]!r}"
            except (FileNotFoundError, ProcessLookupError):
                continue


def _descriptors() -> Iterator[str]:
    for entry in os.listdir("/proc/self/fd"):
        try:
            yield re.sub(r"\[\d+\]", "", os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:  # the one that lists the others
            continue


def _mappings() -> Iterator[str]:
    """What is mapped of shared memory, by name. There are thousands of mappings, so they are read as bytes."""
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            if b"memfd:" in line or b"dev/shm/" in line:
                yield line[line.index(b"/") :].decode(errors="replace").rstrip()


def loader_of(dataset: Any, **options: Any) -> fastload.DataLoader[Any]:
    """Return a loader; where a test does not say otherwise, with what its dataset's form needs."""
    return fastload.DataLoader(dataset, **collation(getattr(dataset, "form", "")) | options)
