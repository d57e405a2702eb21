"""A marker for tests: the loop of a test must not wait for data longer than a given share of its time.

::

    @pytest.mark.fastload(max_stall_pct=5)
    def test_the_loader_keeps_up():
        train(steps=200)

Enable it in the outermost conftest.py: ``pytest_plugins = ["fastload.profiling.pytest_plugin"]``. (pytest would
rewrite all modules of a package that it finds by itself.)

What the test loads in its own process and in workers that it starts is recorded, and the test fails with the verdict if
its stall is above the limit. A test that asks no loader for a batch fails too, because nothing was measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "fastload(max_stall_pct, warmup=0): fail a test whose loop waits for data longer than this share of its steps",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record a test that has the marker."""
    marker = item.get_closest_marker("fastload")
    if marker is None:
        return (yield)
    try:
        limit, warmup = _arguments(*marker.args, **marker.kwargs)
    except (TypeError, ValueError):
        words = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
        raise pytest.UsageError(
            f"{item.nodeid}: the marker is fastload(max_stall_pct=..., warmup=0), with a share from 0 to 100 and a "
            f"number of steps, got fastload({words})"
        ) from None
    from .api import profile

    recording = profile(warmup=warmup)
    try:
        with recording:
            outcome = yield
        _check(recording, limit, warmup)
    finally:
        if recording.folder is not None:
            shutil.rmtree(recording.folder, ignore_errors=True)
    return outcome


def _arguments(*, max_stall_pct: float, warmup: int = 0) -> tuple[float, int]:
    if not 0 <= max_stall_pct <= 100 or warmup < 0:
        raise ValueError
    return max_stall_pct, warmup


def _check(recording: Any, limit: float, warmup: int) -> None:
    from ..errors import TraceError

    try:
        ranks = recording.analysis().ranks
    except TraceError:
        pytest.fail("fastload: the test asked no DataLoader for a batch, so its stall is unknown", pytrace=False)
    if not any(rank.num_steps for rank in ranks):
        pytest.fail(
            f"fastload: no step is left to measure after warmup={warmup}; make more steps, or lower it",
            pytrace=False,
        )
    stalled = [rank for rank in ranks if 100 * rank.stall.value > limit]
    if stalled:
        worst = max(stalled, key=lambda rank: rank.stall.value)
        pytest.fail(
            f"fastload: the stall is {100 * worst.stall.value:.1f} % of {worst.num_steps} steps' time, "
            f"above max_stall_pct={limit:g}. {worst.verdict.sentence}",
            pytrace=False,
        )
