"""How the ranks of a run start: they wait for one another, or exit together with one message.

In: the environment that torchrun sets. Out: a :class:`~training.distributed.World` with its process group.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]  # not listed as exported

from .distributed import Signals, World
from .errors import Exit, RunError, UsageError

JOIN_TIMEOUT_S = 120.0  # the ranks of a job start within seconds, or minutes on a slow shared disk


def join(init_method: str | None, timeout_s: float, join_timeout_s: float, signals: Signals) -> World:
    """Choose the device, and create the process group as soon as all ranks have started.

    The backend is NCCL if each rank of the machine has its own GPU, else gloo, on the CPU.
    """
    rank, size, local_rank, local_size = _read_environment()
    on_gpu = torch.cuda.device_count() >= local_size
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    failure = None
    if on_gpu:
        try:
            torch.cuda.set_device(device)
        except RuntimeError as error:
            failure = Exit(f"rank {rank} cannot use {device}: {str(error).splitlines()[0]}", 1)
    control = None
    if size > 1:
        store = meet(init_method, rank, size, join_timeout_s, failure, signals)
        timeout = datetime.timedelta(seconds=timeout_s)
        store.set_timeout(timeout)
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, None, timeout, size, rank, store, device_id=device if on_gpu else None)
        control = dist.new_group(timeout=timeout, backend="gloo")
    elif failure is not None:
        raise RunError(failure.message)
    return World(rank, size, local_rank, local_size, device, control)


def meet(url: str | None, rank: int, size: int, timeout_s: float, failure: Exit | None, signals: Signals) -> Store:
    """Wait until all ranks have started, and return the store that the process group can be created with.

    ``init_process_group`` alone would wait until its timeout for a rank that has failed, and handle no signal
    meanwhile. So the ranks agree first, through a key that only the first writer sets: to start, or why not.
    """
    url = url or "env://"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun may restart all ranks with the same store
    try:
        store = _open_store(url, rank, size, timeout_s)
        votes = PrefixStore(f"votes/{attempt}", store)
        if votes.add(f"rank {rank}", 1) > 1 and url.startswith("file:"):
            raise UsageError(
                f"--init-method {url} has been used by rank {rank} before: by a run that was killed, or by another "
                "process with the same RANK; remove the file, or use a new name for each run"
            )
        if failure is None and votes.add("started", 1) == size:
            votes.compare_set("decision", "", json.dumps(None))
        deadline = time.monotonic() + timeout_s
        while not votes.check(["decision"]):
            reason = failure or signals.exit_before_training(signals.received)
            if reason is None and time.monotonic() > deadline:
                missing = [str(other) for other in range(size) if not votes.check([f"rank {other}"])]
                names = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
                reason = Exit(
                    f"rank {names} of {size} did not start within {timeout_s:g} s; see what it printed, or give a "
                    "longer --join-timeout",
                    1,
                )
            if reason is not None:
                votes.compare_set("decision", "", json.dumps(reason))
            time.sleep(0.02)
        decision = json.loads(votes.get("decision"))
        if decision is None:
            return PrefixStore(f"group/{attempt}", store)
    except dist.DistError as error:
        raise RunError(f"rank 0 cannot be reached at {url} ({str(error).splitlines()[0]}): it has exited") from None
    return _exit_all(votes, rank, size, Exit(*decision))


def _open_store(url: str, rank: int, size: int, timeout_s: float) -> Store:
    try:
        if url.startswith("file:") and not Path(urlsplit(url).path).parent.is_dir():
            raise ValueError("its folder does not exist")  # torch would wait for it
        store: Store = next(rendezvous(url, rank, size, timeout=datetime.timedelta(seconds=timeout_s)))[0]
        return store
    except (ValueError, AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, dist.DistError) and not url.startswith("file:"):
            raise RunError(
                f"not all {size} ranks could be reached at {url} within {timeout_s:g} s ({reason}); see what the "
                "others printed, or give a longer --join-timeout"
            ) from None
        raise UsageError(
            f"the ranks cannot meet at --init-method {url}: {reason}; start them with torchrun, or give "
            "tcp://HOST:PORT or file:///PATH"
        ) from None


def _exit_all(votes: Store, rank: int, size: int, reason: Exit) -> NoReturn:
    """Exit; rank 0 prints why, and stays until the others know: it may hold the store.

    The others wait until it has printed: torchrun ends all ranks as soon as one has exited.
    """
    deadline = time.monotonic() + 5.0
    if rank == 0:
        reason.show()
        votes.set("shown", "")
        while votes.add("informed", 0) < size - 1 and time.monotonic() < deadline:
            time.sleep(0.02)
    else:
        try:
            votes.wait(["shown"], datetime.timedelta(seconds=10))
            votes.add("informed", 1)
        except dist.DistError:  # rank 0 is not there
            reason.show()
    sys.exit(reason.code)


def exit_for_usage(error: UsageError) -> NoReturn:
    """Exit all ranks because of wrong arguments, even if only this rank has them."""
    reason = Exit(str(error), error.exit_code)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--init-method", nargs="?")  # the only option that is needed to reach the other ranks
    with contextlib.suppress(UsageError, RunError):  # no other rank can be reached: this rank prints the error
        rank, size, _, _ = _read_environment()
        if size > 1:
            meet(parser.parse_known_args()[0].init_method, rank, size, JOIN_TIMEOUT_S, reason, Signals(saves=False))
    reason.show()
    sys.exit(reason.code)


def _read_environment() -> tuple[int, int, int, int]:
    """Return rank, number of ranks, rank on this machine, and number of ranks on this machine."""
    found = []
    for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        text = os.environ.get(name, str(default))
        if not text.isdecimal():
            raise UsageError(f"the environment's {name} must be an integer, got {text!r}; start with torchrun")
        found.append(int(text))
    rank, size, local_rank, local_size = found
    if rank >= size:
        raise UsageError(f"the environment's RANK must be below WORLD_SIZE, got {rank} of {size}; start with torchrun")
    return rank, size, local_rank, local_size
