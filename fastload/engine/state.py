"""A loader's state dict: save where the loader is, and read where it is to resume.

A state says what was delivered to the user, not what was loaded ahead. It is a flat dict, of one of three kinds:

* ``"position"``: the order is a function of (seed, epoch, position). The state is the same on all ranks, and can be
  loaded on any number of ranks and workers.
* ``"fast-forward"``: another sampler. The state has its generators' states from before the epoch. A resume draws the
  index batches that were delivered again, and loads nothing for them.
* ``"iterable"``: an IterableDataset. The state has what its replicas returned from their ``state_dict``, and how many
  batches came since: a resume loads these again and drops them. If they returned nothing, it does so with all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..base.checks import is_integer, one_of
from ..base.users_line import warn_at_users_line
from ..errors import StateError
from ..sampling.agreement import compare_ranks
from ..sampling.epochs import Epochs, Progress, Resume, Sampling
from ..sampling.sampler_generators import check_generator_states, generator_states, names_not_made_yet
from ..sampling.samplers import EpochOrder, EpochSampler

if TYPE_CHECKING:
    from ..sampling.mixture_states import Saved

VERSION = 2
_MOST = 1 << 62
"""No number in a state is as large."""
_GENERATOR = "generator."
"""Begins the names of generator states."""
_ADDED_BY_OTHERS = {"_iterator_finished"}
"""Accelerate's prepared loaders write this into the state that they pass on."""

one_ahead: ContextVar[bool] = ContextVar("one_ahead", default=False)
"""True while states leave out the last batch that was given: some trainers fetch one ahead."""


# -- save -------------------------------------------------------------------------------------------------------------


def state_now(sampling: Sampling, epochs: Epochs, *, keeps_order: bool) -> dict[str, Any]:
    """Return the state dict of a loader: see ``DataLoader.state_dict``."""
    epochs.wants_states = True
    loaded, last, following = epochs.resume, epochs.last, epochs.upcoming(sampling)
    if loaded is not None:
        # A loaded state holds until another epoch is set, and what was begun before it is over.
        last, loaded = None, loaded if loaded.epoch == following else None
    elif not keeps_order and last is not None and last.delivered and not last.finished:
        warnings.warn(
            "with in_order=False batches are given as they are completed, and the state only counts them: a resume "
            "in the middle of an epoch may lose and repeat some; save between epochs, or keep the order",
            stacklevel=3,
        )
    return state_of(sampling, loaded or place_of(sampling, last, following, one_ahead=one_ahead.get()))


def state_of(sampling: Sampling, place: Resume) -> dict[str, Any]:
    """Return the state dict of a loader that is at this place: see :func:`place_of`."""
    state = {"version": VERSION, "kind": _kind_of(sampling), **_identity_of(sampling), "epoch": place.epoch}
    if state["kind"] != "iterable":
        state["seeding"] = _seeding_of(sampling)
    if state["kind"] == "position":
        return state | {"position": place.base}
    state |= {
        "batches": place.batches,
        "base_seed": -1 if place.base_seed is None else place.base_seed,
        "key_epoch": place.key_epoch,
        "draws_base_seed": place.draws_base_seed,
    }
    if state["kind"] == "iterable":
        # In a tuple: torch.distributed.checkpoint takes dicts apart, and loads only what is there already.
        return state | {"workers": () if place.workers is None else (place.workers,)}
    generators = place.generators or generator_states(sampling)
    return state | {f"{_GENERATOR}{name}": value for name, value in generators.items()}


def place_of(sampling: Sampling, last: Progress | None, next_epoch: int, *, one_ahead: bool = False) -> Resume:
    """Return where a loader is: within the epoch begun last, if there is one, or before the next one.

    ``one_ahead``: the last batch that it gave is not used yet, unless it has come to its end.
    """
    if last is None:
        return Resume(epoch=next_epoch)
    work = last.work
    if last.finished:
        if not sampling.persistent_workers:
            return Resume(epoch=next_epoch)
        # Workers that stay alive keep their base seed.
        return Resume(epoch=next_epoch, base_seed=work.base_seed, key_epoch=work.epoch + 1)
    taken = last.taken(one_ahead=one_ahead)
    return Resume(
        epoch=work.number,
        base=0 if work.known is None else work.known.position_after(taken, work.number),
        batches=taken + (0 if work.resume is None else work.resume.batches),
        base_seed=work.base_seed,
        key_epoch=work.epoch,
        draws_base_seed=work.draws_base_seed,
        generators=work.generators,
        workers=None if last.replicas is None else last.replicas.state(one_ahead=one_ahead),
    )


def _kind_of(sampling: Sampling) -> str:
    if sampling.iterable:
        return "iterable"
    return "position" if sampling.order_seed is not None and sampling.known is not None else "fast-forward"


def _seeding_of(sampling: Sampling) -> str:
    return "torch" if sampling.keyed_by is None else "sample"


_IDENTITY = {
    "seed": "the seed",
    "order": "the order",
    "tail": "the tail",
    "length": "the number of samples",
    "batch_size": "the batch size",
    "global_batch_size": "the global batch size",
    "num_workers": "num_workers",
}
"""Entries that must be the same where a state is loaded, in words."""


def _identity_of(sampling: Sampling) -> dict[str, Any]:
    if sampling.iterable:
        return {"batch_size": sampling.batch_size or 0, "num_workers": sampling.num_workers}
    known, seed = sampling.known, sampling.order_seed
    size = known.batch_size if known is not None else getattr(sampling.batch_sampler, "batch_size", None)
    size = size or sampling.batch_size or 0
    batch_size = size if isinstance(size, int) else 0
    if known is None or seed is None:
        length = _length_of(sampling.dataset) if known is None else known.order.length
        return {"length": length, "batch_size": batch_size} | ({} if seed is None else {"seed": seed})
    shard, order = known.shard, known.order
    order_seed = next((sampler.seed for sampler in sampling.samplers if isinstance(sampler, EpochSampler)), None)
    recorded = {}
    if (mixture := getattr(order, "mixture", None)) is not None:
        from ..sampling.mixture_states import record_of

        recorded["mixture"] = record_of(mixture)
    return recorded | {
        "seed": seed,
        "order": order.name if order_seed in (None, seed) else f"{order.name}, seed {order_seed}",
        "tail": shard.tail,
        "length": order.length,
        "batch_size": batch_size,
        "global_batch_size": shard.global_batch_size or max(1, batch_size) * shard.num_ranks,
    }


def _length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception:  # it need not have one
        return -1


# -- load -------------------------------------------------------------------------------------------------------------


def resume_from(sampling: Sampling, state: Any, mixture: str | None = None) -> Resume:
    """Return where a loader is to resume, or raise a StateError; generators are not changed, nor the loader by errors.

    ``mixture``: see ``DataLoader.load_state_dict``.
    """
    one_of("continue", None)("mixture", mixture)
    _check_version(state)
    saved = _check_names(sampling, state, mixture)
    _check_values(sampling, state, sampling.known if saved is None else saved.order)
    _warn_of_seeding(sampling, state)
    if saved is not None:
        return saved.resume(sampling, state)
    if state["kind"] == "position":
        return Resume(epoch=state["epoch"], base=state["position"])
    workers = state.get("workers")
    says_nothing = not workers or all(one is None or one["state"] is None for one in workers[0]["states"])
    return Resume(
        epoch=state["epoch"],
        batches=state["batches"],
        base_seed=None if state["base_seed"] < 0 else state["base_seed"],
        key_epoch=state["key_epoch"],
        draws_base_seed=state["draws_base_seed"],
        generators=_generators_in(state),
        workers=None if says_nothing else workers[0],
    )


def _check_version(state: Any) -> None:
    if not isinstance(state, dict):
        raise StateError(f"a loader's state must be the dict that state_dict() returned, got {type(state).__name__}")
    version = state.get("version")
    if version != VERSION or isinstance(version, bool):
        raise StateError(
            f"the state has version {version!r}, and this fastload reads version {VERSION}; load it with the version "
            "that saved it, or begin the epoch anew"
            if "version" in state
            else f"this is no state of a fastload loader: it has no 'version', but {_quoted(state)}"
        )


def _check_names(sampling: Sampling, state: dict[str, Any], mixture: str | None) -> Saved | None:
    """Check that a state has the entries that this loader would save now, and was saved by a loader like it.

    Returns what it says of a mixture, or None.
    """
    expected = state_of(sampling, Resume(epoch=0))
    if state.get("kind") != expected["kind"]:
        raise StateError(
            f"the state is of kind {state.get('kind')!r}, and this loader's is {expected['kind']!r}: the sampler, the "
            "seed or the kind of dataset has changed since it was saved"
        )
    missing, unknown = expected.keys() - state.keys() - {"seeding"}, state.keys() - expected.keys() - _ADDED_BY_OTHERS
    if any(name.startswith(_GENERATOR) for name in unknown):  # a sampler may make its generator when it is first needed
        unknown -= {f"{_GENERATOR}{name}" for name in names_not_made_yet(sampling)}
    if missing or unknown:
        wrong = [f"{_quoted(names)} {what}" for names, what in ((missing, "missing"), (unknown, "unknown")) if names]
        raise StateError(f"the state is damaged: {'; '.join(wrong)}")
    different = [name for name in _IDENTITY if name in expected and state[name] != expected[name]]
    saved = None
    if "mixture" in expected:
        from ..sampling.mixture_states import Saved, same_but_for_lengths

        saved = Saved(sampling.known, state["mixture"])
        same_order = mixture is not None and same_but_for_lengths(state["order"], expected["order"])
        different = [name for name in different if name != "length" and not (same_order and name == "order")]
    if "global_batch_size" in expected:
        # If the world size changed, one of the two sizes must differ; no sample is lost. Steps of a global batch
        # must stay the same.
        same_step = "global_batch_size" not in different
        has_steps = sampling.known is not None and sampling.known.shard.global_batch_size is not None
        if same_step or ("batch_size" not in different and not has_steps):
            different = [name for name in different if name not in ("batch_size", "global_batch_size")]
    words = [
        f"{_IDENTITY[name]} was {state[name]!r} when it was saved and is {expected[name]!r} now" for name in different
    ]
    if saved is not None and saved.changes and mixture is None:
        words += [*saved.changes, "load it with mixture='continue' for the mixture as it is now, from there on"]
    if words:
        raise StateError("the state belongs to another loader: " + "; ".join(words))
    return saved


def _check_values(sampling: Sampling, state: dict[str, Any], known: EpochOrder | None) -> None:
    for name in ("epoch", "position", "batches", "key_epoch"):
        value = state.get(name, 0)
        if not is_integer(value, 0, _MOST):
            raise StateError(f"{name} must be an integer of at least 0, got {name}={value!r}")
    if state.get("seeding", "sample") not in ("sample", "torch"):
        raise StateError(f"seeding must be 'sample' or 'torch', got seeding={state['seeding']!r}")
    if state["kind"] == "position":
        assert known is not None
        known.check_position(state["position"], state["epoch"], state["global_batch_size"])
        return
    base_seed, draws = state["base_seed"], state["draws_base_seed"]
    if isinstance(base_seed, bool) or not isinstance(base_seed, int):
        raise StateError(f"base_seed must be an integer, got {base_seed!r}")
    if not isinstance(draws, bool):
        raise StateError(f"draws_base_seed must be True or False, got {draws!r}")
    check_generator_states(sampling, _generators_in(state))
    workers, number = state.get("workers", ()), max(1, sampling.num_workers)
    if not isinstance(workers, tuple | list) or not all(_are_replicas(one, number) for one in workers):
        raise StateError(f"workers must be () or hold the state of each replica, got {workers!r:.200}")


def _warn_of_seeding(sampling: Sampling, state: dict[str, Any]) -> None:
    """Warn where samples will have other random numbers than without the interruption."""
    if state["kind"] == "iterable" or not (sampling.assigned or sampling.seeded):
        return
    saved, seeding = state.get("seeding"), _seeding_of(sampling)
    if saved != seeding:
        was = f"seeding={saved!r}" if saved else "an earlier fastload, which had seeding='sample' by default"
        warn_at_users_line(
            f"the state was saved with {was}, and this loader has seeding={seeding!r}: the batches go on in the same "
            f"order, with other random augmentation; give seeding={saved or 'sample'!r} to go on as before"
        )
    elif sampling.assigned and (state.get("batches") or state.get("position")):
        warn_at_users_line(
            "the batches go on where the state was saved, and random augmentation is drawn anew, as with torch's "
            "loader; give the DataLoader seed=1 for the same augmentation as without the interruption"
        )


def _are_replicas(workers: Any, num_workers: int) -> bool:
    """Return whether this is a result of :meth:`fastload.engine.replicas.Replicas.state`."""
    match workers:
        case {"states": [*states], "batches": [*batches], "next": following, **more} if not more:
            numbers = all(is_integer(count, 0, _MOST) for count in batches) and is_integer(following, 0, num_workers)
            return len(states) == len(batches) == num_workers and numbers and all(map(_is_replica, states))
    return False


def _is_replica(state: Any) -> bool:
    match state:
        case {"state": _, "ended": _, **more}:
            return more.keys() <= {"since"} and is_integer(more.get("since", 0), 0, _MOST)
    return state is None


def _generators_in(state: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_GENERATOR): value for name, value in state.items() if name.startswith(_GENERATOR)}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names))) or "nothing"


def compare_with_ranks(sampling: Sampling, progress: Progress) -> None:
    """Compare where the ranks that share an order are: see :mod:`fastload.sampling.agreement`."""
    assert sampling.ours is not None
    compare_ranks(sampling.ours, state_of(sampling, place_of(sampling, progress, progress.work.number)))
