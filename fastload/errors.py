"""The exceptions that fastload raises itself.

::

    FastloadError
    ├── ConfigError (ValueError)    arguments that cannot work together
    ├── WorkerDied (RuntimeError)   a worker ended before its work was done
    │   └── ClusterError            the Ray cluster cannot do the work any more, or not at all
    ├── StateError (ValueError)     a state that does not fit the loader
    ├── RankMismatch (RuntimeError) ranks that would train on different orders
    ├── LoadTimeout (RuntimeError)  no batch within ``timeout`` seconds
    ├── PackError (ValueError)      a folder that cannot be packed, or a pack that cannot be read
    ├── TraceError (ValueError)     a recording that cannot be read
    └── DatasetError (RuntimeError) a fault of the dataset by which torch hangs or silently loses data

Errors of the user's own code keep their class and are raised as torch raises them. Where torch already has an
error for a case, its class and the beginning of its message are kept, so that ``except RuntimeError`` and
patterns written for torch go on working.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any


class FastloadError(Exception):
    """The base class of all exceptions of fastload."""


class ConfigError(FastloadError, ValueError):
    """An argument is out of its range, or cannot be combined with another."""


class StateError(FastloadError, ValueError):
    """A state is damaged, or belongs to another loader. The loader was not changed."""


class RankMismatch(FastloadError, RuntimeError):
    """The ranks of a process group are about to load epochs that do not belong together."""


class WorkerDied(FastloadError, RuntimeError):
    """A worker process died: it was killed, or exited.

    Args:
        message: the whole text.
        worker_id: 0 to ``num_workers - 1``; -1: not known.
        exitcode: as in ``multiprocessing.Process``: the number of a signal, negated, or the exit code; None: not known.
        samples: indices of the samples that it was loading; empty if there were none.

    The arguments are attributes.
    """

    def __init__(
        self, message: str, *, worker_id: int = -1, exitcode: int | None = None, samples: tuple[object, ...] = ()
    ) -> None:
        super().__init__(message)
        self.worker_id = worker_id
        self.exitcode = exitcode
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        known: dict[str, Any] = {"worker_id": self.worker_id, "exitcode": self.exitcode, "samples": self.samples}
        return functools.partial(type(self), **known), (str(self),)


class ClusterError(WorkerDied):
    """Workers of a Ray cluster cannot be started, or cannot go on: no machine has room, its head is gone, or the like.

    The iteration is over; ``state_dict()`` says where it was, and a loader with any kind of workers resumes there.
    """


class LoadTimeout(FastloadError, RuntimeError):
    """No batch was completed within ``timeout`` seconds. No batch is lost: call ``next()`` again."""


class PackError(FastloadError, ValueError):
    """A folder cannot be packed, or a pack cannot be read."""


class TraceError(FastloadError, ValueError):
    """A recording of ``fastload profile`` is missing or damaged, or comes from another version."""


class NotReady(Exception):
    """There is no complete batch yet. Only between stages; no user meets it."""


class NothingLeft(Exception):
    """All samples of a batch were left out. Only between stages; no user meets it."""


class DatasetError(FastloadError, RuntimeError):
    """A fault of the dataset by which torch would hang or silently lose data, or too many failed samples."""


class SampleNote(str):
    """A note on an exception that says which sample it is of.

    From a worker it travels beside the exception's text, which stays as torch has it, to its last line.
    """

    __slots__ = ()


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an error of the user's, where it takes one: a frozen dataclass does not, and it counts itself."""
    with contextlib.suppress(Exception):
        error.add_note(SampleNote(text))


def one_line(error: BaseException) -> str:
    """Return an error's class and message in one line of at most 400 characters.

    An error of a worker has the worker's traceback in its message: of that the last line is returned, without the
    numbers of processes.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    words = re.sub(r" \(pid\(s\) [\d, ]+\)", "", lines[-1] if "Traceback" in str(error) else " ".join(lines))
    text = words if words.startswith(type(error).__name__) else f"{type(error).__name__}: {words}"
    return text if len(text) <= 400 else text[:397] + "..."


def why_not_imported(package: str, error: BaseException) -> str:
    """Return that a package is not installed, or why it cannot be imported although it is, given the import's error."""
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return "is not installed"
    return f"cannot be imported: {one_line(error)}"


def in_a_line(error: BaseException) -> str:
    """Return an error in one line; without the remedy if it refuses a setting."""
    return str(error).partition(". ")[0] if isinstance(error, ConfigError) else one_line(error)
