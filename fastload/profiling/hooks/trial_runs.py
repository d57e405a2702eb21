"""Measures what samples cost with other settings: in a forked child, when the script ends. Results: ``..trials``.

Nothing of the script changes: random generators, files and memory are the child's own. Processor time counts, because
other programs hardly affect it. If anything fails, that is recorded as the reason why there is no result.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ...base.worker_kinds import has_threads
from ...errors import ConfigError, TraceError, in_a_line

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from ..trials import Choice

_CPU_SECONDS, _SECONDS = 3.0, 8.0
"""For all trials of one loader: of processor time, and of elapsed time."""
_MOST_SECONDS = 20.0
"""After which the child is killed."""
_BATCH_CPU_SECONDS, _BATCH_SECONDS = 0.05, 0.2
"""What a batch of the trials takes at most: of processor time, and of elapsed time."""
_MOST_ROUNDS, _FEWEST_ROUNDS = 12, 3
# Of the seconds: then fewer rounds are enough, or the samples of slow datasets would take all that a trial may.
_PATIENCE = 1.5
_MOST_LOADERS = 2


class TrialRuns:
    """Runs the trials once in a process; ``unhook`` removes the hooks, in the child.

    ``with_stages``: whether to measure the stages of samples too.
    """

    def __init__(
        self,
        loaders: Callable[[], list[tuple[int, Any]]],
        note: Callable[..., None],
        unhook: Callable[[], None],
        *,
        with_stages: bool,
    ) -> None:
        self._with_stages = with_stages
        self._loaders = loaders
        self._note = note
        self._unhook = unhook
        self._process = os.getpid()

    def run(self) -> None:
        """Run the trials; does nothing the second time, and in processes that were forked from this one."""
        if os.getpid() != self._process:
            return
        self._process = -1
        # At the end of the script, which must not depend on it; Ctrl-C ends it at once.
        with contextlib.suppress(Exception, KeyboardInterrupt):
            for number, loader in self._loaders()[:_MOST_LOADERS]:
                interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
                found = {"reason": "the script was interrupted"} if interrupted else self._in_child(loader)
                self._note("trials", loader=number, **found)

    def _in_child(self, loader: DataLoader[Any]) -> dict[str, Any]:
        if not hasattr(os, "fork"):
            return {"reason": "this system has no fork(), in which trials run beside the script"}
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads: torch's own workers are forked in the same way
            child = os.fork()
        if not child:
            self._run_child(loader, writing)
        os.close(writing)
        try:
            return _read_answer(reading)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # the script may have waited for it
                os.waitpid(child, 0)

    def _run_child(self, loader: DataLoader[Any], writing: int) -> NoReturn:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2 * round(_MOST_SECONDS))  # in case the parent is killed
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 # the script's may write elsewhere
            self._unhook()
            try:
                found = _measured(loader, self._with_stages)
            except Exception as error:
                found = {"reason": in_a_line(error)[:200]}
            os.write(writing, json.dumps(found).encode() + b"\n")  # less than a pipe holds
        finally:
            os._exit(0)


def _read_answer(reading: int) -> dict[str, Any]:
    """Return what the child has written; the reason if it died or took too long."""
    text, reason = b"", f"it took longer than {_MOST_SECONDS:.0f} s"
    until = time.monotonic() + _MOST_SECONDS
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            reason = "the process that ran the trials has died"
            break
        text += part
    found: dict[str, Any] = json.loads(text) if text.endswith(b"\n") else {"reason": reason}
    return found


def _measured(loader: DataLoader[Any], with_stages: bool) -> dict[str, Any]:
    """Return for each choice the processor time of some batches, in ns, of the same samples; and their stages."""
    import random  # not before the script, which may have a module of that name

    import torch
    from torch.utils.data import IterableDataset

    from ...base import compat
    from ..trials import TORCH, USUAL, chosen, tried_beside
    from .loader_info import seeding_of

    torch.set_num_threads(1)  # as in a worker
    has_processes = bool(loader.num_workers) and not has_threads(getattr(loader, "worker_method", None))
    compat.process.is_worker = has_processes  # late decoding does more in worker processes
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ConfigError("an IterableDataset cannot be asked for a sample again")
    if loader.batch_size is None and loader.batch_sampler is None:
        raise ConfigError("the dataset makes its batches itself")
    draw = random.Random(0)
    size = _batch_size(loader, draw)
    indices = [draw.randrange(len(dataset)) for _ in range(size * (_MOST_ROUNDS + 1))]
    engine = type(loader).__module__.partition(".")[0]
    known = {name: getattr(loader, name, None) for name in ("fuse", "cache")}
    mine, _ = chosen({"engine": engine, "seeding": seeding_of(loader), **known}, {})
    usual = mine if mine.engine == "fastload" else USUAL
    cached = usual._replace(fuse=usual.fuse or "auto", cache="auto")
    room = _own_cache()
    running: dict[Choice, Iterator[Any]] = {}
    reasons: dict[Choice, str] = {}
    for choice in dict.fromkeys([mine, TORCH, *tried_beside(usual), cached]):
        try:
            running[choice] = _batches(loader, choice, indices, size)
        except Exception as error:
            reasons[choice] = str(error)[:200]
    # Keeps files for the others, a batch ahead of them: not in the processor's caches.
    filling = _batches(loader, cached, indices, size) if cached in running else iter(())
    next(filling, None)
    begun = time.perf_counter()
    spent: dict[Choice, list[int]] = {choice: [] for choice in running}
    for number in range(_MOST_ROUNDS + 1):
        order = [*running]
        draw.shuffle(order)
        next(filling, None)
        for choice in order:
            cpu = time.thread_time_ns()
            next(running[choice])
            spent[choice].append(time.thread_time_ns() - cpu)
        used = sum(map(sum, spent.values())) / 1e9 / _CPU_SECONDS, (time.perf_counter() - begun) / _SECONDS
        if number >= _FEWEST_ROUNDS and max(used) > 1:
            break
        if number and used[1] > _PATIENCE:
            break
    taken = _taken(len({*indices[: (number + 2) * size]})) if cached in running else None
    if cached in running and taken is None:
        del spent[cached]
        reasons[cached] = "no JPEG file of its samples can be kept"
    return {
        "cpu_ns": [(choice, times[1:]) for choice, times in spent.items()],  # the first batch is slower
        "reasons": list(reasons.items()),
        "cache": None if taken is None else (taken, room),
        "stages_ms": _stages_ms(loader, mine, indices, size) if with_stages and mine in running else {},
    }


def _own_cache() -> int:
    """Have this process make a cache of its own, which no rank shares; return what ``"auto"`` is, in bytes."""
    from ...cache import shared

    os.environ.pop("LOCAL_WORLD_SIZE", None)
    shared.forget()
    return shared.size_of_auto()


def _taken(num_samples: int) -> float | None:
    """Return what the cache takes of memory for a sample, in bytes; None: no file of theirs can be kept."""
    from ...cache import shared

    contents = shared.contents()
    if contents is None or not contents.entry_bytes:
        return None
    return contents.entry_bytes / num_samples


def _stages_ms(loader: DataLoader[Any], choice: Choice, indices: list[int], size: int) -> dict[str, float]:
    """Return what a sample takes in each stage; nothing if that cannot be recorded."""
    from ..measuring import BATCH, measured_stages_ms

    with contextlib.suppress(TraceError):
        return measured_stages_ms(lambda: _batches(loader, choice, indices, min(size, BATCH)))
    return {}


def _batch_size(loader: DataLoader[Any], draw: Any) -> int:
    """Return the samples of a batch of the trials: those of the loader, or fewer if they take long."""
    dataset: Any = loader.dataset
    length = len(dataset)
    dataset[draw.randrange(length)]  # the first one may be slow
    cpu, clock = time.thread_time(), time.perf_counter()
    dataset[draw.randrange(length)]
    cpu, clock = max(1e-9, time.thread_time() - cpu), max(1e-9, time.perf_counter() - clock)
    return max(1, min(loader.batch_size or 8, int(_BATCH_CPU_SECONDS / cpu), int(_BATCH_SECONDS / clock)))


def _batches(loader: DataLoader[Any], choice: Choice, indices: list[int], size: int) -> Iterator[Any]:
    """Return an iterator over batches that are made in this thread; raises if the settings are not supported."""
    common: Any = {"batch_size": size, "sampler": indices, "collate_fn": loader.collate_fn}
    from ...loader import DataLoader

    if choice.engine == "torch":  # the name in torch's module may be fastload's class
        kind: Any = next(kind for kind in DataLoader.__mro__ if kind.__module__.startswith("torch."))
        return iter(kind(loader.dataset, **common))
    if choice.fuse is True and "torchvision" not in sys.modules:  # importing it takes longer than all trials
        raise ValueError("the script does not use torchvision")
    from ...arguments import FusingArguments
    from ...engine.fusing import possible_plan
    from ...spec import part, spec_of

    settings: Any = {"fuse": choice.fuse, "seeding": choice.seeding, "cache": choice.cache}
    made: Any = DataLoader(loader.dataset, **common, **settings)
    if choice.fuse is True:
        plan = possible_plan(part(spec_of(made), FusingArguments))
        reason = plan if isinstance(plan, str) else None if plan.fused else plan.reason
        if reason is not None:
            raise ValueError(reason)
    return iter(made)
