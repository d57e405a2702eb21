"""Patches libraries that rebuild a loader as torch's DataLoader, so that they rebuild fastload's.

Nothing here imports such a library.

Accelerate (and so the Trainer of transformers) constructs torch's DataLoader from sixteen attributes of the argument of
``prepare`` and ``skip_first_batches``; now it constructs fastload's, with all its arguments, if the argument is one.
The prepared object has its ``statistics()`` and other methods. The steps of all that are rebuilt from a loader are
counted together; the epoch that is set on the prepared object, or that a loaded state has, is that of both. The state
is made when it is asked for, not before each batch. The share of a ``fastload.DistributedSampler`` is not divided again
among the processes; that of a ``DistributedBatchSampler`` would be, so that is an error. With
``use_stateful_dataloader=True`` Accelerate builds torchdata's loader, as configured.

Lightning (and so pytorch_lightning) saves and loads the state of every loader that has ``state_dict``. It passes over
loaders of ours without a seed and without a sampler of ours, as over torch's: their scripts may resume by themselves.
The others go on after the last batch that was trained on; one that Lightning has fetched ahead does not count. Its
training loop tells a loader's sampler the epoch only after it has begun to iterate, if it resumes from a checkpoint,
and loads the state of an epoch's end, if the checkpoint is of that. Our loaders are told the epoch before, and begin
it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset

from fastload.base.checks import is_integer
from fastload.base.overrides import LOADERS, Override, install_all
from fastload.base.users_line import warn_at_users_line
from fastload.engine.state import one_ahead
from fastload.errors import ConfigError, StateError
from fastload.options import OPTIONS
from fastload.sampling.epochs import Progress, Sampling
from fastload.sampling.samplers import EpochBatchSampler, EpochSampler
from fastload.spec import spec_of

_ACCELERATE = "accelerate.data_loader"
_ours: Any = ()  # fastload.DataLoader
# The loader that Accelerate is taking apart in this thread.
_taken_apart: ContextVar[object] = ContextVar("_taken_apart", default=None)


def adapt(library: ModuleType, ours: Any) -> None:
    """Install the overrides of an imported library, one of ``ADAPTED_LIBRARIES`` in loader.py: all, or none.

    ``ours``: :class:`fastload.DataLoader`.
    """
    global _ours
    _ours = ours
    entries = [one for one in OVERRIDES if one.library == library.__name__]
    reasons = [reason for one in entries if (reason := one.unavailable_reason()) is not None]
    if not reasons:
        install_all(entries)
        return
    name = "Lightning"
    means = "training that is resumed from a checkpoint may begin with other samples than it should, or not at all"
    if library.__name__ == _ACCELERATE:
        name = "accelerate"
        means = "prepare() turns fastload's DataLoader into torch's; call fastload.install() to avoid that"
    warnings.warn(
        f"fastload does not support this version of {name} ({reasons[0]}): {means}", RuntimeWarning, stacklevel=2
    )


def own_arguments(loader: object) -> dict[str, Any]:
    """Return those constructor arguments of a :class:`fastload.DataLoader` that torch's class does not have."""
    return {name: getattr(loader, name) for name in OPTIONS}


def _taking_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of Accelerate that builds a new loader from its first argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        dataloader = given.args[0]
        if "put_on_device" in signature.parameters and isinstance(dataloader, _ours):
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
            f"keep_on_host={loader.keep_on_host!r}, but {library} would move these parts to {str(target)!r} "
            f"anyway: leave keep_on_host out. {remedy}"
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
            num_processes = sys.modules[_ACCELERATE].PartialState().num_processes
        if num_processes > 1:
            raise ConfigError(
                f"Accelerate would divide the batches of a {type(outer).__name__} among the processes again. Do not "
                "pass this loader to accelerator.prepare(), and move its batches to accelerator.device; or give the "
                "loader batch_size=... and a fastload.DistributedSampler, which prepare() does not change"
            )
    return True


def _rebuilding(torch_loader: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of torch's class in Accelerate's module."""

    @functools.wraps(torch_loader, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        source = _taken_apart.get()
        if isinstance(source, _ours):
            rebuilt = _ours(*args, **{**kwargs, **own_arguments(source)})
            rebuilt._runtime.measured = (
                source._runtime.measured
            )  # a callback counts on, in the rest of a resumed epoch too
            return rebuilt
        return torch_loader(*args, **kwargs)

    return build


def _for_ours(instead: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what wraps a method of prepared loaders: ``instead(method, prepared, ...)`` serves those of ours."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(prepared: Any, *args: Any) -> Any:
            is_ours = isinstance(prepared.base_dataloader, _ours)
            return instead(method, prepared, *args) if is_ours else method(prepared, *args)

        return wrapper

    return wrap


def _set_epoch(set_epoch: Callable[[Any, int], None], prepared: Any, epoch: int) -> None:
    set_epoch(prepared, epoch)
    prepared.base_dataloader.set_epoch(epoch)


def _state_of(_: Any, prepared: Any) -> Any:
    """Return a prepared loader's state; but for those that skip batches, they have a batch that is not given yet."""
    accelerate: Any = sys.modules[_ACCELERATE]
    fetches_ahead = isinstance(prepared, accelerate.DataLoaderShard | accelerate.DataLoaderDispatcher)
    with _without_one_ahead(fetches_ahead):
        return prepared.base_dataloader.state_dict()


def _load_state(_: Any, prepared: Any, state: Any) -> None:
    loader = prepared.base_dataloader
    _restore(loader, state, "do not register the prepared loader for checkpoints, nor load its state")
    prepared.iteration = loader._epochs.next


@contextlib.contextmanager
def _without_one_ahead(fetched: bool) -> Iterator[None]:
    """Let the states that are asked for meanwhile leave out the last batch, if it was only ``fetched`` ahead."""
    token = one_ahead.set(fetched)
    try:
        yield
    finally:
        one_ahead.reset(token)


def _restore(loader: Any, state: Any, to_leave_it: str) -> None:
    """Load the state that a checkpoint has of a loader; where it does not fit, warn, and begin the epoch anew.

    ``to_leave_it``: what the user does so that nothing is loaded.
    """

    def begin_anew(error: StateError) -> None:
        _warn_of_unrestored(str(error), to_leave_it)

    try:
        loader.load_state_dict(state)
    except StateError as error:
        begin_anew(error)
        epoch = state.get("epoch") if isinstance(state, dict) else None
        if is_integer(epoch, 0, 1 << 62):
            loader.set_epoch(epoch)
        return
    if loader._epochs.resume is not None:
        loader._epochs.resume.begin_anew = begin_anew


def _warn_of_unrestored(reason: str, to_leave_it: str) -> None:
    warn_at_users_line(
        f"the loader's place in the epoch was not restored from the checkpoint, so the epoch begins anew: {reason}. To "
        f"begin anew in any case, without this warning: {to_leave_it}"
    )


# -- Lightning --------------------------------------------------------------------------------------------------------


class _Restored:
    """Lightning's protocol of what has a state, without those of our loaders that it is to take for torch's."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    def __instancecheck__(self, loader: object) -> bool:
        if not isinstance(loader, _ours):
            return isinstance(loader, self._protocol)
        return loader.load_state_dict is not None and _has_place(loader)


def _has_place(loader: Any) -> bool:
    """Return whether a loader of ours resumes its position in a trainer: by a seed, a sampler of ours or its class.

    The class is torchdata's, or the user's, with a state of its own.
    """
    names = ("state_dict", "load_state_dict")
    if loader.seed is not None or any(getattr(type(loader), name) is not getattr(_ours, name) for name in names):
        return True
    samplers = spec_of(loader).sampling.samplers
    return any(isinstance(sampler, EpochSampler | EpochBatchSampler) for sampler in samplers)


def _saving_what_was_trained(on_save_checkpoint: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap what asks the loaders for their state, which is then without the batches that are not trained on yet."""

    @functools.wraps(on_save_checkpoint)
    def wrapper(loop: Any) -> Any:
        with _without_one_ahead(_fetches_ahead(loop)):
            return on_save_checkpoint(loop)

    return wrapper


_LEAVE_LIGHTNING = "set load_state_dict = None on the loader or its class"


def _restoring(load_states: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap what loads the loaders' states from a checkpoint, before they are iterated."""

    @functools.wraps(load_states)
    def wrapper(loop: Any) -> None:
        found, states = loop._combined_loader.flattened, loop._combined_loader_states_to_load
        if not any(isinstance(loader, _ours) for loader in found):
            load_states(loop)
            return
        if not loop._iteration_based_training():
            for loader in found:
                if isinstance(loader, _ours) and _has_place(loader):
                    loader.set_epoch(loop.epoch_progress.current.processed)
        combined_loader: Any = sys.modules[type(loop._combined_loader).__module__]
        loaders = [loader for loader in found if isinstance(loader, combined_loader._Stateful)]
        if not (loaders and loop.restarting and getattr(loop, "is_resuming", states)):
            return
        loop._combined_loader_states_to_load = []  # as Lightning does
        if len(loaders) != len(states):
            reason = f"it has the states of {len(states)} loaders, but {len(loaders)} loaders have a state now"
            if not states:
                reason = "it was saved with a loader that has no state (torch's, or one without a seed)"
            _warn_of_unrestored(reason, _LEAVE_LIGHTNING)
            return
        for loader, state in zip(loaders, states, strict=True):
            if isinstance(loader, _ours):
                _restore(loader, state, _LEAVE_LIGHTNING)
            else:
                loader.load_state_dict(state)

    return wrapper


def _telling_epochs(on_advance_start: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap what Lightning's training does before each epoch."""

    @functools.wraps(on_advance_start)
    def wrapper(loop: Any) -> None:
        loop.setup_data()  # as Lightning does next: reloads the loaders if asked to
        found = getattr(loop._combined_loader, "flattened", ())
        loaders: list[Any] = [loader for loader in found if isinstance(loader, _ours)]
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
        loaders = [loader for loader in loaders if _has_place(loader)]
        epoch = loop.epoch_progress.current.processed
        resumes = getattr(loop, "is_resuming", False) or loop.epoch_loop.restarting
        will_begin = loop.trainer.current_epoch > 0 and not resumes
        # Lightning counts an epoch that max_steps has ended as a whole one, but continues with the rest of it.
        counts_steps = loop._iteration_based_training()
        # After a checkpoint of an epoch's last step Lightning goes on with the next one.
        is_over = resumes and loop.epoch_loop.batch_progress.is_last_batch and not counts_steps
        wrong = [loader for loader in loaders if is_over and not _begins(loader._epochs.last, epoch)]
        for loader in loaders:
            if loader in wrong or (will_begin and not counts_steps):
                loader.set_epoch(epoch)
            elif wrong:  # begins again where it has begun
                with _without_one_ahead(_fetches_ahead(loop)):
                    loader.load_state_dict(loader.state_dict())
        on_advance_start(loop)
        if wrong:
            iter(loop._data_fetcher)
        elif counts_steps or not will_begin:
            for loader in loaders:  # Lightning has told them the epoch that they are in, which is not their next one
                loader.set_epoch(loader._epochs.next)

    return wrapper


def _begins(last: Progress, number: int) -> bool:
    """Return whether the last epoch has this number, from its start: shorter loaders begin it ahead of the longest."""
    return last.work.number == number and (last.work.resume is None or last.work.resume.at_start)


def _fetches_ahead(loop: Any) -> bool:
    """Return whether Lightning holds a batch that it has not trained on yet, as it does if the length is unknown."""
    return bool(getattr(loop._data_fetcher, "batches", ()))


# -- What is replaced -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Adapter(Override):
    """A function or class of a library, around which fastload's is put."""

    wrap: Callable[[Any], Any] = functools.partial

    def stand_in(self, original: Any) -> Any:
        """Return ours around it."""
        return self.wrap(original)


def _overrides() -> Iterator[Override]:
    options: Any = {"where": LOADERS, "always": True}
    wrap: Callable[[Any], Any]
    purpose = "loaders stay fastload's"
    for owner, name, wrap in (
        ("", "DataLoader", _rebuilding),
        (":DataLoaderShard", "set_epoch", _for_ours(_set_epoch)),
        (":DataLoaderDispatcher", "set_epoch", _for_ours(_set_epoch)),
        (":DataLoaderAdapter", "state_dict", _for_ours(_state_of)),
        # Before each batch Accelerate asks for the loader's state, which may cost more than the batch.
        (":DataLoaderAdapter", "_update_state_dict", _for_ours(lambda *_: None)),
        (":DataLoaderAdapter", "load_state_dict", _for_ours(_load_state)),
    ):
        yield _Adapter(_ACCELERATE, _ACCELERATE + owner, name, purpose, wrap=wrap, **options)
    for name in ("prepare_data_loader", "skip_first_batches"):
        yield _Adapter(_ACCELERATE, _ACCELERATE, name, purpose, wrap=_taking_apart, everywhere=True, **options)
    purpose = "training continues with the samples that come next"
    for package in ("lightning.pytorch", "pytorch_lightning"):
        library = f"{package}.loops.fit_loop"
        for owner, name, wrap in (
            (f"{package}.utilities.combined_loader", "_Stateful", _Restored),
            (f"{package}.loops.training_epoch_loop", "_Stateful", _Restored),
            (f"{library}:_FitLoop", "on_advance_start", _telling_epochs),
            (f"{library}:_FitLoop", "on_save_checkpoint", _saving_what_was_trained),
            (f"{library}:_FitLoop", "_load_combined_loader_states", _restoring),
        ):
            yield _Adapter(library, owner, name, purpose, wrap=wrap, **options)


OVERRIDES = tuple(_overrides())
