"""Hears how a worker makes a batch: its task, its samples, collation. In all workers and in the main process.

What fetches gets a dataset and a ``collate_fn`` that tell the time; the dataset that the user sees, in ``worker_info``
or anywhere else, is the user's.
"""

from __future__ import annotations

import copy
import inspect
import threading
import time
from typing import Any

from ..clocks import RunQueue, ThreadClocks
from ..recorder import Recorder, in_children
from ..ring import Kind
from .iterators import Nesting
from .patching import leave, unseen
from .samples import Fused, Many, ManySamples, Samples, Stream
from .stages import Stages

# Of small samples not every task's are measured (see samples.py), and of tasks below this mean time, in ns, not every
# one's reading: after the first ones, which are all the work of a short run, one in 8.
_SHORT_TASK = 100_000_000
_FIRST_TASKS = 64
_ONE_TASK_IN = 8

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class _Thread(threading.local):
    """What a thread is at."""

    clocks: ThreadClocks | None = None
    iterator: int = -1
    batch: int = -1
    worker: int = 0


class Fetching:
    """The hooks of one process.

    Args:
        recorder: where records go.
        nesting: what each thread is at.
        stages: hears what happens within samples; None: nobody does.
    """

    def __init__(self, recorder: Recorder, nesting: Nesting, stages: Stages | None = None) -> None:
        self._recorder = recorder
        self._stages = stages
        self._kinds: dict[Any, Any] = {}
        self.nesting = nesting
        """What each thread is at."""
        self._forget()
        in_children(self._forget)

    def _forget(self) -> None:
        """The threads' clocks are the parent's."""
        self._thread = _Thread()

    def at(self, iterator: int, batch: int, worker: int) -> None:
        """Say what this thread will fetch next. ``iterator``: -1 where only the parent knows."""
        here = self._thread
        here.iterator, here.batch, here.worker = iterator, batch, worker

    def clocks(self) -> ThreadClocks:
        """Return this thread's clocks."""
        clocks = self._thread.clocks
        if clocks is None:
            clocks = self._thread.clocks = ThreadClocks()
            for signal in clocks.missing:
                self._recorder.missing(signal, "the system does not tell")
        return clocks

    def watch(self, fetcher: Any) -> Any:
        """Let a fetcher of torch's tell what it does; return it."""
        if not callable(getattr(type(fetcher), "fetch", None)):
            self._recorder.missing("samples and collation", f"there is no {type(fetcher).__name__}.fetch")
            return fetcher
        task = Task(self, self._recorder)
        if hasattr(fetcher, "dataset_iter"):
            # Who saves its state (torchdata's) asks what it is, so it stays what it is.
            if any(_has_state(one) for one in (fetcher.dataset_iter, fetcher.dataset)):
                self._recorder.missing("samples of iterable datasets with a state", "they are not stood in for")
            else:
                fetcher.dataset_iter = task.stream(fetcher.dataset_iter)
        else:
            fetcher.dataset = task.within(fetcher.dataset)
        if fetcher.auto_collation:
            fetcher.collate_fn = task.collate(fetcher.collate_fn)
        fetcher._fastload_task = task
        fetcher.__class__ = self._heard_kind(type(fetcher))
        return fetcher

    def _heard_kind(self, kind: Any) -> Any:
        """Return a class of fetchers whose ``fetch`` is heard.

        Were it an attribute of the fetcher's own, that would hold itself, and its dataset, till garbage is collected.
        """
        found = self._kinds.get(kind)
        if found is None:
            fetch = kind.fetch

            @unseen
            def timed_fetch(fetcher: Any, index: Any) -> Any:
                task = fetcher._fastload_task
                task.begin()
                try:
                    return fetch(fetcher, index)
                except BaseException as error:
                    leave(error)
                    raise
                finally:
                    here = self._thread  # in a child that was forked it is another one
                    task.end(here.iterator, here.batch, 0, here.worker)

            found = self._kinds[kind] = type(kind.__name__, (kind,), {"fetch": timed_fetch})
        return found

    def task(self) -> Task:
        """Return what hears the tasks of one worker of ours."""
        return Task(self, self._recorder)

    @property
    def stages(self) -> Stages | None:
        """What hears the stages within samples."""
        return self._stages


def _has_state(thing: Any) -> bool:
    """Say whether something has a ``state_dict``, without running a ``__getattr__`` of the script's."""
    return inspect.getattr_static(thing, "state_dict", None) is not None


class Task:
    """Hears what one worker does, a task at a time.

    Args:
        fetching: of its process.
        recorder: where records go.
    """

    def __init__(self, fetching: Fetching, recorder: Recorder) -> None:
        self._fetching = fetching
        self._recorder = recorder
        self._samples: list[Samples] = []
        self._subsets: list[_Subset] = []
        self.is_heard = False
        """A task is under way, and not a part of another one."""
        self._is_outermost = False
        self._number = 0
        self._mean = 1e9
        self.reads = True
        """All of this task's clocks are read; else it is a short one."""
        self._hears = True
        self._run_queue = RunQueue()
        self._collated: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """A task begins; what was begun before and has not ended does not count."""
        for subset in self._subsets:
            subset.look()
        thread = self._fetching.nesting.thread
        if thread.deaf:
            return
        self.is_heard = True
        self._collated = None
        if thread.at is None:
            thread.at, self._is_outermost = self, True
        self._number = number = self._number + 1
        is_one = number <= _FIRST_TASKS or number % _ONE_TASK_IN == 0
        if is_one or self._hears:
            heard = [samples.begin(is_one) for samples in self._samples]
            self._hears = any(heard)
        self.reads = is_one or self._mean >= _SHORT_TASK
        if self.reads:
            self._clocks = self._fetching.clocks()
            self._before = self._clocks.read()
        else:
            self._run_queue.begin(self._fetching.clocks)
            self._cpu = _cpu()
        self._begun = _now()

    def end(self, iterator: int, batch: int, task: int, worker: int) -> None:
        """It has ended."""
        if not self.is_heard:
            return
        ended = _now()
        begun = self._begun
        self.is_heard = False
        if self._is_outermost:
            self._fetching.nesting.thread.at, self._is_outermost = None, False
        ring = self._recorder.ring()
        if self.reads:
            after = self._clocks.read()
            spent = after.since(self._before)
            cpu, runnable = spent.cpu, min(spent.runnable, ended - begun)  # it may have waited between two readings
            self._run_queue.know(self._clocks, after.runnable)
            ring.write(Kind.READ, 0, worker, begun, ended, spent.asked, spent.from_device, 0, spent.faults)
        else:
            cpu = _cpu() - self._cpu
            runnable = self._run_queue.end(self._fetching.clocks, ended - begun, cpu)
        if self._hears:
            for samples in self._samples:
                samples.end()
        self._write_collated(ring)
        ring.write(Kind.WORK, 0, worker, begun, ended, iterator, batch, cpu, runnable, task)
        self._mean = ended - begun if self._mean == 1e9 else 0.75 * self._mean + 0.25 * (ended - begun)

    def collated(self, begun: int, ended: int, cpu: int) -> None:
        """A batch was made of samples; it is written down with the task, where the records are in the caches."""
        self._write_collated(self._recorder.ring())  # another one of the same task
        self._collated = begun, ended, cpu

    def _write_collated(self, ring: Any) -> None:
        if self._collated is not None:
            begun, ended, cpu = self._collated
            self._collated = None
            ring.write(Kind.COLLATE, 0, 0, begun, ended, cpu)

    def samples(self, dataset: Any) -> Any:
        """Return what to ask for samples in the place of a dataset."""
        if not self._recorder.level:
            return dataset
        many = callable(getattr(dataset, "__getitems__", None))
        return self._heard(ManySamples if many else Samples, dataset)

    def within(self, dataset: Any) -> Any:
        """Return the same for a fetcher of torch's, whose Subset asks its own dataset for one after the other."""
        from torch.utils.data import Subset

        if type(dataset) is not Subset:
            return self.samples(dataset)
        self._subsets.append(_Subset(dataset, self))
        return self._subsets[-1].copy

    def many(self, get: Any) -> Any:
        """Return what to call in the place of a dataset's ``__getitems__``."""
        return self._heard(Many, get) if self._recorder.level else get

    def fused(self, fused: Any) -> Any:
        """Return what to ask in the place of a fused dataset of ours."""
        return self._heard(Fused, fused) if self._recorder.level else fused

    def stream(self, iterator: Any) -> Any:
        """Return what to ask in the place of the iterator of an IterableDataset."""
        return self._heard(Stream, iterator) if self._recorder.level else iterator

    def collate(self, collate: Any) -> Any:
        """Return what to call in the place of a ``collate_fn``."""
        return _Collation(collate, self)

    def transform(self, name: str, function: Any) -> Any:
        """Return what to call in the place of a transform of whole batches."""
        return _Transform(function, self._recorder.name(name), self._recorder, self)

    def _heard(self, kind: type[Samples], dataset: Any) -> Samples:
        samples = kind(dataset, self._recorder, self._fetching.stages)
        self._samples.append(samples)
        return samples


class _Subset:
    """Has what stands for a Subset of torch's: a copy of it, whose dataset is stood in for.

    Args:
        subset: the script's, which may change it between tasks.
        task: hears the dataset.
    """

    def __init__(self, subset: Any, task: Task) -> None:
        self._subset = subset
        self._dataset = subset.dataset
        self.copy = copy.copy(subset)
        self.copy.dataset = task.within(subset.dataset)

    def look(self) -> None:
        """Take what the script's has by now; another dataset than at first is not heard."""
        if self._subset.indices is not self.copy.indices:
            self.copy.indices = self._subset.indices
        if self._subset.dataset is not self._dataset:
            self._dataset = self.copy.dataset = self._subset.dataset


class _Collation:
    """Stands for what makes a batch of samples."""

    def __init__(self, function: Any, task: Task) -> None:
        self._function = function
        self._task = task

    @unseen
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        cpu = _cpu() if self._task.reads else -1
        begun = _now()
        try:
            return self._function(*arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        finally:
            if self._task.is_heard:
                self._task.collated(begun, _now(), -1 if cpu < 0 else _cpu() - cpu)


class _Transform:
    """Stands for what changes a whole batch: one sample of the task, and one stage of it."""

    def __init__(self, function: Any, name: int, recorder: Recorder, task: Task) -> None:
        self._function = function
        self._name = name
        self._recorder = recorder
        self._task = task

    @unseen
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        cpu = _cpu()
        begun = _now()
        try:
            return self._function(*arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        finally:
            if self._task.is_heard:
                ended = _now()
                cpu = _cpu() - cpu
                ring = self._recorder.ring()
                ring.write(Kind.SAMPLE, 0, 0, begun, ended, -1, cpu, 1)
                ring.write(Kind.STAGE, self._name, 0, begun, ended, cpu)


__all__ = ["Fetching", "Task"]
