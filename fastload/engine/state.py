"""Where a loader is: to a state dict and back.

In: a loader's attributes and its last pass. Out: a flat dict of integers and strings, and for orders that are not ours
of generator states; or, the other way, where the next pass begins.

There are three kinds. ``"position"``: orders that are a function of (seed, epoch, position). The state is the same on
all ranks, and loads at once on any number of ranks and workers. ``"fast-forward"``: other samplers. Their generators'
states from before the pass are kept, and the index batches that were delivered are drawn again; nothing is loaded.
``"iterable"``: an IterableDataset: what its replicas say of themselves, or the batches to be loaded again and dropped.

A state says what was delivered to the user, not what was loaded ahead.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from ..errors import StateError
from ..sampling.epochs import Epoch, Resume, known_batches, samplers_of, seed_of
from ..sampling.sampler_generators import check_generator_states, generator_states, names_not_made_yet
from ..sampling.samplers import EpochSampler

VERSION = 2

# Accelerate's prepared loaders write this into the state they pass on.
_ADDED_BY_OTHERS = {"_iterator_finished"}

_FINGERPRINT = {
    "seed": "the seed",
    "order": "the order",
    "tail": "the tail",
    "length": "the number of samples",
    "batch_size": "the batch size",
    "global_batch_size": "the global batch size",
    "num_workers": "num_workers",
}


def state_of(loader: Any, last: Epoch | None, upcoming: Resume | None, next_epoch: int) -> dict[str, Any]:
    """Return the state dict of a loader.

    Args:
        loader: a :class:`fastload.DataLoader`.
        last: its last epoch; None if it has not begun one.
        upcoming: where its next pass will begin, if a state was loaded and not used yet.
        next_epoch: epoch of the next pass otherwise.
    """
    place = _place_of(loader, last, next_epoch) if upcoming is None else upcoming
    state: dict[str, Any] = {"version": VERSION, "kind": _kind_of(loader), **_fingerprint(loader), "epoch": place.epoch}
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
    generators = place.generators or generator_states(loader)
    return state | {f"generator.{name}": value for name, value in generators.items()}


def _place_of(loader: Any, last: Epoch | None, next_epoch: int) -> Resume:
    """Return where a loader is that resumes nothing: within its last epoch, or before the next."""
    if last is None:
        return Resume(epoch=next_epoch)
    if last.finished:
        if not loader.persistent_workers:
            return Resume(epoch=next_epoch)
        # The workers that live on keep their base seed.
        return Resume(epoch=next_epoch, base_seed=last.base_seed, key_epoch=last.key_epoch + 1)
    return Resume(
        epoch=last.number,
        base=0 if last.known is None else last.known.position_after(last.taken),
        batches=last.batches,
        base_seed=last.base_seed,
        key_epoch=last.key_epoch,
        draws_base_seed=last.draws_base_seed,
        generators=last.generators,
        workers=None if last.replicas is None else last.replicas.state(),
    )


def resume_from(loader: Any, state: Any) -> Resume:
    """Read a state dict for a loader, which is not changed.

    Raises:
        StateError: the dict is none of ours, or of another version, or belongs to another loader.
    """
    if not isinstance(state, dict):
        raise StateError(f"a loader's state must be the dict that state_dict() returned, got {type(state).__name__}")
    version = state.get("version")
    if version != VERSION or isinstance(version, bool):
        raise StateError(
            f"the state has version {version!r}, and this fastload reads version {VERSION}; load it with the version "
            "that saved it, or begin the epoch anew"
            if "version" in state
            else f"this is no state of a fastload loader: it has no 'version', but {_names(state)}"
        )
    expected = state_of(loader, None, None, 0)
    if state.get("kind") != expected["kind"]:
        raise StateError(
            f"the state is of kind {state.get('kind')!r}, and this loader's is {expected['kind']!r}: the sampler, the "
            "seed or the kind of dataset is another than when it was saved"
        )
    lost, strange = expected.keys() - state.keys(), state.keys() - expected.keys() - _ADDED_BY_OTHERS
    if any(name[:10] == "generator." for name in strange):  # a sampler may make its generator when it is first needed
        strange -= {f"generator.{name}" for name in names_not_made_yet(loader)}
    if lost or strange:
        wrong = [f"{_names(names)} {what}" for names, what in ((lost, "missing"), (strange, "unknown")) if names]
        raise StateError(f"the state is not whole: {'; '.join(wrong)}")
    known = known_batches(loader)
    _compare(state, expected, stepped=known is not None and known.rows.shard.global_batch_size is not None)
    for name in ("epoch", "position", "batches", "key_epoch"):
        value = state.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise StateError(f"{name} must be an integer of at least 0, got {name}={value!r}")
    if state["kind"] == "position":
        return _resume_at(loader, state)
    base_seed = state["base_seed"]
    if isinstance(base_seed, bool) or not isinstance(base_seed, int):
        raise StateError(f"base_seed must be an integer, got {base_seed!r}")
    if not isinstance(state["draws_base_seed"], bool):
        raise StateError(f"draws_base_seed must be True or False, got {state['draws_base_seed']!r}")
    generators = {name.removeprefix("generator."): value for name, value in state.items() if name[:10] == "generator."}
    check_generator_states(loader, generators)
    resume = Resume(
        epoch=state["epoch"],
        batches=state["batches"],
        base_seed=None if base_seed < 0 else base_seed,
        key_epoch=state["key_epoch"],
        draws_base_seed=state["draws_base_seed"],
        generators=generators,
    )
    if state["kind"] == "iterable":
        workers = state["workers"]
        if not isinstance(workers, tuple | list) or not all(
            _are_replicas(replicas, max(1, loader.num_workers)) for replicas in workers
        ):
            raise StateError(f"workers must be () or hold the state of each replica, got {workers!r:.200}")
        resume.workers = workers[0] if workers else None
    return resume


def _resume_at(loader: Any, state: dict[str, Any]) -> Resume:
    known = known_batches(loader)
    assert known is not None
    position, shard = state["position"], known.rows.shard
    # Padding on another number of ranks may have reached further than it would here.
    if position >= shard.length + state["global_batch_size"]:
        raise StateError(f"position must be at most {shard.length}, the samples of an epoch, got {position=}")
    if shard.global_batch_size is not None and position % shard.global_batch_size and position < shard.length:
        raise StateError(
            f"position must be a multiple of the global batch size {shard.global_batch_size}, got {position=}"
        )
    return Resume(epoch=state["epoch"], base=position)


def _are_replicas(workers: Any, num_workers: int) -> bool:
    if not isinstance(workers, dict) or workers.keys() != {"states", "next", "batches"}:
        return False
    states, following, batches = workers["states"], workers["next"], workers["batches"]
    return (
        isinstance(states, list)
        and len(states) == num_workers
        and all(state is None or (isinstance(state, dict) and state.keys() == {"state", "ended"}) for state in states)
        and isinstance(batches, list)
        and len(batches) == num_workers
        and all(isinstance(count, int) and count >= 0 for count in batches)
        and isinstance(following, int)
        and 0 <= following < num_workers
    )


def _kind_of(loader: Any) -> str:
    if isinstance(loader.dataset, IterableDataset):
        return "iterable"
    return "position" if seed_of(loader) is not None and known_batches(loader) is not None else "fast-forward"


def _fingerprint(loader: Any) -> dict[str, Any]:
    """Return what must be the same where a state is loaded."""
    seed = seed_of(loader)
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size or 0, "num_workers": loader.num_workers}
    known = known_batches(loader)
    batch_size = known.batch_size if known is not None else getattr(loader.batch_sampler, "batch_size", None)
    batch_size = batch_size or loader.batch_size or 0
    if not isinstance(batch_size, int):
        batch_size = 0
    if known is None or seed is None:
        length = known.rows.order.length if known is not None else _length_of(loader)
        return {"length": length, "batch_size": batch_size} | ({} if seed is None else {"seed": seed})
    shard, order = known.rows.shard, known.rows.order
    order_seed = _order_seed(loader)
    return {
        "seed": seed,
        "order": order.name if order_seed in (None, seed) else f"{order.name}, seed {order_seed}",
        "tail": shard.tail,
        "length": order.length,
        "batch_size": batch_size,
        "global_batch_size": shard.global_batch_size or max(1, batch_size) * shard.num_ranks,
    }


def _order_seed(loader: Any) -> int | None:
    return next((sampler.seed for sampler in samplers_of(loader) if isinstance(sampler, EpochSampler)), None)


def _length_of(loader: Any) -> int:
    try:
        return len(loader.dataset)
    except Exception:  # it need not have one
        return -1


def _compare(state: dict[str, Any], expected: dict[str, Any], *, stepped: bool) -> None:
    different = [name for name in _FINGERPRINT if name in expected and state[name] != expected[name]]
    if "global_batch_size" in expected:
        # On another number of ranks one of the two sizes is another, and no sample is lost by it. Steps of a global
        # batch have to stay what they are.
        same_step = "global_batch_size" not in different
        if same_step or ("batch_size" not in different and not stepped):
            different = [name for name in different if name not in ("batch_size", "global_batch_size")]
    if different:
        raise StateError(
            "the state belongs to another loader: "
            + "; ".join(
                f"{_FINGERPRINT[name]} was {state[name]!r} when it was saved and is {expected[name]!r} now"
                for name in different
            )
        )


def _names(names: Any) -> str:
    return ", ".join(sorted(repr(name) for name in names)) or "nothing"
