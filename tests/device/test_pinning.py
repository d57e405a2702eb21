"""Batches are pinned ahead by a thread."""

from __future__ import annotations

from typing import Any

from fastload.device.pinning import PinnedAhead
from fastload.work import Batch


class Batches:
    """A stage that always has another batch."""

    def next(self, wait: bool = True) -> Batch:
        return Batch(data=1)


def leave(data: Any) -> Any:
    raise SystemExit(f"cannot pin {data}")


def test_an_exit_while_a_batch_is_pinned_is_an_error_in_its_place():
    stage = PinnedAhead(Batches(), leave, "in a test")  # type: ignore[arg-type]  # as much of a stage as is used
    try:
        for _ in range(3):
            assert isinstance(stage.next().error, SystemExit)
    finally:
        stage.close()
