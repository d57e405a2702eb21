"""Lists of a dataset that cost each worker process much memory: reading an object writes its reference count.

Their sizes are estimated from a few items, so that nothing large is read.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .memory import in_words
from .objects import find

LEAST_BYTES = 200 << 20
_ITEMS = 64
_DEPTH = 4


class CopiedList(NamedTuple):
    """A container whose objects a worker copies when it reads them."""

    name: str
    """Path from the dataset, such as ``dataset.samples``."""
    kind: str
    length: int
    num_bytes: int
    """Estimated size of its objects."""

    def __str__(self) -> str:
        words = f"{self.name}, a {self.kind} of {self.length:,}, takes about {in_words(self.num_bytes)}"
        share = f"fastload.share({self.name})" if self.kind != "dict" else "fastload.share of a list of its values"
        return f"{words}, which each worker process copies, forked ones as they read it; {share} is held once"


def copied_lists(dataset: Any) -> list[CopiedList]:
    """Return a dataset's containers whose objects take at least :data:`LEAST_BYTES`, each once."""
    lists: dict[int, CopiedList] = {}

    def is_large(thing: Any) -> bool:
        # A thousand items of 200 KiB are text; anything shorter is no list that reference counts matter for.
        return type(thing) in (list, tuple, dict) and len(thing) >= 1000 and bytes_of(thing) >= LEAST_BYTES

    for found in find(dataset, is_large, inside=False):
        thing = found.thing
        lists.setdefault(
            id(thing), CopiedList(found.path("dataset"), type(thing).__name__, len(thing), bytes_of(thing))
        )
    return list(lists.values())


def bytes_of(thing: Any, depth: int = _DEPTH) -> int:
    """Return about how many bytes a container and its items take, from a few of the items.

    Counted are the objects that have a reference count; an array's data is shared until somebody writes to it.
    """
    own = sys.getsizeof(thing)
    if type(thing) not in (list, tuple, dict) or not thing or not depth:
        return own
    some = list(_some_of(thing))
    num_items = len(thing) * (2 if type(thing) is dict else 1)
    distinct = {id(item): item for item in some}
    if len(distinct) < len(some) // 2:  # a few objects, many times: small integers, class names
        return own
    return own + num_items * sum(bytes_of(item, depth - 1) for item in some) // len(some)


def _some_of(thing: Sequence[Any] | dict[Any, Any]) -> Iterator[Any]:
    if isinstance(thing, dict):
        for key, value in itertools.islice(thing.items(), _ITEMS):
            yield key
            yield value
    else:
        yield from thing[:: max(1, len(thing) // _ITEMS)][:_ITEMS]
