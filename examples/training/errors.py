"""The two ways in which a run ends with a message in place of a traceback."""

from __future__ import annotations

import argparse
import os
from typing import Any, NoReturn


class RunError(Exception):
    """The run cannot go on; the message says why, what is left, and what to do. Exit code 1."""


class UsageError(Exception):
    """The arguments do not fit the data, the machine or one another; the message says what to change. Exit code 2."""


class Parser(argparse.ArgumentParser):
    """A parser that leaves to others how its errors are told: each of many processes has the same."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`."""
        raise UsageError(message)

    def print_help(self, file: Any = None) -> None:
        """Print it in one of the processes."""
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)
