"""What users' processes do. Each story takes ``tell`` and JSON options, and returns what its script keeps in a global.

See fault_users.py for how they are started and how they end.
"""

import contextlib
import ctypes
import gc
import os
import random
import resource
import signal
import sys
import time

import torch
from fault_tools import Numbers, batches_of, loader_of, numbers, outcomes
from kit.datasets import Made
from kit.leftovers import State

import fastload
from fastload.base import at_exit
from fastload.engine.iteration import Iteration

# So long, in seconds, workers that are stuck are waited for here. Users wait five: see test_faults_leaving.py.
Iteration._shutdown_workers.__defaults__ = (0.5,)
at_exit._GRACE = 0.5

# --- Workers that do something ---------------------------------------------------------------------------------------


def work():
    """Be in the user's own step, for ever.

    In short sleeps: of a signal that comes just before a sleep begins, Python hears when that ends.
    """
    while True:
        time.sleep(0.05)


def sleep():
    time.sleep(10**6)


def spin():
    while True:
        pass


def stubborn():
    """Code that lets nothing stop it."""
    while True:
        with contextlib.suppress(BaseException):
            spin()


def deaf():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(10**6)


STUCK = {function.__name__: function for function in (sleep, spin, stubborn, deaf)}


def start(tell, options, length=100, at=-1, stuck=""):
    """Begin an iteration, and tell its workers; at an index, if any, one says by a pipe that it is there, and stays."""
    told, telling = os.pipe()

    def fault():
        os.write(telling, b"x")
        STUCK[stuck]()

    dataset = Numbers(length, faults={at: fault} if stuck else {})
    loader = loader_of(dataset, **options)
    iterator = iter(loader)
    tell({"workers": [worker.pid for worker in iterator._workers if hasattr(worker, "pid")]})
    return dataset, loader, iterator, told


# --- Interrupted, or killed ------------------------------------------------------------------------------------------


def waits_for_a_stuck_worker(tell, options, stuck):
    """Be inside next() while the worker that has to make the first batch is stuck."""
    _, loader, iterator, _ = start(tell, options, at=1, stuck=stuck)
    # The worker tells when it is there; this process is in next() then or will be at once.
    tell("waits")
    for batch in iterator:
        tell(numbers(batch))
    return loader


def works_while_a_worker_is_stuck(tell, options, stuck):
    """Be outside of next(), in the user's own step, while a worker is stuck."""
    _, loader, iterator, told = start(tell, options, at=1, stuck=stuck)
    os.read(told, 1)
    tell("works")
    work()
    return loader, iterator


def works_while_workers_are_idle(tell, options):
    """Be in the user's own step while all that may be made ahead has been made."""
    _, loader, iterator, _ = start(tell, options)
    next(iterator)
    tell("works")
    work()
    return loader, iterator


def trains(tell, options, length):
    """Go through epoch after epoch."""
    _, loader, iterator, _ = start(tell, options, length)
    tell("trains")
    del iterator
    while True:
        for batch in loader:
            numbers(batch)


def starts_workers(tell, options):
    """Do nothing but start and end workers."""
    loader = loader_of(Numbers(100), **options)
    tell("starts")
    while True:
        next(iter(loader))


def catches_the_interrupt(tell, options):
    """Catch Ctrl-C inside next(), and use the loader again."""
    dataset, loader, iterator, _ = start(tell, options, 40, at=1, stuck="sleep")
    tell("waits")
    try:
        next(iterator)
    except KeyboardInterrupt:
        tell("interrupted")
    dataset.faults.clear()
    tell(outcomes(iter(loader)))
    loader.close()


# --- Raised into next() ----------------------------------------------------------------------------------------------


class Alarm(KeyboardInterrupt):
    """What the user's signal handler raises: an interrupt, at any time."""


def is_interrupted_at_any_time(tell, options, seed, times):
    """Interrupt iterations at random moments; the loader is right afterwards, each time."""
    rng = random.Random(seed)
    loader = loader_of(Numbers(60, "dict"), **options)
    expected = batches_of(60, options["batch_size"])

    def handler(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, handler)
    interrupted = 0
    for _ in range(times):
        given = []
        try:
            try:
                iterator = iter(loader)
                signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.004 + 1e-5)
                for batch in iterator:
                    given.append(numbers(batch))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            interrupted += 1
            rest = outcomes(iterator)
            # What comes after is nothing, or the next batches: none is lost in the middle, and none comes twice.
            assert given == expected[: len(given)], given
            assert all(batch in expected[len(given) :] for batch in rest), rest
        else:
            assert given == expected
        iterator = None
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert outcomes(iter(loader)) == expected
    loader.close()
    tell(interrupted)


# --- An interpreter that ends ----------------------------------------------------------------------------------------


def ends_with_an_iterator(tell, options, holder, taken, stuck=""):
    """End with an iteration under way, held in some way."""
    _, loader, iterator, told = start(tell, options, at=30, stuck=stuck)
    held = [next(iterator) for _ in range(taken)]
    if stuck:
        os.read(told, 1)
    tell("ends")
    if holder == "global":
        return loader, iterator, held
    if holder == "cycle":
        cycle = [iterator, held]
        cycle.append(cycle)
        return None
    if holder == "module":
        torch.an_iterator_of_a_test = iterator
        return None
    if holder == "exit in the loop":
        for _ in iterator:
            sys.exit(0)
    if holder == "error in the loop":
        for _ in iterator:
            raise ZeroDivisionError("the loss is nan")
    if holder == "batches":
        del iterator
        loader.close()
        return held
    return None


# --- Limits ----------------------------------------------------------------------------------------------------------


def has_little_shared_memory(tell, options, flags, data):
    """Load with /dev/shm of one megabyte, or one that cannot be written to."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns, private_and_below = 0x20000, (1 << 18) | (1 << 14)
    if (
        libc.unshare(clone_newns)
        or libc.mount(b"none", b"/", None, private_and_below, None)
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, data.encode())
    ):
        tell({"skip": f"cannot mount: {os.strerror(ctypes.get_errno())}"})
        return
    try:
        with open("/dev/shm/test", "wb") as file:
            file.write(bytes(2 << 20))
    except OSError as error:
        limited = str(error)
    else:
        raise AssertionError("/dev/shm has no limit")
    # Half a megabyte a sample, so that no batch fits into a megabyte.
    dataset = Made(40, lambda index: torch.full((500_000,), index, dtype=torch.uint8))
    for collate_fn in (None, list):
        for place, batch in enumerate(loader_of(dataset, **options, collate_fn=collate_fn)):
            assert all(bool((row == index).all()) for index, row in enumerate(batch, place * options["batch_size"]))
        assert place == 40 // options["batch_size"] - 1
    tell({"limited": limited})


def may_not_write_large_files(tell, options):
    """Load where files may have a gigabyte at most, as on some clusters."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    assert outcomes(iter(loader_of(Numbers(40), **options))) == batches_of(40, options["batch_size"])
    tell("loaded")


def goes_through_epochs(tell, options, epochs, warm):
    """Go through hundreds of epochs, and measure what has grown."""
    loader = loader_of(Numbers(16, "dict"), **options)
    expected = batches_of(16, options["batch_size"])
    for epoch in range(epochs):
        if epoch % 3 == 2:  # some are left in the middle
            next(iter(loader))
        else:
            assert outcomes(iter(loader)) == expected
        if epoch == warm:
            before, sizes_before = State(), sizes()
    grown = {name: size - sizes_before[name] for name, size in sizes().items()}
    tell({"left": State().leftovers(before), "grown": grown})
    loader.close()


def sizes():
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    with open("/proc/self/maps") as file:
        mappings = len(file.readlines())
    return {"resident_bytes": resident, "mappings": mappings, "threads": len(os.listdir("/proc/self/task"))}


def ignores_the_death_of_children(tell, options):
    """Let the system collect dead children, as some servers do."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    dataset = Numbers(20, faults={9: lambda: os.kill(os.getpid(), signal.SIGKILL)})
    loader = loader_of(dataset, **options)
    *given, error = outcomes(iter(loader))
    assert isinstance(error, fastload.errors.WorkerDied), error
    assert given == batches_of(20, options["batch_size"])[: len(given)]
    dataset.faults.clear()
    begun = time.monotonic()
    assert outcomes(iter(loader)) == batches_of(20, options["batch_size"])
    loader.close()
    tell(time.monotonic() - begun)


# --- Users that fork -------------------------------------------------------------------------------------------------


def forks_a_child_that(tell, options, does, taken):
    """Fork in the middle of an iteration; whatever the child does with what it inherited, the parent goes on."""
    loader = loader_of(Numbers(120), **options)
    expected = batches_of(120, options["batch_size"])
    iterator = iter(loader)
    given = [numbers(next(iterator)) for _ in range(taken)]
    child = os.fork()
    if child == 0:
        if does in ("drops the iterator", "makes a loader of its own"):
            del iterator
            loader = loader_of(Numbers(120), **options)
            gc.collect()
        if does in ("loads anew", "makes a loader of its own"):
            assert outcomes(iter(loader)) == expected
        if does not in ("calls next", "ends"):
            loader.close()
            os._exit(0)
        if does == "calls next":
            try:
                next(iterator)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        # "ends": as any process that comes to the end of its script, with everything it inherited in globals.
        return loader, iterator
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    given += outcomes(iterator)
    assert given == expected, [outcome for outcome in given if outcome not in expected]
    again = outcomes(iter(loader))
    assert again == expected, again
    loader.close()
    tell(code)
    return None
