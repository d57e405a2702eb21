"""Fixtures of the fault tests. Each of them leaves the process as it was, or fails."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing.resource_tracker
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_kinds import PACKETS, THREAD, Draw, Kind
from fault_tools import Gate, Numbers, loader_of
from fault_users import Launcher
from kit.leftovers import FAILED, State, assert_nothing_left

# Workers are killed here by signals that pytest's handler, which they inherit, would describe at length.
os.register_at_fork(after_in_child=faulthandler.disable)


@pytest.fixture(scope="session")
def _settled(_launcher: Launcher) -> None:
    """Do once what is done once: a first loader of each sort, multiprocessing's tracker, and the users' launcher."""
    multiprocessing.resource_tracker.ensure_running()
    for kind in (PACKETS, THREAD):
        list(loader_of(Numbers(8), batch_size=2, **kind.options()))


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest, _settled: None) -> Iterator[None]:
    """No thread, process, descriptor, shared memory or mapping outlives a test."""
    gc.collect()
    before = State.in_full()
    yield
    # A test that has failed holds its iterators in its traceback.
    if not request.node.stash.get(FAILED, False):
        assert_nothing_left(before)


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """The way of loading, with its transport chosen."""
    chosen: Kind = request.param
    monkeypatch.delenv("FASTLOAD_TRANSPORT", raising=False)
    if chosen.transport:
        monkeypatch.setenv("FASTLOAD_TRANSPORT", chosen.transport)
    return chosen


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Draw:
    """A source of random places and times, the same in every run."""
    return Draw(f"{request.node.originalname} {request.param}")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A place where workers wait. It is open at the end."""
    made = Gate(tmp_path)
    yield made
    made.open()
    made.close()


@pytest.fixture(scope="session")
def _launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("users"))
    yield made
    made.close()


@pytest.fixture
def launcher(_launcher: Launcher) -> Iterator[Launcher]:
    """Starts users' processes that may die. None of them outlives the test."""
    yield _launcher
    _launcher.end_all()
