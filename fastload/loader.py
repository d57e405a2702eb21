"""``DataLoader``: checks the arguments and composes the stages. The only file that knows them all."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Collection, Iterable
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from . import observe
from .base import compat
from .engine.iteration import Iteration
from .engine.sources import Runtime
from .errors import ConfigError
from .inject.fastload_hook import after_import
from .sampling.epochs import Epochs, samplers_of
from .sampling.samplers import EpochBatchSampler, KeyedSampler, as_integer, check_epoch, check_seed
from .spec import spec_of, with_arguments_of
from .workers.pool import WORKER_MODULES

if TYPE_CHECKING:
    from .engine.statistics import Statistics
    from .run.defaults import Defaults
    from .transforms.draws import Draws
    from .workers.on_error import FailedSample

T = TypeVar("T", covariant=True)

# What fastload.run.adapters knows.
ADAPTED_LIBRARIES = (
    "accelerate.data_loader",
    "lightning.pytorch.loops.fit_loop",
    "pytorch_lightning.loops.fit_loop",
)

WorkerMethod = Literal["multiprocessing", "thread"]
Seeding = Literal["sample", "torch"]
Resident = Literal["device", "host", "auto"]
OnError = Literal["raise", "skip", "replace"]
Decoder = Literal["auto", "native", "torchvision", "pillow", "nvjpeg"]


class DataLoader(compat.TorchDataLoader[T]):
    """torch's ``DataLoader``, faster: the same arguments, batches, order, errors and attributes.

    ::

        sampling -> plan -WorkItem-> workers -rows in a slot-> delivery -> training loop

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers, pin_memory_device,
        in_order: torch's, with torch's meaning.
        worker_method: ``"multiprocessing"``, or ``"thread"``: the workers are threads of this process, for datasets
            whose time goes into code that releases the GIL.
        seed: None: the sampling order is torch's for the same generator, and the samples' randomness comes from
            torch's base seed, or from the seed of a sampler of fastload's. An integer (up to 128 bits): order and
            randomness depend on it and on the epoch alone, and the epoch advances by itself.
        seeding: ``"sample"``: the global generators are seeded anew before each sample, from a key of its own, so
            that augmentation does not depend on the number of workers. ``"torch"``: torch's streams for each worker,
            and torch's assignment of batch ``i`` to worker ``i % num_workers``.
        chunk_size: samples a task. None: chosen from the measured cost of a sample. ``"batch"``: whole batches, for
            datasets that profit from neighbours.
        overlap_epochs: with persistent workers, an integer ``seed`` (or a sampler of fastload's) and a known order: the
            first batches of the next epoch are loaded while this one ends. If another epoch is set, they are dropped.
        device: where batches are to be, ``"cuda"`` or any other of torch's: they are copied there over a stream of
            their own while the steps before them run. ``pin_memory`` has no part in it then. The host waits for the
            device only where the loop is more than ``prefetch_to_device + 1`` steps ahead of it, which bounds memory.
            ``"cpu"``: the same stages without a copy. None: batches stay where they are.
        prefetch_to_device: batches on the device beyond the one given out; at least 1.
        keep_on_host, channels_last, fixed_buffers: see :func:`fastload.prefetch`.
        batch_transform: what is done with whole batches, on the device, ahead of time: any callable that takes a batch
            and returns one. Those of :mod:`fastload.transforms` draw parameters for each sample from its own key, so
            that they do not depend on the batch, the workers or the ranks. A function of yours runs inside of
            ``next()``, and so under your ``torch.autocast`` if that is on there, as any function that you call.
        resident: read the dataset once, at the first iteration, keep it in memory and gather batches from there:
            ``"device"`` (the memory of ``device``), ``"host"``, or ``"auto"``: the first of the two with twice the
            room, or neither. Order and parameters are those that there would be without it; the workers only read.
            For datasets of tensors, numbers and strings of one shape that draw no random numbers, with torch's
            default collation; each rank keeps all of it. :meth:`close` gives the memory back.
        on_error: what is done with a sample that the dataset raises an exception for. ``"raise"``: torch's way; a note
            on the exception names the index, and the file where it is known. ``"skip"``: it is left out; its batch is
            shorter, and not given out if nothing is left of it. ``"replace"``: another sample of those that the sampler
            gives stands in for it, chosen by the sample's key, so that batches keep their sizes, and are the same for
            any number of workers and ranks. See :meth:`failed_samples`.
        max_errors: samples that may fail in one epoch on one rank; above that :class:`~fastload.DatasetError`.
        fuse: ``"auto"``: JPEG files that a sample opens through Pillow are decoded late, and only as far as their
            pixels are used. The samples are those of ``False``, bit for bit. Within ``__getitem__`` such an image is
            of a subclass of ``PIL.Image.Image``. ``True``: make the samples of a torchvision dataset with torchvision
            transforms in fewer steps, the same as ever given the same parameters; these come from each sample's key.
            With a ``device`` the last steps are done there, before the ``batch_transform``. What is not known stays as
            it is, with images decoded late; :meth:`explain` says what is done, and why not more. ``False``: neither.
        decoder: what ``fuse`` decodes files with, all to the same pixels: ``"native"`` (fastload's own library),
            ``"torchvision"``, ``"pillow"``, or ``"auto"``: native where it is available, else Pillow. What a decoder
            cannot do is left to Pillow; :meth:`statistics` counts it. Or ``"nvjpeg"``, with ``device="cuda"``: workers
            read files and draw crops, and the device decodes whole batches. Its pixels are close to Pillow's, and not
            the same. Not verified: no GPU.

    Where it differs from torch, on purpose:

    * A batch is not bound to one worker, so a dataset that looks at ``worker_info.id``, or keeps generators of its
      own seeded from ``worker_info.seed`` or ``torch.initial_seed()``, sees another pattern. ``seeding="torch"``
      gives torch's. Nor is a batch loaded before its first sample is copied: a dataset that returns the same buffer
      for every sample gives its samples here, where torch repeats the last.
    * The randomness of augmentation belongs to the sample, so it differs from torch's streams. It is seeded with
      ``num_workers=0`` too, where the global generators get their state back after each batch. Worker threads draw
      from generators of their own, and leave the global ones alone.
    * Tensors that differ in dtype within a batch are collated to the dtype that torch promotes them to, as it does with
      ``num_workers=0``, for any number of workers. torch's workers take the first tensor's dtype: there a float32
      before a float64 cuts off the other's digits, uint8 before int64 wraps around, and int64 before float32 is an
      error.
    * An exception of the sampler is raised at its own place, after the batches before it.
    * What hangs or is lost in silence in torch is an error here: a result that cannot be pickled, an exception of a
      class that cannot be pickled, ``StopIteration`` from a map-style ``__getitem__`` or from ``collate_fn``.

    Batches are yours: they stay valid as long as you hold any tensor, view or array of them.

    Raises:
        ConfigError: an argument of ours is out of its range, or cannot be combined with another.
        ValueError, TypeError: as torch.
    """

    _this_rank_only = False
    """See :attr:`fastload.spec.Spec.this_rank_only`."""

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
        seed: int | None = None,
        seeding: Seeding = "sample",
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
        on_error: OnError = "raise",
        max_errors: int = 100,
        decoder: Decoder = "auto",
    ) -> None:
        _follow_libraries()
        self.worker_method = worker_method
        self.seed = seed = as_integer(seed)
        self.seeding = seeding
        self.chunk_size = chunk_size
        self.overlap_epochs = overlap_epochs
        self.device = device
        self.prefetch_to_device = prefetch_to_device
        self.keep_on_host = keep_on_host
        self.channels_last = channels_last
        self.fixed_buffers = fixed_buffers
        self.batch_transform = batch_transform
        self.resident = resident
        self.fuse = fuse
        self.on_error = on_error
        self.max_errors = as_integer(max_errors)
        self.decoder = decoder
        self._runtime, self._epochs = Runtime(), Epochs()
        shuffle, sampler = _by_seed(dataset, shuffle, sampler, batch_sampler, seed)
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
        observe.notify(observe.on_construction, self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, pickled or not, begins its own life: its close() must not end this loader's workers. A persistent
        # iterator stays, and says that it cannot be pickled, as torch's does.
        return {**vars(self), "_runtime": Runtime(), "_epochs": self._epochs.copied()}

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        vars(twin).update(self.__getstate__(), _iterator=None)
        return twin

    def _check_own_arguments(self) -> None:
        try:
            _check(self.worker_method, self.seed, self.seeding, self.chunk_size, self.multiprocessing_context)
            self._check_device_stage()
            if self.on_error != "raise" or type(self.max_errors) is not int or self.max_errors < 0:
                from .workers.on_error import check_on_error

                check_on_error(with_arguments_of(self))
            if self.fuse != "auto" or self.decoder != "auto":  # last: it goes by the others
                from .engine.fusing import check_can_fuse

                check_can_fuse(with_arguments_of(self))
        except ConfigError as error:
            argument_defaults().explain(error)
            raise

    def _check_device_stage(self) -> None:
        if self.device is None and self.batch_transform is None and self.resident is None and self._stays_on_host():
            return
        from .device.prefetch import check_device_arguments

        check_device_arguments(with_arguments_of(self))

    def _stays_on_host(self) -> bool:
        """Whether no argument of the device stage was given."""
        given = (self.prefetch_to_device, self.keep_on_host, self.channels_last, self.fixed_buffers)
        return list(map(type, given)) == [int, tuple, bool, bool] and given == (2, (), False, False)

    def _batch_on_host(self) -> tuple[Any, Callable[[int], Draws]]:
        from .engine.first_batch import batch_on_host

        return batch_on_host(self, self._epochs)

    def _get_iterator(self) -> Any:
        observe.notify(observe.on_iteration, self)
        if self.resident is None and self.num_workers:
            self.check_worker_number_rationality()
        return Iteration(self, spec_of(self), self._epochs, self._runtime)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, for loaders with an integer ``seed``. Without it they count: 0, 1, ...

        The sampler's own ``set_epoch`` is called too, where it has one.
        """
        epoch = check_epoch(epoch)
        self._epochs.next = epoch
        told: list[Any] = []
        for owner in samplers_of(with_arguments_of(self)):
            setter = getattr(owner, "set_epoch", None)
            if callable(setter) and all(owner is not other for other in told):
                told.append(owner)
                setter(epoch)

    @property
    def batch_params(self) -> Any:
        """The parameters that the ``batch_transform`` drew for the batch given out last.

        As ``batch_transform(images, return_params=True)`` gives them and ``params=`` takes them: tensors [N, ...] of
        the CPU, in a dict with the name of each member for a ``Compose``.

        Raises:
            ConfigError: the ``batch_transform`` is none of :mod:`fastload.transforms`, or no batch was given out yet.
        """
        from .transforms.batches import params_of

        return params_of(self.batch_transform, None if self._epochs.last is None else self._epochs.last.draws)

    def statistics(self) -> Statistics:
        """Return what the loader decided and did so far."""
        from .engine.statistics import statistics_of

        return statistics_of(with_arguments_of(self), self._runtime)

    def failed_samples(self) -> list[FailedSample]:
        """Return the samples that could not be loaded and were left out or replaced: the last ``max_errors`` of them.

        Those of batches that were given out; with ``device`` or ``batch_transform`` also of those that wait there.
        """
        failures = self._runtime.counts.failures
        return [] if failures is None else list(failures.recent)

    def explain(self) -> str:
        """Return, in words, how this loader works with its dataset and arguments, and why."""
        from .engine.facts import explain

        return explain(spec_of(self), self.statistics(), self._runtime)

    def close(self) -> None:
        """End all workers of this loader now, and let go of resident data and page-locked memory.

        Iterations that are under way end; the loader can be used again.
        """
        for iterator in list(self._runtime.iterators):
            iterator._shutdown_workers()
        self._iterator = None
        self._runtime.close()

    def state_dict(self) -> dict[str, Any]:
        """Return where this loader is: what its user was given, not what was loaded ahead.

        With an integer ``seed``, or a sampler of fastload's, around the dataset's own order or fastload's: about 200
        bytes, the same on all ranks; :meth:`load_state_dict` takes it on any number of ranks and workers. With another
        sampler: also the states of the generators that its order comes from (5 kB for torch's, 25 kB for one that may
        draw from ``random`` or NumPy). With an IterableDataset: what the replicas' own ``state_dict`` say.

        The state is that of the iteration begun last. The global generators themselves are not part of it.
        """
        spec, loaded, last = spec_of(self), self._epochs.resume, self._epochs.last
        following = self._epochs.upcoming(spec)
        if loaded is not None:
            # A loaded state holds until another epoch is set, and what was begun before it is over.
            last, loaded = None, loaded if loaded.epoch == following else None
        elif not self.in_order and self.num_workers and last is not None and last.delivered and not last.finished:
            warnings.warn(
                "with in_order=False batches are given as they are completed, and the state only counts them: a resume "
                "in the middle of an epoch may lose and repeat some; save between epochs, or keep the order",
                stacklevel=2,
            )
        from .engine.state import place_of, state_of

        return state_of(spec, loaded or place_of(spec, last, following))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where a state was taken; later ones follow it.

        Costs nothing for known orders, at any step. For other samplers the index batches before are drawn again, and
        nothing is loaded. An IterableDataset that has no ``state_dict`` is read again from its beginning, with a
        warning. If another epoch is set before the next iteration, that epoch is begun from its start.

        Raises:
            StateError: it is no such state, or belongs to another loader; this loader is as it was.
        """
        from .engine.state import resume_from

        resume = resume_from(spec_of(self), state)
        kept: Any = self._iterator
        if state["kind"] != "position" and kept is not None:
            # Persistent workers have another base seed, or replicas at another place.
            kept._shutdown_workers()
            self._iterator = None
        self.set_epoch(resume.epoch)
        self._epochs.resume = resume


_follows_libraries = False


def _follow_libraries() -> None:
    """Adapt Accelerate and Lightning to this class, now or after their import, and begin the report at exit if asked.

    After the first time it does nothing.
    """
    global _follows_libraries
    if _follows_libraries:
        return
    _follows_libraries = True
    if os.environ.get("FASTLOAD_REPORT") == "1":
        from .run import exit_report

        exit_report.start()
    for name in ADAPTED_LIBRARIES:
        after_import(name, _adapt)


def _adapt(library: ModuleType) -> None:
    from .run.adapters import adapt

    adapt(library)


def _by_seed(dataset: Any, shuffle: bool | None, sampler: Any, batch_sampler: Any, seed: object) -> tuple[Any, Any]:
    """Return torch's arguments ``shuffle`` and ``sampler``: the sampler shuffles by the seed, if there is one."""
    has_default_sampler = sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset)
    if isinstance(seed, int) and shuffle and has_default_sampler:
        return None, KeyedSampler(dataset, seed)
    return shuffle, sampler


def _check(
    worker_method: object, seed: object, seeding: object, chunk_size: object, multiprocessing_context: object
) -> None:
    """Check the arguments that are ours; torch checks its own."""
    if worker_method not in WORKER_MODULES:
        raise ConfigError(f"worker_method must be {' or '.join(map(repr, WORKER_MODULES))}, got {worker_method=}")
    if worker_method == "thread" and multiprocessing_context is not None:
        raise ConfigError(
            "multiprocessing_context has no meaning with worker_method='thread'; leave one of the two out, got "
            f"{multiprocessing_context=}"
        )
    if seeding not in ("sample", "torch"):
        raise ConfigError(f"seeding must be 'sample' or 'torch', got {seeding=}")
    if seed is not None:
        check_seed("seed", seed)
        if seeding == "torch":
            raise ConfigError(
                f"seeding='torch' takes its randomness from generator, so it cannot be combined with {seed=}; "
                "leave seed out, or use seeding='sample'"
            )
    if chunk_size is not None and chunk_size != "batch":
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
            raise ConfigError(f"chunk_size must be None, 'batch' or a positive integer, got {chunk_size=}")
        if seeding == "torch":
            raise ConfigError(f"seeding='torch' keeps whole batches on one worker; leave {chunk_size=} out")


@functools.cache
def argument_defaults() -> Defaults:
    """Return what :func:`fastload.install` and the environment change: defaults of fastload's own arguments."""
    from .run.defaults import Defaults

    return Defaults(DataLoader)


if "FASTLOAD_LOADER" in os.environ:
    argument_defaults().read_environment()
