"""The processes of a run: who and where each is, and how they agree to stop.

In: the environment that torchrun sets, signals. Out: a :class:`Place`, a joint answer.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import leaving
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from .endings import FAILED, USAGE, Ending, tell
from .errors import RunError, UsageError
from .meeting import meet

JOIN_TIMEOUT_S = 120.0  # ranks of one job start within seconds of one another, or of minutes on a slow shared disk

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # a scheduler's last word, and its word of warning


@dataclass(frozen=True)
class Place:
    """Where a process is among those of its run."""

    rank: int
    world_size: int
    local_rank: int
    local_ranks: int
    device: torch.device
    backend: str
    control: Any = None
    """A gloo group, for what is agreed on the host: on it a few bytes cost no wait for the GPU. None without ranks."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every one of them."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]


class Signals:
    """Signals that ask a run to end. They are noted and nothing else, since the process may be anywhere.

    Within its context; behind it they do what they did before.
    """

    def __init__(self, *, saves: bool) -> None:
        """Begin to note none yet.

        Args:
            saves: whether the run can go on later; then a signal is no failure, and the exit code is 0.
        """
        self.noted = 0
        """Number of the signal that came last; 0: none."""
        self._saves = saves
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def code(self, number: int) -> int:
        """Return the exit code of a run that a signal has ended."""
        return 0 if self._saves else 128 + number

    def ending(self, number: int) -> Ending | None:
        """Return how a run ends that a signal has ended before its first step; None if the number is 0."""
        if not number:
            return None
        name = signal.Signals(number).name
        return Ending(f"stopped by {name} before the first step; the same command starts again", self.code(number))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = number


def join(init_method: str | None, timeout_s: float, join_timeout_s: float, signals: Signals) -> Place:
    """Read who this process is, choose its device, and join the process group when all ranks are there.

    NCCL where each process of the machine has a GPU of its own, else gloo on the CPU; the network is wrapped for
    either, or the ranks would train apart without a word.

    Args:
        init_method: how the ranks meet; None: ``env://``, by the addresses that torchrun sets.
        timeout_s: after which a collective that some rank does not take part in is an error, in seconds.
        join_timeout_s: after which a rank that has not come is one.
        signals: those that come meanwhile end the run.

    Raises:
        SystemExit, UsageError, RunError: see :func:`~training.meeting.meet`.
    """
    rank, world_size, local_rank, local_ranks = _who()
    on_gpu = torch.cuda.device_count() >= local_ranks
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    problem = None
    if on_gpu:
        try:
            torch.cuda.set_device(device)
        except RuntimeError as error:
            problem = Ending(f"rank {rank} cannot use {device}: {str(error).splitlines()[0]}", FAILED)
    backend = "nccl" if on_gpu else "gloo"
    control = None
    if world_size > 1:
        store = meet(init_method, rank, world_size, join_timeout_s, problem, lambda: signals.ending(signals.noted))
        limit = datetime.timedelta(seconds=timeout_s)
        store.set_timeout(limit)
        dist.init_process_group(backend, None, limit, world_size, rank, store, device_id=device if on_gpu else None)
        control = dist.new_group(timeout=limit, backend="gloo")
    elif problem is not None:
        raise RunError(problem.message)
    return Place(rank, world_size, local_rank, local_ranks, device, backend, control)


def refuse(error: UsageError) -> NoReturn:
    """End all ranks by an error in the arguments: rank 0 tells of it. It may be the only one that has it."""
    ending = Ending(str(error), USAGE)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--init-method", nargs="?")  # of all options that which is needed to find the others
    try:
        rank, world_size, _, _ = _who()
        if world_size > 1:
            url = parser.parse_known_args()[0].init_method
            meet(url, rank, world_size, JOIN_TIMEOUT_S, ending, lambda: None)
    except (UsageError, RunError):  # there is nobody to tell; the first error is the one to mend
        pass
    tell(ending)
    sys.exit(ending.code)


def _who() -> tuple[int, int, int, int]:
    """Return rank, world size, rank on this machine and ranks on this machine."""
    found = []
    for name, alone in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        text = os.environ.get(name, str(alone))
        if not text.isdecimal():
            raise UsageError(f"the environment's {name} must be a whole number, got {text!r}; start by torchrun")
        found.append(int(text))
    rank, world_size, local_rank, local_ranks = found
    if rank >= world_size:
        raise UsageError(
            f"the environment's RANK must be below WORLD_SIZE, got {rank} of {world_size}; start by torchrun"
        )
    return rank, world_size, local_rank, local_ranks


def leave(place: Place) -> None:
    """Leave the process group, if there is one, when all ranks have come so far."""
    if place.world_size > 1:
        leaving.leave(place.control)


def stop_together(problem: str | None, place: Place, code: int, signals: Signals | None = None) -> None:
    """End every rank with this exit code if any has a problem; rank 0 tells of it. All ranks must call this.

    Args:
        problem: this rank's, if it has one.
        place: of this rank.
        code: the exit code, if there is a problem.
        signals: where a signal is to end the run here too: before the first step, when there is nothing to save.
    """
    told = place.gather((problem, 0 if signals is None else signals.noted))
    first = next((problem for problem, _ in told if problem is not None), None)
    number = max(number for _, number in told)
    ending = Ending(first, code) if first is not None else None
    if ending is None and signals is not None:
        ending = signals.ending(number)
    if ending is None:
        return
    if place.rank == 0:
        tell(ending)
    leave(place)  # torchrun ends the other ranks as soon as one has left: rank 0 has told by now
    sys.exit(ending.code)


class Stop:
    """Whether the run is to stop, the same on every rank.

    A rank that left alone would leave the others waiting. So at the end of each step all ranks exchange their notes. To
    wait for that would cost each step a round trip, so the answer is read a step later, when it has long arrived;
    torchrun gives 30 s until it kills (``--shutdown-timeout``), and a step is shorter.
    """

    def __init__(self, place: Place, signals: Signals) -> None:
        """Begin; what was noted before counts."""
        self.place = place
        self._signals = signals
        self._asked: tuple[Tensor, Any] | None = None

    @property
    def noted(self) -> int:
        """Number of the signal that this process got last; 0: none."""
        return self._signals.noted

    def agreed(self) -> int:
        """Return the number of a signal that some rank had got a step ago, or 0. All ranks must call this."""
        if self.place.world_size == 1:
            return self.noted
        answer = self.answer()
        if not answer:
            note = torch.tensor([self.noted])
            self._asked = note, dist.all_reduce(note, dist.ReduceOp.MAX, group=self.place.control, async_op=True)
        return answer

    def answer(self) -> int:
        """Return what the exchange begun last says, and begin no other."""
        if self._asked is None:
            return 0
        note, exchange = self._asked
        self._asked = None
        exchange.wait()
        return int(note)


def ignore_signals(worker_id: int) -> None:
    """Let a loader's worker outlive the signal that is sent to all processes of a job: its loader will end it.

    Forked workers would have the handler of :class:`Signals`, others the default, which ends them before it is saved.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed what the network itself draws (dropout), for each rank its own.

    A hash of all three: sums would give (rank 0, step 1) and (rank 1, step 0) the same numbers.
    """
    words = np.random.SeedSequence([seed, step, rank]).generate_state(2, np.uint32).astype(np.uint64)
    torch.manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)


def generators_of(place: Place) -> list[dict[str, Tensor]]:
    """Return the states of torch's generators of all ranks, for a checkpoint."""
    own = {"cpu": torch.get_rng_state()}
    if place.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(place.device)
    return place.gather(own)


def replicas_differ(network: nn.Module, place: Place) -> bool:
    """Whether the ranks' parameters are not the same: DistributedDataParallel was left out somewhere, or has failed."""
    if place.world_size == 1:
        return False
    sums = torch.stack([parameter.detach().double().sum() for parameter in network.parameters()])
    lowest, highest = sums.clone(), sums.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return not torch.equal(lowest, highest)
