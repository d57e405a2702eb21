"""Errors that end a run with one line and an exit code; all others are bugs and keep their traceback."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from fastload import FastloadError

_MACHINE_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE),
)


class RunError(Exception):
    """The run cannot continue; the message says why and what to do. Exit code 1."""

    exit_code = 1


class UsageError(Exception):
    """The arguments do not fit the data, the machine or one another; the message says what to change. Exit code 2."""

    exit_code = 2


class Exit(NamedTuple):
    """Why a run exits, and with which code."""

    message: str
    code: int
    """1 or 2: an error. 0, or above 128: a signal asked for it."""

    def show(self) -> None:
        """Print the message: errors to stderr, as argparse does, others to stdout."""
        message = re.sub(r"\s*\n\s*", " ", self.message)  # some libraries' errors have several lines
        is_error = self.code in (RunError.exit_code, UsageError.exit_code)
        print(f"train.py: error: {message}" if is_error else message, file=sys.stderr if is_error else sys.stdout)
        (sys.stderr if is_error else sys.stdout).flush()


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that only one of many ranks prints them."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`."""
        raise UsageError(message)

    def print_help(self, file: Any = None) -> None:
        """Print the help on rank 0 only."""
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)


@contextlib.contextmanager
def errors_as_messages(out: Path | None) -> Iterator[None]:
    """Exit with one line if the body raises an error that is not a bug, or is interrupted by Ctrl-C."""
    try:
        try:
            yield
        except Exception as error:
            found = exit_for(error, out)
            if found is None:
                if not dist.is_initialized():
                    raise
                get_error_handler().record_exception(error)  # for torchrun's report
                sys.excepthook(type(error), error, error.__traceback__)
                _exit(RunError.exit_code)
            found.show()
            _exit(found.code)
    except KeyboardInterrupt:  # the outer try: Ctrl-C may also come while an error is being handled
        Exit(f"{_rank()}stopped by SIGINT; {_what_is_saved(out)}", 130).show()
        _exit(130)


def exit_for(error: Exception, out: Path | None) -> Exit | None:
    """Return the message and exit code for an error; None if the error is a bug."""
    saved = _what_is_saved(out)
    if isinstance(error, UsageError | RunError):
        return Exit(f"{_rank()}{error}", error.exit_code)
    if isinstance(error, FastloadError):
        return Exit(f"{_rank()}{error}; {saved}", 1)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        remedy = "lower --micro-batch-size or --workers, or leave out --resident"
        return Exit(f"{_rank()}out of memory ({_first_line(error)}); {remedy}; {saved}", 1)
    if sample := _sample_of(error):
        remedy = "repair or remove it, or use --on-error replace"
        return Exit(f"{_rank()}an image cannot be loaded, {sample} ({_reason(error)}); {remedy}; {saved}", 1)
    if is_lost_rank(error):
        reason = re.sub(r"^\[\S+\] |\. This is typically.*", "", _first_line(error))  # gloo's source line and guess
        rank = os.environ.get("RANK", "0")
        return Exit(f"rank {rank} lost another rank, which has exited or does not respond ({reason}); {saved}", 1)
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        return Exit(f"{_rank()}{error}; {saved}", 1)
    return None


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an error says that another rank has exited or does not respond."""
    words = ("gloo", "NCCL", "TCPStore", "Connection closed", "Connection reset", "Broken pipe", "Timed out waiting")
    more = ("Wait timeout", "timeout caused pair closure")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in (*words, *more))
    )


def _exit(code: int) -> NoReturn:
    if dist.is_initialized():
        # Python's own exit would wait for collectives that the other ranks will never finish.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _rank() -> str:
    return f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""


def _what_is_saved(out: Path | None) -> str:
    if out is None or not (out / "checkpoint.pt").exists():
        return "nothing was saved: start again" + (", and give --out to save" if out is None else "")
    return f"the last checkpoint is in {str(out)!r}: the same command resumes from it"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _sample_of(error: Exception) -> str | None:
    """Return which image file an error is about, from the loader's note; None: the error is about no file."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if re.match("at index .+ of the dataset: ", note)), None)


def _reason(error: Exception) -> str:
    """Return an error's class and text; a worker sends them as a traceback."""
    raised = re.findall(r"^(?:\w+\.)*(\w+: .+)$", str(error), re.MULTILINE) if "Traceback" in str(error) else []
    return raised[-1][:300] if raised else f"{type(error).__name__}: {_first_line(error)}"
