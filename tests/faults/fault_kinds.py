"""Ways of loading that faults are placed in, and where: drawn, the same in every run."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

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
    """Random parameters. They are those of the test's name and number: a test that failed draws them again."""

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
        return options
