"""``fastload.retry``: a value of ``on_error`` that loads a sample again before it counts as failed."""

from __future__ import annotations

import math
import operator
from typing import Any, Literal

from ..errors import ConfigError
from .checks import one_of

_MOST_ATTEMPTS = 20
_LONGEST_S = 60.0


class Retry(str):
    """Result of :func:`retry`: ``"retry"``, ``"skip"`` or ``"replace"``, with the number of attempts and the waits."""

    __slots__ = ("attempts", "wait")

    attempts: int
    wait: float

    def __new__(cls, value: str, attempts: int, wait: float) -> Retry:
        made = super().__new__(cls, value)
        made.attempts, made.wait = attempts, wait
        return made

    def __getnewargs__(self) -> Any:
        return str(self), self.attempts, self.wait

    def __repr__(self) -> str:
        then = "raise" if self == "retry" else str(self)
        return f"fastload.retry(attempts={self.attempts}, wait={self.wait:g}, then={then!r})"

    def waits(self) -> list[float]:
        """Return the seconds before each further attempt."""
        return [min(self.wait * 2**number, _LONGEST_S) for number in range(self.attempts - 1)]


def retry(attempts: int = 3, wait: float = 0.1, *, then: Literal["raise", "skip", "replace"] = "raise") -> Retry:
    """Return a value for ``on_error``: a sample that raises an exception is loaded again, for errors that pass.

    Each attempt begins with the sample's own random numbers, so a sample is the same whichever attempt succeeds. The
    worker waits meanwhile.

    Args:
        attempts: how often a sample is loaded at most, the first time included; 2 to 20.
        wait: seconds before the second attempt; before each further one twice as long, a minute at most.
        then: what becomes of a sample whose last attempt failed, as with ``on_error``.

    Raises:
        ConfigError: a value is none of these.
    """
    number = operator.index(attempts)
    if not 2 <= number <= _MOST_ATTEMPTS:
        raise ConfigError(f"attempts must be from 2 to {_MOST_ATTEMPTS}, the first one included, got {attempts=}")
    if not (math.isfinite(wait) and wait >= 0):
        raise ConfigError(f"wait must be a number of seconds, not below 0, got {wait=}")
    one_of("raise", "skip", "replace")("then", then)
    return Retry("retry" if then == "raise" else then, number, float(wait))
