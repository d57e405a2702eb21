"""Nothing may be left after a test: process, thread, shared memory, descriptor, temporary file. hypothesis settings."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import re
import signal
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from kit.leftovers import FAILED, State, assert_nothing_left
from large_pages import gather_into_large_pages
from shared_files import forget_processes

# With a test process for each core, torch's threads outnumber the cores: those that wait for others may not spin, which
# made the work on batches ten times as dear. Read when torch is imported, which so is nowhere above.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Under "uv run" Ray would install all packages again for each test with a cluster.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# Ray starts its workers with the lowest priority but four. Beside other tests they waited minutes for a processor.
os.environ.setdefault("RAY_worker_niceness", "0")

# Hundreds of tests start processes that import torch and this package: each would compile anew what is not compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells start what runs in the background with SIGINT ignored, and so would all processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The process that forks workers under "forkserver" imports what takes seconds, so that none of them has to. Tests that
# want workers which inherit nothing use it; "spawn", where each imports torch, is left to those that are about it.
multiprocessing.set_forkserver_preload(["torchvision", "fastload.loader"])
# Python's default up to 3.13, and what tests take it to be: functions that are local to a test pass to workers.
if "fork" in multiprocessing.get_all_start_methods():
    multiprocessing.set_start_method("fork", force=True)

# No deadlines: the machine may be busy with something else. A test that hangs is ended by its time limit.
settings.register_profile(
    "fastload", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fastload")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have torch and torchrun keep in pytest's temporary folder what they leave behind.

    Importing torchvision suffices for a folder of torch's compiler. Processes of xdist inherit this one's variables.
    """
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # a fixture comes too late
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torchinductor"))
    os.environ.setdefault("PET_LOG_DIR", str(folder / "torchrun"))


_SLOW_AS_A_WHOLE = ("libraries", "workers/test_ray_faults.py")
"""Those that do not say so in a line of their own: ``pytestmark = pytest.mark.slow``."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of slow tests alone, if these do not run: Ray, Lightning, timm."""
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if not is_whole or config.getoption("markexpr") != "not slow":
        return None
    if collection_path in [Path(__file__).parent / name for name in _SLOW_AS_A_WHOLE]:
        return True
    is_test = collection_path.match("test_*.py")
    return True if is_test and re.search("^pytestmark = .*mark.slow", collection_path.read_text(), re.M) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run the whole suite in several processes, and what is named on the command line in this one.

    A third of the time goes by with one process waiting for another: hence one more than there are cores. Each needs
    seconds to start, which a few tests would not win back. Tests on a GPU look at memory and overlap, and share it with
    none.
    """
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores + 1) if is_whole and not Path("/dev/nvidiactl").exists() else 0


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave most cases of long matrices to the slow half, and begin with what takes longest.

    Ray's tests, and those with a time limit above the usual one, would keep one process busy at the end of a run, when
    the others have nothing to take over. And Ray's would be taken over, by processes that would each start a cluster.
    """
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS:
        _thin_out(items)
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=_turn)


_MANY_CASES = 4


def _thin_out(items: list[pytest.Item]) -> None:
    """Mark cases of tests that have many as thorough.

    Of a test with more than four a fifth stays as it is; of a slow test an eighth, and at least one. They differ in a
    few arguments, and took more than a third of the time that a user waits for the README's command. A checksum of its
    name chooses a case: the same ones in each run and process. What is named on the command line runs whole.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    for of_test in cases.values():
        of_test.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        slow = [item for item in of_test if item.get_closest_marker("slow") and not item.get_closest_marker("thorough")]
        quick = [item for item in of_test if not item.get_closest_marker("slow")]
        for item in slow[(len(slow) + 7) // 8 :]:
            item.add_marker(pytest.mark.thorough)
        if len(of_test) > _MANY_CASES:
            for item in quick[(len(quick) + 4) // 5 :]:
                item.add_marker(pytest.mark.thorough)


def _turn(item: pytest.Item) -> int:
    if item.get_closest_marker("ray"):
        return 0
    limit = item.get_closest_marker("timeout")
    return 1 if limit and limit.args[0] > float(item.config.getini("timeout")) else 2


def pytest_collection_finish() -> None:
    """Prepare the process in which the tests run."""
    import torch

    # The first backward pass decides for good whether torch has threads for gradients of devices, and a process that
    # has them cannot train in forked children. Without a GPU there are none, unless fake tensors (torch.compile's) come
    # before: then torch believes that there is one. Whichever test would be the first, children of all can train.
    if not torch.cuda.is_available():
        torch.ones(1, requires_grad=True).backward()

    # What the imported libraries are made of is kept out of all collections to come: a million objects, 0.3 s each.
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries report what is frozen at the end as leaked
    gather_into_large_pages()


_file: Path | None = None
"""That of the test before."""
_forks = 0
"""How many processes were forked since memory was gathered into large pages."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)


@pytest.fixture
def cluster() -> Any:
    """Return a Ray cluster of two machines, to which this process is connected until a test without Ray begins."""
    from ray_clusters import the_cluster

    return the_cluster()


def _end_the_cluster() -> None:
    if clusters := sys.modules.get("ray_clusters"):
        clusters.end_the_cluster()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """End what several tests have used."""
    _end_the_cluster()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep collections and forks as cheap as they were at the beginning."""
    global _file, _forks
    if not item.get_closest_marker("ray"):
        _end_the_cluster()
    if item.path != _file:
        _file = item.path
        # What the tests of other files have imported and compiled stays.
        gc.collect()
        gc.freeze()
    # After a fork each large page that is written to becomes small ones.
    if _forks >= 25:
        _forks = 0
        gather_into_large_pages()


_interpreters: list[str] = []
"""Programs that the present test has started, of those that take a second or more to start."""


def _note_interpreters(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        program = os.path.basename(os.fsdecode(arguments[0]))
        if program.startswith(("python", "torchrun", "fastload", "chrom")):
            _interpreters.append(program)


sys.addaudithook(_note_interpreters)


@pytest.fixture(autouse=True)
def interpreters_are_started_by_marked_tests_only(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the quick suite quick: a test that starts an interpreter or a browser is marked."""
    _interpreters.clear()
    yield
    marked = any(request.node.get_closest_marker(name) for name in ("slow", "interpreter"))
    assert marked or not _interpreters, f"the test starts {_interpreters}: mark it with @pytest.mark.slow"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note which tests fail: their tracebacks keep alive what they were using."""
    report: Any = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a thread of ours, shared memory, a descriptor or a temporary file behind."""
    forget_processes()
    beside_ray = request.node.get_closest_marker("ray") is not None
    now = State.of_ours if beside_ray else State
    before = now()
    yield
    if not request.node.stash.get(FAILED, False):
        # torch's own loader, beside which ours is tested, lets go of its descriptors by a thread, a little later.
        assert_nothing_left(before, now, within=5.0, first_collect=False)
