"""torch's ``DataLoader`` with fastload's engine: stores and checks the arguments, and begins iterations."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from . import observe
from .base import compat
from .base.checks import as_integer, check_epoch
from .base.users_line import warn_at_users_line
from .base.worker_kinds import WorkerMethod
from .engine.iteration import Iteration
from .engine.runtime import LoaderRuntime
from .errors import ConfigError, StateError
from .inject.fastload_hook import imported
from .options import OPTIONS, OnError, Options, Resident, Seeding, checked
from .sampling.epochs import Epochs
from .sampling.samplers import EpochBatchSampler, KeyedSampler
from .spec import decisions_of, sampling_of, spec_of

if TYPE_CHECKING:
    from .base.retry import Retry
    from .engine.statistics import Statistics
    from .run.defaults import Defaults
    from .workers.on_error import FailedSample

T = TypeVar("T", covariant=True)

_ACCELERATE = "accelerate.data_loader"
ADAPTED_LIBRARIES = (_ACCELERATE, "lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
"""Modules that :mod:`fastload.run.adapters` patches."""
_not_adapted = set(ADAPTED_LIBRARIES)


if TYPE_CHECKING:

    class _Base(compat.TorchDataLoader[T], Options):
        """Has an attribute for each of the options."""

else:
    _Base = compat.TorchDataLoader


class DataLoader(_Base[T]):
    """torch's ``DataLoader``, faster: the same arguments, batches, order, errors and attributes.

    Args:
        dataset: as in torch, like all arguments up to ``in_order``: a map-style or iterable dataset.
        batch_size: samples in a batch; None: the dataset's own batches, without collation.
        shuffle: whether each epoch has another random order.
        sampler: gives the indices of an epoch; excludes ``shuffle``.
        batch_sampler: gives lists of indices; excludes ``batch_size``, ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: worker processes or threads; 0: samples are loaded in ``next()``.
        collate_fn: makes a batch of a list of samples; None: torch's collation.
        pin_memory: whether batches are copied to page-locked memory; not needed with ``device``.
        drop_last: whether the last batch is left out if it is not full.
        timeout: seconds without a completed batch after which ``next()`` raises ``LoadTimeout``; 0: no limit.
        worker_init_fn: called in each worker with its number, before it loads.
        multiprocessing_context: how processes are started: ``"fork"``, ``"spawn"``, ``"forkserver"`` or a context.
        generator: what torch's samplers draw from; None: torch's global generator.
        prefetch_factor: batches that are loaded ahead for each worker; None: 2 with workers.
        persistent_workers: whether workers are kept for the next epoch.
        pin_memory_device: as in torch.
        in_order: False: batches are given as they are completed.
        worker_method: ``"multiprocessing"``, or ``"thread"``: workers are threads of this process. Threads pay off if
            the dataset spends its time in code that releases the GIL. ``"ray"``: actors of a Ray cluster, on any
            of its machines; with a ``seed`` the batches are the same, bit for bit, also where machines are lost.
        ray_options: options of the actors: Ray's (``num_cpus``, ``resources``, ``runtime_env`` and others), and
            ``placement_timeout``: see docs/ray.md.
        seed: None: order and random numbers are torch's, bit for bit. An integer of up to 128 bits: they depend only
            on it and on the epoch, which advances by itself.
        seeding: ``"torch"``: torch's random streams, and batch ``i`` from worker ``i % num_workers``. ``"sample"``:
            ``random``, NumPy and torch are seeded before each sample, from its own key. None: keys with a ``seed``, a
            sampler of fastload's or what needs them, else streams: see docs/determinism.md.
        chunk_size: samples in a task. None: with keys chosen by the measured cost of a sample, else all of a batch.
            ``"batch"``: whole batches, for datasets that load neighbours together.
        overlap_epochs: whether the first batches of the next epoch are loaded while this one ends. Needs persistent
            workers, and an integer ``seed`` or one of fastload's samplers.
        device: ``"cuda"`` or another device: batches are copied there ahead of time, on a separate stream.
            ``"cpu"``: the same stages without a copy. None: batches stay on the host.
        prefetch_to_device: batches on the device in addition to the current one; at least 1.
        keep_on_host: parts that are not copied, by their path: ``("lengths",)``, ``(1,)``, ``("meta.lengths",)``.
        channels_last: whether four-dimensional tensors get torch's channels-last format on the device.
        fixed_buffers: whether batches use ``prefetch_to_device + 2`` fixed buffers in turn, for CUDA graphs. A batch is
            then valid until the next one is requested, and all must have the same shapes.
        batch_transform: a function of the whole batch, called ahead of time on the device (in ``next()`` without one).
            Those of ``fastload.transforms`` draw the parameters of each sample from its key.
        resident: ``"device"`` or ``"host"``: the dataset is read once, kept in that memory, and batches are gathered
            there. ``"auto"``: the device, else the host, if half of its memory stays free, else neither. For datasets
            without random numbers, whose samples are tensors, numbers and strings of constant shape.
        fuse: ``"auto"``: JPEG and PNG files that a sample opens with Pillow are decoded late, and only as far as their
            pixels are used; the samples are bit-identical. ``True``: torchvision's datasets are loaded
            with its crops, flips and conversions in fewer steps, with the same result for the same parameters.
            ``False``: neither.
        on_error: a sample that raises an exception is an error (``"raise"``), left out of its batch (``"skip"``), or
            replaced by another one, chosen by its key (``"replace"``). :func:`fastload.retry`: first tried again.
        max_errors: samples that may fail in one epoch on one rank; above that ``DatasetError``.
        cache: memory for the coefficients of JPEG files, from the first epoch on, shared by the workers and loaders of
            this process and the ranks of this machine: a size as ``"64GB"`` or in bytes, or ``"auto"``: half of what
            is free. Or a folder on a local disk, as ``"/local/nvme/photos"``, which later runs share too. Later epochs
            decode them sooner, to the same bits, and read only the files' headers. None: nothing is kept. See
            docs/images.md.
        cache_size: for a folder: the most that it may take, as ``"200GiB"`` or in bytes.
        worker_threads: samples that each worker process loads at a time, in threads, where a sample waits for storage;
            with a ``seed`` the same bits. Without processes (``num_workers=0``): worker threads alone. The dataset must
            be thread-safe.

    Arguments that torch does not have are attributes of the same name. Batches stay valid as long as you hold any
    tensor, view or array of them. With torch's samplers and no ``seed`` they are torch's, bit for bit, but for:

    * With keys (``seeding``) augmentation is the sample's own, and a batch is not bound to one worker: a dataset that
      uses ``worker_info.id``, or has generators seeded from ``worker_info.seed`` or ``torch.initial_seed()``, sees
      other values. Without workers the global generators are restored after each batch; threads have their own.
    * Tensors of different dtypes are promoted to a common dtype, with and without workers. torch's workers use the
      first tensor's dtype, which can lose digits.
    * An exception of the sampler is raised after the batches before it.
    * What hangs or is silently lost in torch is an error: a result or an exception that cannot be pickled,
      ``StopIteration`` from a map-style ``__getitem__`` or from ``collate_fn``.

    Raises:
        ConfigError: an argument that torch does not have is out of its range, or cannot be combined with another.
        ValueError: as torch, for torch's arguments.
        TypeError: as torch, for torch's arguments.
    """

    _this_rank_only = False
    """See ``fastload.spec.Spec.this_rank_only``."""

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_method: WorkerMethod = "multiprocessing",
        ray_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        seeding: Seeding = None,
        chunk_size: int | Literal["batch"] | None = None,
        overlap_epochs: bool = True,
        device: torch.device | str | int | None = None,
        prefetch_to_device: int = 2,
        keep_on_host: Collection[str | int] = (),
        channels_last: bool = False,
        fixed_buffers: bool = False,
        batch_transform: Callable[[Any], Any] | None = None,
        resident: Resident | None = None,
        fuse: bool | str = "auto",
        on_error: OnError | Retry = "raise",
        max_errors: int = 100,
        cache: str | int | os.PathLike[str] | None = None,
        cache_size: str | int | None = None,
        worker_threads: int = 1,
    ) -> None:
        given = locals()
        own = {name: given[name] for name in OPTIONS}
        _begin_report()
        adapt_imported()
        vars(self).update(own)  # attributes of the same names
        self._runtime, self._epochs = LoaderRuntime(), Epochs()
        if worker_method == "ray":  # torch would compare their number with the cores of this machine
            vars(self)["check_worker_number_rationality"] = bool
        data: Any = dataset
        own_order = sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset)
        if isinstance(as_integer(seed), int) and shuffle and own_order:
            shuffle, sampler = None, KeyedSampler(data, as_integer(seed), batch_size)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._check_own_arguments()  # after torch's own checks
        if isinstance(batch_sampler, EpochBatchSampler):
            # Where torch has the dataset's own order: Lightning shards what is no DistributedSampler.
            vars(self)["sampler"] = batch_sampler.sampler
            batch_sampler.check_dataset(dataset)
        for observer in tuple(observe.on_construction):
            observer(self)

    def __len__(self) -> int:
        batches: Any = self.batch_sampler
        if not isinstance(batches, EpochBatchSampler):
            return super().__len__()
        from .sampling.resumed import current_epoch

        return batches.num_batches(current_epoch(self._epochs, sampling_of(self)))

    def __getstate__(self) -> dict[str, Any]:
        # A copy, pickled or not, begins its own life: its close() must not end this loader's workers. A persistent
        # iterator stays, and says that it cannot be pickled, as torch's does.
        return {**vars(self), "_runtime": LoaderRuntime(), "_epochs": self._epochs.copied()}

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        vars(twin).update(self.__getstate__(), _iterator=None)
        return twin

    @property
    def multiprocessing_context(self) -> Any:
        """As in torch."""
        # Accelerate asks for it where it makes a loader of this one.
        if _ACCELERATE in _not_adapted and sys._getframe(1).f_globals.get("__name__") == _ACCELERATE:
            warn_at_users_line(
                "Accelerate makes torch's DataLoader of this one, without fastload's engine and arguments, because it "
                "was imported after the loader was made: in prepare() or skip_first_batches(). Import accelerate "
                "before the loader is made, or call fastload.install() first"
            )
        return super().multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: BaseContext | str | None) -> None:
        of_torch: Any = compat.TorchDataLoader.multiprocessing_context
        of_torch.fset(self, context)

    def _check_own_arguments(self) -> None:
        defaults = argument_defaults()
        try:
            asked = checked(spec_of(self), defaults.changed)
            if asked.has_features:
                from .engine.features import check

                check(asked)
        except ConfigError as error:
            defaults.explain(error)
            raise
        vars(self).update({name: getattr(asked, name) for name in OPTIONS})
        if self.worker_method == "ray" and not self.num_workers:
            # No error: that is how a script is debugged, and one argument may be meant for all of its loaders.
            warn_at_users_line(
                "worker_method='ray' with num_workers=0: there are no workers, and this process loads the samples "
                "itself. Give the number of Ray's workers (num_workers=8, say), or leave worker_method out"
            )

    def _facts(self) -> list[tuple[str, str]]:
        from .engine.facts import facts_of

        return facts_of(decisions_of(self), self._runtime)

    def _get_iterator(self) -> Any:
        for observer in tuple(observe.on_iteration):
            observer(self)
        if self.resident is None and self.num_workers:
            self.check_worker_number_rationality()
        resume = self._epochs.resume
        try:
            return Iteration(self, self._epochs, self._runtime)
        except StateError as error:
            if resume is None or resume.begin_anew is None:
                raise
            resume.begin_anew(error)
        self._epochs.resume = None
        return Iteration(self, self._epochs, self._runtime)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, and of samplers that have ``set_epoch``.

        With an integer ``seed`` or one of fastload's samplers it is not needed: epochs count 0, 1, ... by themselves.

        Args:
            epoch: 0 to 2**63 - 1.
        """
        epoch = check_epoch(epoch)
        self._epochs.next = epoch
        told: list[Any] = []
        for owner in spec_of(self).sampling.samplers:
            setter = getattr(owner, "set_epoch", None)
            if callable(setter) and all(owner is not other for other in told):
                told.append(owner)
                setter(epoch)

    @property
    def batch_params(self) -> Any:
        """The parameters that ``batch_transform`` drew for the last batch that the loop received.

        Tensors [N, ...] on the CPU, as ``batch_transform(images, params=...)`` takes them; in a dict with the name of
        each member for a ``Compose``.

        Raises:
            ConfigError: ``batch_transform`` is not one of ``fastload.transforms``, or there was no batch yet.
        """
        from .transforms.batches import params_of

        last = self._epochs.last
        return params_of(self.batch_transform, None if last is None else last.draws)

    def statistics(self) -> Statistics:
        """Return numbers about what the loader has done so far: batches, slots, decoded images, time waited."""
        from .engine.statistics import statistics_of

        return statistics_of(decisions_of(self), self._runtime)

    def failed_samples(self) -> list[FailedSample]:
        """Return the last ``max_errors`` samples that could not be loaded, and were left out or replaced.

        They belong to batches that the loop received; with ``device`` or ``batch_transform`` also to those ahead.
        """
        failures = self._runtime.counts.failures
        return [] if failures is None else list(failures.recent)

    def explain(self) -> str:
        """Return a text that says how this loader works with its dataset and arguments, and why."""
        return "\n".join(f"{name:<12}{words}" for name, words in self._facts())

    def _repr_html_(self) -> str:
        """Return what ``explain()`` says, for a notebook."""
        from .base.console import as_html, labelled

        return as_html(labelled(self._facts()))

    def close(self) -> None:
        """Stop all workers of this loader now, and free resident data.

        Iterations in progress end. The loader can be iterated again.
        """
        for iterator in list(self._runtime.iterators):
            iterator._shutdown_workers()
        self._iterator = None
        self._runtime.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration begun last: after the batches that the loop received.

        With fastload's orders it takes 150 bytes, is the same on all ranks, and can be loaded on any number of ranks
        and workers. With other samplers it contains the states of their generators (5 to 30 kB). The global generators
        are not part of it. It records whether samples have keys.

        With an IterableDataset it contains what the ``state_dict`` of each replica, or of its iterator, returned, and
        the batches since. If that costs more than 1 % of a batch's time, the first state counts from the epoch's start.

        Raises:
            StateError: an IterableDataset has a ``state_dict`` that fails, or returns what cannot be pickled.
        """
        from .engine.state import state_now

        return state_now(sampling_of(self), self._epochs, keeps_order=self.in_order or not self.num_workers)

    def load_state_dict(self, state: dict[str, Any], *, mixture: Literal["continue"] | None = None) -> None:
        """Continue with the next iteration where a state was taken.

        With fastload's orders this is immediate, at any step. For other samplers the index batches before it are drawn
        again, without loading samples. Without a ``seed`` the order goes on exactly, and in the middle of an epoch
        augmentation is drawn anew, with a warning, as from a state of the other ``seeding``. An IterableDataset whose
        place is not in the state is read again from its beginning, with a warning. If another epoch is set before the
        next iteration, that epoch begins at its start.

        Args:
            state: what ``state_dict`` returned.
            mixture: ``"continue"``: other sources or weights of a ``Mixture`` than it had hold from there on, and each
                source goes on where it was. None: that is an error.

        Raises:
            StateError: it is no such state, or belongs to another loader. This loader is not changed.
        """
        from .engine.state import resume_from

        self._epochs.wants_states = True
        resume = resume_from(sampling_of(self), state, mixture)
        kept: Any = self._iterator
        if kept is not None and (state["kind"] != "position" or decisions_of(self).assigned):
            # Persistent workers have another base seed, or replicas at another place.
            kept._shutdown_workers()
            self._iterator = None
        self.set_epoch(resume.epoch)
        self._epochs.resume = resume


@functools.cache
def _begin_report() -> None:
    """Begin the report at exit, if it is asked for."""
    if os.environ.get("FASTLOAD_REPORT") == "1" or "FASTLOAD_RUN" in os.environ:
        from .run import exit_report

        exit_report.start()


def adapt_imported() -> None:
    """Adapt Accelerate and Lightning to this class, where they are imported."""
    for name in tuple(_not_adapted):
        library = imported(name)
        if library is not None:
            adapt(library)


def adapt(library: ModuleType) -> None:
    """Adapt one of :data:`ADAPTED_LIBRARIES` to this class, once."""
    if library.__name__ in _not_adapted:
        _not_adapted.discard(library.__name__)
        from .run import adapters

        adapters.adapt(library, DataLoader)


@functools.cache
def argument_defaults() -> Defaults:
    """Return what ``fastload.install`` and the environment change: defaults of fastload's own arguments."""
    from .run.defaults import Defaults

    return Defaults(DataLoader)


if "FASTLOAD_LOADER" in os.environ:
    argument_defaults().read_environment()
