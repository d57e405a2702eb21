"""Records how a worker makes a batch: its task, samples and collation. In all workers and in the main process.

The fetcher gets a dataset and a ``collate_fn`` that measure time; the dataset that the script sees, in ``worker_info``
or elsewhere, stays its own.
"""

from __future__ import annotations

import copy
import inspect
import threading
import time
from typing import Any

from ..clocks import RunQueue, ThreadClocks
from ..recorder import in_children
from ..ring import Kind
from .patching import drop_frame, hidden
from .samples import Batched, BatchedCall, BatchedDataset, Samples, Stream
from .session import Session
from .stages import StageHooks

# Small samples are not measured in every task (see samples.py). Of tasks below this mean time, in ns, one in 8 has all
# clocks read; before that all of the first ones, which are the whole of a short run.
_SHORT_TASK = 100_000_000
_FIRST_TASKS = 64
_ONE_TASK_IN = 8

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class _Thread(threading.local):
    clocks: ThreadClocks | None = None
    iterator: int = -1
    batch: int = -1
    worker: int = 0


class FetchHooks:
    """The hooks of one process.

    Args:
        session: of this process.
        stages: records what happens within samples; None: not recorded.
    """

    def __init__(self, session: Session, stages: StageHooks | None = None) -> None:
        self.session = session
        self.stages = stages
        self._recorder = session.recorder
        self._kinds: dict[Any, Any] = {}
        self._reset()
        in_children(self._reset)

    def _reset(self) -> None:
        self._thread = _Thread()

    def set_batch(self, iterator: int, batch: int, worker: int) -> None:
        """Set what this thread fetches next. ``iterator``: -1 if only the parent process knows."""
        here = self._thread
        here.iterator, here.batch, here.worker = iterator, batch, worker

    def clocks(self) -> ThreadClocks:
        """Return this thread's clocks."""
        clocks = self._thread.clocks
        if clocks is None:
            clocks = self._thread.clocks = ThreadClocks()
            for signal in clocks.missing:
                self._recorder.missing(signal, "the system does not provide it")
        return clocks

    def watch(self, fetcher: Any) -> Any:
        """Let one of torch's fetchers record what it does; returns it."""
        if not callable(getattr(type(fetcher), "fetch", None)):
            self._recorder.missing("samples and collation", f"there is no {type(fetcher).__name__}.fetch")
            return fetcher
        task = TaskRecorder(self)
        if hasattr(fetcher, "dataset_iter"):
            # torchdata looks for a state on the iterator itself, so one with a state is not wrapped.
            if any(_has_state(one) for one in (fetcher.dataset_iter, fetcher.dataset)):
                self._recorder.missing("samples of iterable datasets with a state", "they are not wrapped")
            else:
                fetcher.dataset_iter = task.stream(fetcher.dataset_iter)
        else:
            fetcher.dataset = task.wrap_dataset(fetcher.dataset)
        if fetcher.auto_collation:
            fetcher.collate_fn = task.collate(fetcher.collate_fn)
        fetcher._fastload_task = task
        fetcher.__class__ = self._recorded_kind(type(fetcher))
        return fetcher

    def _recorded_kind(self, kind: Any) -> Any:
        """Return a subclass of a fetcher class whose ``fetch`` is recorded.

        As an attribute of the fetcher itself, ``fetch`` would be a reference cycle that keeps the dataset alive.
        """
        found = self._kinds.get(kind)
        if found is None:
            fetch = kind.fetch

            @hidden
            def timed_fetch(fetcher: Any, index: Any) -> Any:
                task = fetcher._fastload_task
                task.begin()
                try:
                    return fetch(fetcher, index)
                except BaseException as error:
                    drop_frame(error)
                    raise
                finally:
                    here = self._thread  # in a forked child it is another one
                    task.end(here.iterator, here.batch, 0, here.worker)

            found = self._kinds[kind] = type(kind.__name__, (kind,), {"fetch": timed_fetch})
        return found


def _has_state(thing: Any) -> bool:
    """Whether something has a ``state_dict``, without running the script's ``__getattr__``."""
    return inspect.getattr_static(thing, "state_dict", None) is not None


class TaskRecorder:
    """Records the tasks of one worker."""

    def __init__(self, fetching: FetchHooks) -> None:
        self._fetching = fetching
        self._recorder = fetching.session.recorder
        self._samples: list[Samples] = []
        self._subsets: list[_Subset] = []
        self.is_recorded = False
        """A task is running, and is not part of another one."""
        self._is_outermost = False
        self._number = 0
        self._mean = 1e9
        self.reads_clocks = True
        """All clocks are read for this task; otherwise it is a short one."""
        self._has_samples = True
        self._run_queue = RunQueue()
        self._collated: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """A task begins; an earlier task that has not ended does not count."""
        for subset in self._subsets:
            subset.update()
        thread = self._fetching.session.thread
        if thread.nested:
            return
        self.is_recorded = True
        self._collated = None
        if thread.work is None:
            thread.work, self._is_outermost = self, True
        self._number = number = self._number + 1
        is_chosen = number <= _FIRST_TASKS or number % _ONE_TASK_IN == 0
        if is_chosen or self._has_samples:
            recorded = [samples.begin(is_chosen) for samples in self._samples]
            self._has_samples = any(recorded)
        self.reads_clocks = is_chosen or self._mean >= _SHORT_TASK
        if self.reads_clocks:
            self._clocks = self._fetching.clocks()
            self._before = self._clocks.read()
        else:
            self._run_queue.begin(self._fetching.clocks)
            self._cpu = _cpu()
        self._begun = _now()

    def end(self, iterator: int, batch: int, task: int, worker: int) -> None:
        """It has ended."""
        if not self.is_recorded:
            return
        ended = _now()
        begun = self._begun
        self.is_recorded = False
        if self._is_outermost:
            self._fetching.session.thread.work, self._is_outermost = None, False
        ring = self._recorder.ring()
        if self.reads_clocks:
            after = self._clocks.read()
            spent = after.since(self._before)
            cpu, runnable = spent.cpu, min(spent.runnable, ended - begun)  # it may have waited between two readings
            self._run_queue.set(self._clocks, after.runnable)
            ring.write(Kind.READ, 0, worker, begun, ended, spent.asked, spent.from_device, 0, spent.faults)
        else:
            cpu = _cpu() - self._cpu
            runnable = self._run_queue.end(self._fetching.clocks, ended - begun, cpu)
        if self._has_samples:
            for samples in self._samples:
                samples.end()
        self._write_collated(ring)
        ring.write(Kind.WORK, 0, worker, begun, ended, iterator, batch, cpu, runnable, task)
        self._mean = ended - begun if self._mean == 1e9 else 0.75 * self._mean + 0.25 * (ended - begun)

    def collated(self, begun: int, ended: int, cpu: int) -> None:
        """A batch was collated; it is written with the task, when the ring is in the caches."""
        self._write_collated(self._recorder.ring())  # an earlier one of the same task
        self._collated = begun, ended, cpu

    def _write_collated(self, ring: Any) -> None:
        if self._collated is not None:
            begun, ended, cpu = self._collated
            self._collated = None
            ring.write(Kind.COLLATE, 0, 0, begun, ended, cpu)

    # The methods below return a recorded replacement for their argument: see fastload.observe.Watch.

    def samples(self, dataset: Any) -> Any:
        """Wrap a dataset."""
        return self._wrap(BatchedDataset if callable(getattr(dataset, "__getitems__", None)) else Samples, dataset)

    def wrap_dataset(self, dataset: Any) -> Any:
        """Wrap the dataset of one of torch's fetchers; of a Subset, the dataset within."""
        from torch.utils.data import Subset

        if type(dataset) is not Subset:
            return self.samples(dataset)
        self._subsets.append(_Subset(dataset, self))
        return self._subsets[-1].copy

    def many(self, get: Any) -> Any:
        """Wrap a dataset's ``__getitems__``."""
        return self._wrap(BatchedCall, get)

    def fused(self, fused: Any) -> Any:
        """Wrap a fused dataset of fastload's."""
        return self._wrap(Batched, fused)

    def stream(self, iterator: Any) -> Any:
        """Wrap the iterator of an IterableDataset."""
        return self._wrap(Stream, iterator)

    def collate(self, collate: Any) -> Any:
        """Wrap a ``collate_fn``."""
        return _Collate(collate, self)

    def transform(self, name: str, function: Any) -> Any:
        """Wrap a transform of whole batches."""
        return _BatchTransform(function, self._recorder.name(name), self)

    def _wrap(self, kind: type[Samples], dataset: Any) -> Any:
        if not self._recorder.level:
            return dataset
        samples = kind(dataset, self._recorder, self._fetching.stages)
        self._samples.append(samples)
        return samples


class _Subset:
    """Has a copy of one of torch's Subsets, with a wrapped dataset; the script may change its own between tasks."""

    def __init__(self, subset: Any, task: TaskRecorder) -> None:
        self._subset = subset
        self._dataset = subset.dataset
        self.copy = copy.copy(subset)
        self.copy.dataset = task.wrap_dataset(subset.dataset)

    def update(self) -> None:
        """Copy what the script has changed; a new dataset is used, but not recorded."""
        if self._subset.indices is not self.copy.indices:
            self.copy.indices = self._subset.indices
        if self._subset.dataset is not self._dataset:
            self._dataset = self.copy.dataset = self._subset.dataset


class _Collate:
    """Wraps a ``collate_fn``."""

    def __init__(self, function: Any, task: TaskRecorder) -> None:
        self._function = function
        self._task = task

    @hidden
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        cpu = _cpu() if self._task.reads_clocks else -1
        begun = _now()
        try:
            return self._function(*arguments, **named)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if self._task.is_recorded:
                self._task.collated(begun, _now(), -1 if cpu < 0 else _cpu() - cpu)


class _BatchTransform:
    """Wraps a transform of whole batches, which is recorded as one sample of the task with one stage."""

    def __init__(self, function: Any, name: int, task: TaskRecorder) -> None:
        self._function = function
        self._name = name
        self._task = task

    @hidden
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        cpu = _cpu()
        begun = _now()
        try:
            return self._function(*arguments, **named)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if self._task.is_recorded:
                ended = _now()
                cpu = _cpu() - cpu
                ring = self._task._recorder.ring()
                ring.write(Kind.SAMPLE, 0, 0, begun, ended, -1, cpu, 1)
                ring.write(Kind.STAGE, self._name, 0, begun, ended, cpu)
