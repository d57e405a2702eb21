"""What an iteration gives, over its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def outcomes(iterator: Iterator[Any], view: Callable[[Any], Any] = lambda batch: batch, catch: Any = Exception) -> Any:
    """Go to the end of an iteration: what ``view`` makes of each batch, or the error in its place.

    An error that comes again and again would never end, and fails the test.
    """
    found: list[Any] = []
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return found
        except catch as error:
            found.append(error.with_traceback(None))  # whose frames hold the iterator
        else:
            found.append(view(batch))
        assert len(found) < 10_000, f"no end after {len(found)} outcomes, the last was {found[-1]!r}"
