"""The ranks of a run: how they share values, fail, stop and exit together."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import leaving
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastload import FastloadError

from .errors import Exit, RunError, UsageError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # schedulers send SIGTERM to preempt a job, SIGUSR1 as a warning


@dataclass(frozen=True)
class World:
    """All ranks of a run, and which of them this process is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: Any = None
    """A gloo group, for small objects: on it a collective does not wait for the GPU. None with one rank."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensor over all ranks."""
        total = tensor.clone()
        if self.size > 1:
            dist.all_reduce(total)
        return total


class Signals:
    """A context that records the signals that ask a run to stop, and does nothing else: they may come at any time.

    Args:
        saves: whether the run is saved, and can be resumed; then stopping it is no failure, and the exit code is 0.
    """

    def __init__(self, *, saves: bool) -> None:
        self.received = 0
        """Number of the last signal; 0: none."""
        self._saves = saves
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def exit_code(self, number: int) -> int:
        """Return the exit code of a run that a signal has stopped."""
        return 0 if self._saves else 128 + number

    def exit_before_training(self, number: int) -> Exit | None:
        """Return how a run exits that a signal has stopped before its first step; None if the number is 0."""
        if not number:
            return None
        name = signal.Signals(number).name
        return Exit(f"stopped by {name} before the first step; the same command starts again", self.exit_code(number))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number


@contextlib.contextmanager
def fail_together(world: World, signals: Signals | None = None) -> Iterator[None]:
    """Exit all ranks if the body fails on one of them; rank 0 prints why. All ranks must enter it.

    The body must not contain collectives: a rank that has failed would not take part in them.
    """
    failure: tuple[str, int] | None = None
    try:
        yield
    except (UsageError, RunError, FastloadError) as error:
        failure = str(error), getattr(error, "exit_code", 1)
    failures, received = zip(*world.gather((failure, signals.received if signals else 0)), strict=True)
    reason = next((Exit(*one) for one in failures if one is not None), None)
    if reason is None and signals is not None:
        reason = signals.exit_before_training(max(received))
    if reason is None:
        return
    if world.rank == 0:
        reason.show()
    leave(world)  # not before rank 0 has printed: torchrun ends all ranks when one has exited
    sys.exit(reason.code)


def leave(world: World) -> None:
    """Destroy the process group, if there is one, after all ranks have called this."""
    if world.size > 1:
        leaving.leave(world.control)


class StopRequest:
    """Whether to stop, the same answer on every rank, one step late.

    A rank that stopped alone would leave the others waiting. So after each step the ranks exchange the signals they
    have received. Waiting for this exchange would cost every step a round trip, so its result is read one step later.
    (torchrun kills its ranks after 30 s, ``--shutdown-timeout``; a step is shorter.)
    """

    def __init__(self, world: World, signals: Signals) -> None:
        self.world = world
        self.signals = signals
        self._exchange: tuple[Tensor, Any] | None = None

    def agreed(self) -> int:
        """Return the number of a signal that some rank had received one step ago, or 0. All ranks must call this."""
        if self.world.size == 1:
            return self.signals.received
        number = self.finish()
        if not number:
            received = torch.tensor([self.signals.received])
            handle = dist.all_reduce(received, dist.ReduceOp.MAX, group=self.world.control, async_op=True)
            self._exchange = received, handle
        return number

    def finish(self) -> int:
        """Return the result of the last exchange, and start no other; 0 if there was none."""
        if self._exchange is None:
            return 0
        received, handle = self._exchange
        self._exchange = None
        handle.wait()
        return int(received)


def ignore_signals(worker_id: int) -> None:
    """Initialise a loader's worker: it ignores the signals that are sent to all processes of a job.

    Otherwise it would exit before the run is saved; its loader ends it.
    """
    if threading.current_thread() is threading.main_thread():  # `fastload verify` also calls it in worker threads
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed the generator that the network draws from (dropout), differently on each rank.

    The seed is a hash of all three: with a sum (rank 0, step 1) and (rank 1, step 0) would draw the same numbers.
    """
    words = np.random.SeedSequence([seed, step, rank]).generate_state(2, np.uint32).astype(np.uint64)
    torch.manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)


def generator_states(world: World) -> list[dict[str, Tensor]]:
    """Return the states of torch's generators on all ranks, for a checkpoint."""
    own = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(world.device)
    return world.gather(own)


def restore_generators(states: list[dict[str, Tensor]], world: World, seed: int, step: int) -> None:
    """Restore this rank's generators; if the number of ranks has changed, seed them anew."""
    if len(states) != world.size:
        seed_rank(seed, step, world.rank)
        return
    own = states[world.rank]
    torch.set_rng_state(own["cpu"])
    if world.device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], world.device)


def check_finite(loss: float, network: nn.Module, step: int) -> None:
    """Raise :class:`RunError` if the loss or the weights are infinite or NaN."""
    finite = torch.stack([value.isfinite().all() for value in network.state_dict().values()]).all()
    if not math.isfinite(loss) or not finite:  # waits for the device
        what = "the weights are infinite or NaN" if math.isfinite(loss) else f"the loss is {loss}"
        raise RunError(f"{what} at step {step}; lower --lr, or add --clip-norm 1; this step was not saved")


def check_weights(loss: float, network: nn.Module, step: int, world: World) -> None:
    """Exit all ranks if the loss or the weights are not finite, or the ranks' weights differ.

    They differ if DistributedDataParallel is missing on some rank, or has failed.
    """
    sums = torch.stack([parameter.detach().double().sum() for parameter in network.parameters()])
    lowest, highest = sums.clone(), sums.clone()
    if world.size > 1:
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
    with fail_together(world):
        check_finite(loss, network, step)
        if not torch.equal(lowest, highest):
            raise RunError("the weights differ between the ranks; please report this")
