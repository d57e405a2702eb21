"""How a run ends that does not come to its end: what it says, and with which exit code.

In: an exception. Out: a line and the end of the process. What is none of these is a bug, and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from fastload import FastloadError

from .errors import RunError, UsageError

USAGE, FAILED = 2, 1
SIGINT_CODE = 130
"""128 + the signal's number, as shells have it."""

_OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE),
)
"""What the system says that no line of this program can mend."""


class Ending(NamedTuple):
    """How a run ends."""

    message: str
    code: int
    """Exit code; 0, or above 128: a signal asked for the end."""


def tell(ending: Ending) -> None:
    """Print an ending: an error as argparse does, an end that was asked for among the run's own lines."""
    message, code = re.sub(r"\s*\n\s*", " ", ending.message), ending.code  # others' may have several lines
    if code in (USAGE, FAILED):
        print(f"train.py: error: {message}", file=sys.stderr, flush=True)
    else:
        print(message, flush=True)


@contextlib.contextmanager
def in_a_line(out: Path | None) -> Iterator[None]:
    """End the process with a line where the body raises an error that is not a bug's, or is interrupted.

    Args:
        out: where the run is saved, if it is.
    """
    try:
        try:
            yield
        except Exception as error:
            ending = ending_of(error, out)
            if ending is None:
                if not dist.is_initialized():
                    raise
                get_error_handler().record_exception(error)  # for torchrun's report
                sys.excepthook(type(error), error, error.__traceback__)
                _leave(FAILED)
            _end(ending)
    except KeyboardInterrupt:  # also one that came while the process waited for a rank that got it too
        _end(Ending(f"{_rank()}stopped by SIGINT; {_left(out)}", SIGINT_CODE))


def ending_of(error: Exception, out: Path | None) -> Ending | None:
    """Return what is to be said of an error; None of one that is a bug's."""
    if isinstance(error, UsageError):
        return Ending(f"{_rank()}{error}", USAGE)
    if isinstance(error, RunError):
        return Ending(f"{_rank()}{error}", FAILED)
    if isinstance(error, FastloadError):
        return Ending(f"{_rank()}{error}; {_left(out)}", FAILED)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return Ending(
            f"{_rank()}memory is full ({_first_line(error)}); lower --micro-batch-size or --workers, or leave out "
            f"--resident; {_left(out)}",
            FAILED,
        )
    place = _place_of_sample(error)
    if place is not None:
        return Ending(
            f"{_rank()}an image cannot be loaded, {place} ({_reason(error)}); repair or remove it, or let others stand "
            f"in for such images: --on-error replace; {_left(out)}",
            FAILED,
        )
    if is_loss_of_a_rank(error):
        reason = re.sub(r"^\[\S+\] |\. This is typically.*", "", _first_line(error))  # gloo's source, and its guesses
        return Ending(
            f"rank {os.environ.get('RANK', '0')} has lost another rank, which has ended or does not answer "
            f"({reason}); {_left(out)}",
            FAILED,
        )
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return Ending(f"{_rank()}{error}; {_left(out)}", FAILED)
    return None


def is_loss_of_a_rank(error: BaseException) -> bool:
    """Whether an error says that another rank has gone or does not answer."""
    words = (
        *("gloo", "NCCL", "TCPStore", "Connection closed", "Connection reset", "Broken pipe"),
        *("Timed out waiting", "Wait timeout"),  # the second of a store in a file
    )
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _end(ending: Ending) -> NoReturn:
    tell(ending)
    _leave(ending.code)


def _leave(code: int) -> NoReturn:
    if dist.is_initialized():
        # At Python's own end a group waits for exchanges that the others will not complete; they wait for this process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _rank() -> str:
    return f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""


def _left(out: Path | None) -> str:
    if out is None or not (out / "checkpoint.pt").exists():
        return "nothing is saved: start again" + (", and give --out to save" if out is None else "")
    return f"the last checkpoint is in {str(out)!r}: the same command goes on from there"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _place_of_sample(error: Exception) -> str | None:
    """Return where a sample lies that an error is of, as the loader's note on it says; None of other errors.

    A sample without a file, as of the digits, cannot be damaged: an error of it is a bug's.
    """
    told = re.match(r"DALI failed (at .+?): ", str(error))
    if told:
        return told[1]
    notes = [note for note in getattr(error, "__notes__", ()) if re.match("at index .+ of the dataset: ", note)]
    return notes[0] if notes else None


def _reason(error: Exception) -> str:
    """Return an error's class and text, also of one that a worker has sent, whose text is a traceback."""
    raised = re.findall(r"^(?:\w+\.)*(\w+: .+)$", str(error), re.MULTILINE) if "Traceback" in str(error) else []
    return raised[-1][:300] if raised else f"{type(error).__name__}: {_first_line(error)}"
