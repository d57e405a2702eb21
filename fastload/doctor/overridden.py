"""``fastload doctor --overrides``: the names of other libraries that give way to fastload's."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from ..base import overrides
from ..base.overrides import Override
from ..errors import one_line
from .finding import Finding, State

_OTHERS = (
    ("routing", "while worker threads run", "threads draw from generators of their own", ""),
    ("compat", "in workers", "tensors are stacked into private memory", "torch's default_collate_fn_map"),
    ("generators", "with a seed", "states are written for each sample", "generators of random, numpy.random and torch"),
    ("hugging_face", "in workers", "batches are read from Arrow's memory", "datasets.Dataset.__getitems__"),
    ("installation", "by fastload run or install()", "loaders are fastload's", "torch.utils.data.DataLoader.__init__"),
    ("adapters", "where they are imported", "loaders stay fastload's", "accelerate.data_loader, lightning's _FitLoop"),
)
"""What modules replace in ways of their own: the module, where, what for, and the names."""


def overridden() -> Iterator[Finding]:
    """Compare the functions of other libraries with what takes their places, and list them, by purpose."""
    groups: dict[tuple[str, str, State, str], list[str]] = {}
    for module, one in overrides.table():
        state, words = _state_of(one)
        tried = overrides.TRIED_WITH.get(one.package)
        purpose = f"{one.purpose} (in {one.where}{f'; tried with {one.package} {tried}' if tried else ''})"
        groups.setdefault((module, purpose, state, words), []).append(one.path)
    for (module, purpose, state, words), names in groups.items():
        yield Finding(module.rpartition(".")[2], state, f"{purpose}: {', '.join(names)}: {words}")
    from ..workers import routing

    for module, where, purpose, others in _OTHERS:
        yield Finding(module, "ok", f"{purpose} ({where}): {others or ', '.join(routing.exchanged())}")


def _state_of(one: Override) -> tuple[State, str]:
    try:
        importlib.import_module(one.library)
    except ModuleNotFoundError:
        return "absent", f"{one.library} is not installed"
    except Exception as error:  # such as of a library that is missing
        return "costs", f"{one.library} cannot be imported: {one_line(error)}"
    reason = one.why_not()
    if reason is not None:
        return "costs", reason
    cases = list(one.cases(usual=False))
    failed = [" ".join(map(str, case)) for case in cases if not one.agrees(*case)]
    if failed:
        return "costs", ": ".join(filter(None, ("it makes something else, so it is called", ", ".join(failed))))
    return "ok", "they make the same" if cases else "compared where it is used"
