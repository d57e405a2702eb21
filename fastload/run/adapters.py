"""Patches libraries that rebuild a loader as torch's DataLoader, so that they rebuild fastload's.

In: an imported library. Out: the same library, which rebuilds a :class:`fastload.DataLoader` as one, with fastload's
own arguments. Nothing here imports such a library.

Accelerate (and so the Trainer of transformers): ``prepare`` and ``skip_first_batches`` construct torch's DataLoader
from sixteen attributes of their argument; now they construct fastload's if the argument is one. ``statistics()`` and
the other methods are available on the prepared object, or on its ``base_dataloader``. An epoch that is set on the
prepared object is set on the loader, too, so that a resumed epoch has its randomness; the epoch of a loaded state is
set on the prepared object. The share of a ``fastload.DistributedSampler`` is not divided again among the processes;
that of a ``DistributedBatchSampler`` would be, so that is an error. With ``use_stateful_dataloader=True`` Accelerate
builds torchdata's loader, as configured.

Both move batches to their device, which costs nothing where ``device`` has them there already. What they would undo is
an error that says what to set: another device, ``keep_on_host``, and ``fixed_buffers`` if they ask for a batch ahead.

Lightning (and so pytorch_lightning): its training loop tells a loader's sampler the epoch only after it has begun to
iterate, if it resumes from a checkpoint, and loads the state of an epoch's end, if the checkpoint is of that. Our
loaders are told the epoch before, and begin it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset

from fastload.errors import ConfigError
from fastload.run.defaults import own_argument_names
from fastload.sampling.epochs import Sampling
from fastload.sampling.samplers import EpochBatchSampler
from fastload.spec import spec_of

# The loader that Accelerate is taking apart in this thread.
_taken_apart: ContextVar[object] = ContextVar("_taken_apart", default=None)


def adapt(library: ModuleType, ours: type[Any]) -> None:
    """Adapt a library.

    Args:
        library: the module of it that has just been imported: see ``ADAPTED_LIBRARIES`` in loader.py.
        ours: :class:`fastload.DataLoader`.
    """
    if library.__name__ == "accelerate.data_loader":
        _adapt_accelerate(library, ours)
    else:
        _adapt_lightning(library, ours)


def own_arguments(loader: object, ours: type[Any]) -> dict[str, Any]:
    """Return those constructor arguments of a :class:`fastload.DataLoader` that torch's class does not have."""
    return {name: getattr(loader, name) for name in own_argument_names(ours)}


def _adapt_accelerate(data_loader: ModuleType, ours: type[Any]) -> None:
    """Let Accelerate rebuild our loaders as ours.

    Two public functions of ``accelerate.data_loader`` are wrapped, also in modules that have imported them by name, so
    that its ``DataLoader`` knows the loader that it is built from.
    """
    try:
        prepare, skip = data_loader.prepare_data_loader, data_loader.skip_first_batches
        classes = [data_loader.DataLoaderShard, data_loader.DataLoaderDispatcher]
        torch_loader = data_loader.DataLoader
        epoch_setters = [loader_class.set_epoch for loader_class in classes]
        load_state = data_loader.DataLoaderAdapter.load_state_dict
    except AttributeError as error:
        warnings.warn(
            f"fastload does not support this version of accelerate ({error}): prepare() turns fastload's DataLoader "
            "into torch's; call fastload.install() to avoid that",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    replaced = {id(function): _taking_apart(function, ours) for function in (prepare, skip)}
    for module in list(sys.modules.values()):
        names = vars(module) if isinstance(module, ModuleType) else {}  # never a lazy attribute
        for name, value in list(names.items()):
            if id(value) in replaced:
                names[name] = replaced[id(value)]
    data_loader.DataLoader = _rebuilding(torch_loader, ours)  # type: ignore[attr-defined] # a name of the library's module
    for loader_class, set_epoch in zip(classes, epoch_setters, strict=True):
        loader_class.set_epoch = _followed_by(set_epoch, _set_epoch_inside, ours)
    data_loader.DataLoaderAdapter.load_state_dict = _followed_by(load_state, _set_state_now, ours)


def _taking_apart(function: Callable[..., Any], ours: type[Any]) -> Callable[..., Any]:
    """Wrap a function of Accelerate that builds a new loader from its first argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        dataloader = given.args[0]
        if "put_on_device" in signature.parameters and isinstance(dataloader, ours):
            moved_to = given.arguments.get("device") if given.arguments.get("put_on_device") else None
            _check_device(
                dataloader,
                moved_to,
                "Accelerate",
                "prepare(..., device_placement=[False, ...]) leaves a loader's batches where they are",
                ahead=True,
            )
        if "num_processes" in signature.parameters and _is_shared_out(dataloader, given.arguments):
            given.arguments |= {"num_processes": 1, "process_index": 0}
        token = _taken_apart.set(getattr(dataloader, "base_dataloader", dataloader))
        try:
            return function(*given.args, **given.kwargs)
        finally:
            _taken_apart.reset(token)

    return wrapper


def _check_device(loader: Any, moved_to: Any, library: str, remedy: str, *, ahead: bool) -> None:
    """Check that a library does not undo what the device stage of a loader of ours has done.

    Args:
        loader: ours.
        moved_to: the device that the library moves batches to; None: it moves none.
        library: its name.
        remedy: what to set so that it moves none.
        ahead: whether it asks for the next batch before it gives the last one.

    Raises:
        ConfigError: it would.
    """
    if ahead and loader.fixed_buffers:
        raise ConfigError(
            f"fixed_buffers=True makes a batch invalid when the next one is asked for, and {library} asks for it "
            "before it gives the last one; leave fixed_buffers out"
        )
    if loader.device is None or moved_to is None:
        return
    device, target = torch.device(loader.device), torch.device(moved_to)
    if device.type == "cpu":
        return
    if device.type != target.type or (None not in (device.index, target.index) and device.index != target.index):
        raise ConfigError(
            f"device={loader.device!r}, and {library} would move every batch from there to {str(target)!r}: give "
            f"device={target.type!r}, the current device of each process, or leave device out. {remedy}"
        )
    if loader.keep_on_host:
        raise ConfigError(
            f"keep_on_host={loader.keep_on_host!r}, and {library} would move these parts to {str(target)!r} all the "
            f"same: leave keep_on_host out. {remedy}"
        )


def _is_shared_out(loader: object, arguments: dict[str, Any]) -> bool:
    """Return whether a sampler of ours divides the samples among the processes already.

    Raises:
        ConfigError: it is a DistributedBatchSampler, whose batches Accelerate would divide again.
    """
    if not isinstance(loader, torch.utils.data.DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    outer = loader.batch_sampler
    sampler = Sampling(dataset=loader.dataset, sampler=loader.sampler, batch_sampler=outer).ours
    if sampler is None or sampler.num_replicas == 1:
        return False
    if isinstance(outer, EpochBatchSampler):
        num_processes = arguments.get("num_processes")
        if num_processes is None:
            num_processes = sys.modules["accelerate.data_loader"].PartialState().num_processes
        if num_processes > 1:
            raise ConfigError(
                "Accelerate would divide the batches of a DistributedBatchSampler among the processes again. Do not "
                "pass this loader to accelerator.prepare(), and move its batches to accelerator.device; or give the "
                "loader batch_size=... and a fastload.DistributedSampler, which prepare() does not change"
            )
    return True


def _rebuilding(torch_loader: Callable[..., Any], ours: type[Any]) -> Callable[..., Any]:
    """Return the replacement of torch's class in Accelerate's module."""

    @functools.wraps(torch_loader, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        source = _taken_apart.get()
        if isinstance(source, ours):
            return ours(*args, **{**kwargs, **own_arguments(source, ours)})
        return torch_loader(*args, **kwargs)

    return build


def _followed_by(
    method: Callable[[Any, Any], None], then: Callable[[Any, Any], None], ours: type[Any]
) -> Callable[[Any, Any], None]:
    """Wrap a method of prepared loaders, to call ``then`` after it for those that have one of our loaders inside."""

    @functools.wraps(method)
    def wrapper(prepared: Any, value: Any) -> None:
        method(prepared, value)
        if isinstance(prepared.base_dataloader, ours):
            then(prepared, value)

    return wrapper


def _set_epoch_inside(prepared: Any, epoch: int) -> None:
    prepared.base_dataloader.set_epoch(epoch)


def _set_state_now(prepared: Any, state: Any) -> None:
    """Set epoch and state of a prepared loader: Accelerate returns the old state until the next iteration."""
    prepared.iteration = state["epoch"]
    prepared.dl_state_dict = prepared.base_dataloader.state_dict()


def _adapt_lightning(fit_loop: ModuleType, ours: type[Any]) -> None:
    """Let the training loop of Lightning tell our loaders its epochs."""
    loop_class = getattr(fit_loop, "_FitLoop", None)
    if loop_class is None or not all(
        hasattr(loop_class, name) for name in ("setup_data", "on_advance_start", "_iteration_based_training")
    ):
        warnings.warn(
            "fastload does not support this version of Lightning: training that is resumed from a checkpoint of an "
            "epoch's end may begin with another epoch's samples",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    loop_class.on_advance_start = _telling_epochs(loop_class.on_advance_start, ours)


def _telling_epochs(on_advance_start: Callable[[Any], None], ours: type[Any]) -> Callable[[Any], None]:
    """Wrap what Lightning's training does before each epoch."""

    @functools.wraps(on_advance_start)
    def wrapper(loop: Any) -> None:
        loop.setup_data()  # as Lightning does next: reloads the loaders if asked to
        found = getattr(loop._combined_loader, "flattened", ())
        loaders = [loader for loader in found if isinstance(loader, ours)]
        for loader in loaders:
            moves = type(loop.trainer.lightning_module).transfer_batch_to_device
            is_own = moves.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning")
            _check_device(
                loader,
                None if is_own else loop.trainer.strategy.root_device,
                "Lightning",
                "A transfer_batch_to_device of your own, which returns the batch, leaves batches where they are",
                ahead=getattr(loop._data_fetcher, "length", 0) is None,
            )
        epoch = loop.epoch_progress.current.processed
        resumes = getattr(loop, "is_resuming", False) or loop.epoch_loop.restarting
        will_begin = loop.trainer.current_epoch > 0 and not resumes
        if loop._iteration_based_training():
            # Lightning counts an epoch that max_steps has ended as a whole one, but continues with the rest of it.
            on_advance_start(loop)
            for loader in loaders:
                loader.set_epoch(loader._epochs.next)
            return
        wrong = False
        for loader in loaders:
            if will_begin or _has_begun_another(loader, epoch):
                loader.set_epoch(epoch)
                wrong = not will_begin
        on_advance_start(loop)
        if wrong:
            iter(loop._data_fetcher)

    return wrapper


def _has_begun_another(loader: Any, epoch: int) -> bool:
    """Return whether a loader has begun another epoch than this one, and is not in the middle of it."""
    begun = loader._epochs.last
    if begun is None or begun.number == epoch:
        return False
    if begun.resume is None:
        return spec_of(loader).sample_seed is not None
    try:
        left = begun.known.num_batches if begun.known is not None else len(loader) - begun.resume.batches
    except TypeError:  # a stream
        return False
    return bool(left <= 0)
