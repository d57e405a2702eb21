"""Lists of a dataset that cost each worker process much memory: reading an object writes its reference count.

Their sizes are estimated from a few items, so that nothing large is read.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .memory import in_words
from .objects import find

LEAST_BYTES = 200 << 20
_ITEMS = 64
_DEPTH = 4


def copied_lists(dataset: Any) -> list[str]:
    """Return what is to be said of a dataset's containers whose objects take at least :data:`LEAST_BYTES`.

    Each is named once, by its path from the dataset, such as ``dataset.samples``.
    """

    def is_large(thing: Any) -> bool:
        # A thousand items of 200 KiB are text; anything shorter is no list that reference counts matter for.
        return type(thing) in (list, tuple, dict) and len(thing) >= 1000 and bytes_of(thing) >= LEAST_BYTES

    lists: dict[int, str] = {}
    for found in find(dataset, is_large, inside=False):
        lists.setdefault(id(found.thing), _words_of(found.path("dataset"), found.thing))
    return list(lists.values())


def _words_of(name: str, thing: Any) -> str:
    share = f"fastload.share({name})" if type(thing) is not dict else "fastload.share of a list of its values"
    return (
        f"{name}, a {type(thing).__name__} of {len(thing):,}, takes about {in_words(bytes_of(thing))}, which each "
        f"worker process copies, forked ones as they read it; {share} is held once"
    )


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
