"""The user's process is interrupted, killed, ends or forks, at any time. Nothing of it is left."""

from __future__ import annotations

import signal
import time
from typing import Any

import fault_kinds as kinds
import pytest

# A pool that is closed gives its workers five seconds for what they are at, and then two more to die.
BOUND_S = 60.0


def of(kind: kinds.Kind, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a story that loads in this way."""
    return {"transport": kind.transport, "options": options}


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


@kinds.with_workers
def test_ctrl_c_ends_a_script_that_waits_in_next_whatever_its_workers_do(kind, launcher):
    ways = ["sleep", "spin", "deaf", "stubborn"] if kind.processes else ["sleep", "spin"]
    options = kind.options() | {"batch_size": 4}
    users = [launcher.start("waits_for_a_stuck_worker", **of(kind, options), stuck=stuck) for stuck in ways]
    for user in users:
        user.comes_to("waits")
    time.sleep(0.2)  # not for order: they are to be inside next(), but may be anywhere
    for user in users:
        user.interrupt()
    for stuck, user in zip(ways, users, strict=True):
        user.ends_as(-signal.SIGINT, BOUND_S)
        assert "KeyboardInterrupt" in user.stderr(), stuck


@pytest.mark.slow
@kinds.with_workers
def test_ctrl_c_ends_a_script_that_works_while_its_workers_are_stuck_or_idle(kind, launcher):
    options = kind.options() | {"batch_size": 4, "chunk_size": "batch"}
    ways = ["sleep", "spin", "deaf", "stubborn"] if kind.processes else ["sleep"]
    users = [
        *(launcher.start("works_while_a_worker_is_stuck", **of(kind, options), stuck=stuck) for stuck in ways),
        *(
            launcher.start("works_while_workers_are_idle", **of(kind, options | {"persistent_workers": persistent}))
            for persistent in (False, True)
        ),
    ]
    for user in users:
        user.comes_to("works")
        user.interrupt()
    for user in users:
        user.ends_as(-signal.SIGINT, BOUND_S)
        assert user.stderr().count("Traceback") == 1, user.stderr()


@kinds.persistent_or_not(kinds.PACKETS, kinds.PIPES)
def test_a_loader_can_be_used_again_after_ctrl_c_was_caught(kind, persistent, launcher):
    options = kind.options() | {"batch_size": 4, "persistent_workers": persistent}
    user = launcher.start("catches_the_interrupt", **of(kind, options))
    user.comes_to("waits")
    time.sleep(0.2)  # not for order: it is to be inside next(), but may be anywhere
    user.kill(signal.SIGINT)  # to the parent alone, as a notebook's kernel is interrupted
    assert user.hears() == "interrupted"
    assert user.hears() == [list(range(start, start + 4)) for start in range(0, 40, 4)]
    user.ends_as(0)


@pytest.mark.slow
@kinds.with_workers
@kinds.draws(2)
def test_an_interrupt_raised_at_any_time_leaves_the_loader_right(kind, draw, launcher):
    options = draw.loading(kind)
    user = launcher.start("is_interrupted_at_any_time", **of(kind, options), seed=draw.randrange(10**6), times=60)
    assert user.hears() > 0
    user.ends_as(0)
    # An interrupt inside a finaliser is printed there; but nothing else has gone wrong.
    assert "Error" not in user.stderr()


# --- The end of the parent -------------------------------------------------------------------------------------------


@pytest.mark.slow
@kinds.forked
@pytest.mark.parametrize("stuck", ["sleep", "spin", "stubborn", "deaf"])
def test_workers_stuck_in_user_code_do_not_outlive_a_killed_parent(kind, stuck, launcher):
    for sent in (signal.SIGKILL, signal.SIGTERM):
        options = kind.options(3) | {"batch_size": 4, "chunk_size": "batch"}
        user = launcher.start("works_while_a_worker_is_stuck", **of(kind, options), stuck=stuck)
        user.comes_to("works")
        user.kill(sent)
        user.ends_as(-sent)
        assert len(user.workers) == 3


@kinds.with_workers
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@kinds.draws(6)
def test_nothing_is_left_of_a_script_that_is_killed_or_interrupted_at_any_time(kind, sent, draw, launcher):
    options = of(kind, draw.loading(kind))
    delay_s = draw.random() * 0.2
    if draw.random() < 0.5:
        user = launcher.start("trains", **options, length=draw.randint(10, 200))
    else:
        user = launcher.start("starts_workers", **options)
    user.hears()
    time.sleep(delay_s)  # not for order: it may come at any time
    if sent == signal.SIGINT:
        user.interrupt()
    else:
        user.kill()
    user.ends_as(-sent, BOUND_S)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_workers_do_not_outlive_a_killed_parent(method, launcher):
    options = {"num_workers": 1, "multiprocessing_context": method, "batch_size": 4}
    user = launcher.start("works_while_workers_are_idle", options=options)
    user.comes_to("works")
    user.kill()
    user.ends_as(-signal.SIGKILL)
    assert len(user.workers) == 1


# --- The end of an interpreter ---------------------------------------------------------------------------------------


@pytest.mark.slow
@kinds.persistent_or_not(kinds.PACKETS, kinds.PIPES, kinds.THREAD)
@pytest.mark.parametrize("holder", ["global", "cycle", "module", "exit in the loop", "batches"])
def test_a_script_that_ends_with_an_iteration_under_way_ends_well(kind, persistent, holder, launcher):
    draw = kinds.Draw(f"{holder} {persistent}")
    options = draw.loading(kind) | {"persistent_workers": persistent}
    taken = draw.randint(0, 3)
    user = launcher.start("ends_with_an_iterator", **of(kind, options), holder=holder, taken=taken)
    user.ends_as(0)
    assert user.stderr() == ""


@pytest.mark.slow
@kinds.with_workers
def test_a_script_that_ends_while_workers_are_stuck_ends_well(kind, launcher):
    options = kind.options() | {"batch_size": 10, "chunk_size": "batch"}
    ways = ["sleep", "spin", "deaf"] if kind.processes else ["sleep", "spin"]
    users = [
        launcher.start("ends_with_an_iterator", **of(kind, options), holder=holder, taken=1, stuck=stuck)
        for stuck in ways
        for holder in ("global", "module")
    ]
    for user in users:
        user.ends_as(0, BOUND_S)
        if kind.processes:
            assert user.stderr() == ""
        else:
            assert "fastload_worker_" in user.stderr()
            assert "RuntimeWarning" in user.stderr()


@kinds.with_workers
def test_a_script_that_ends_by_an_error_in_its_loop_shows_that_error_only(kind, launcher):
    options = kind.options() | {"batch_size": 4}
    user = launcher.start("ends_with_an_iterator", **of(kind, options), holder="error in the loop", taken=1)
    user.ends_as(1)
    assert user.stderr().count("Traceback") == 1, user.stderr()
    assert user.stderr().rstrip().endswith("ZeroDivisionError: the loss is nan")


# --- Limits ----------------------------------------------------------------------------------------------------------


@kinds.with_workers
@pytest.mark.parametrize(("flags", "data"), [(0, "size=1m"), (1, "size=1m")], ids=["tiny", "read-only"])
def test_a_container_with_little_or_no_shared_memory_works(kind, flags, data, launcher):
    options = kind.options() | {"batch_size": 4}
    user = launcher.start("has_little_shared_memory", **of(kind, options), flags=flags, data=data)
    told = user.hears()
    if "skip" in told:
        pytest.skip(told["skip"])
    assert told["limited"]
    user.ends_as(0)


@kinds.with_workers
def test_a_limit_on_the_size_of_files_does_not_stop_loading(kind, launcher):
    user = launcher.start("may_not_write_large_files", **of(kind, kind.options() | {"batch_size": 4}))
    assert user.hears() == "loaded"
    user.ends_as(0)


@pytest.mark.thorough
@kinds.everywhere
@pytest.mark.parametrize("persistent", [False, True])
def test_hundreds_of_epochs_leave_the_process_as_it_was(kind, persistent, launcher):
    options = kind.options(1) | {"batch_size": 4, "persistent_workers": persistent and kind.method is not None}
    user = launcher.start("goes_through_epochs", **of(kind, options), epochs=250, warm=50)
    told = user.hears(80)
    grown = told["grown"]
    assert told["left"] == []
    assert grown["resident_bytes"] < 4_000_000, grown
    assert grown["mappings"] <= 8, grown
    assert grown["threads"] <= 0, grown
    user.ends_as(0)


@kinds.forked
def test_where_the_user_lets_the_system_collect_children_a_workers_death_is_told(kind, launcher):
    user = launcher.start("ignores_the_death_of_children", **of(kind, kind.options() | {"batch_size": 4}))
    assert user.hears() < 4, user.stderr()
    user.ends_as(0)


# --- Forks -----------------------------------------------------------------------------------------------------------


@kinds.persistent_or_not(kinds.PACKETS, kinds.PIPES, kinds.THREAD)
@pytest.mark.parametrize(
    "does",
    ["drops the iterator", "closes the loader", "makes a loader of its own", "loads anew", "calls next", "ends"],
)
def test_whatever_a_fork_does_with_what_it_inherited_the_parent_goes_on(kind, persistent, does, launcher):
    options = kind.options() | {"batch_size": 4, "persistent_workers": persistent}
    draw = kinds.Draw(f"{does} {persistent}")
    taken = draw.randint(0, 20)
    user = launcher.start("forks_a_child_that", **of(kind, options), does=does, taken=taken)
    assert user.hears() == 0, user.stderr()
    user.ends_as(0)
    assert user.stderr() == ""
