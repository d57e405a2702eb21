"""Seed the generators that transformers' data collators keep, such as ``DataCollatorForLanguageModeling(seed=...)``.

In: a ``collate_fn``, and the key of each batch. Out: a seeded generator in each such collator that it leads to. A
collator of this kind makes its generator in each worker, seeded by the worker's number: its masks depend on who takes
the batch. Here they depend on its own ``seed`` and the batch's key. transformers is not imported here.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import warnings
from typing import Any

import numpy as np
import torch

from ..base import reachable
from .seeding import words


def _keeps_generator(thing: Any) -> bool:
    # By its attributes, since users derive classes of their own.
    try:
        held = vars(thing)
    except TypeError:
        return False
    return (
        isinstance(held.get("seed"), int)
        and "generator" in held
        and "_generator_pid" in held
        and any(kind.__module__.split(".")[0] == "transformers" for kind in type(thing).__mro__)
    )


def _found(collate_fn: Any) -> list[reachable.Found]:
    """Return the collators; none as long as transformers, whose they are, has not been imported."""
    return reachable.find(collate_fn, _keeps_generator, inside=False) if "transformers" in sys.modules else []


class CollatorGenerators:
    """Seeds the collators' generators for one worker.

    Args:
        collate_fn: where they are searched.
    """

    def __init__(self, collate_fn: Any) -> None:
        self._collators = list({id(one.thing): one.thing for one in _found(collate_fn)}.values())
        self._before: list[tuple[Any, Any, Any]] = []

    def seed(self, key: bytes) -> None:
        """Give each collator a generator for the batch with 16 bytes of key, until :meth:`release`."""
        for one in self._collators:
            self._before.append((one, one.generator, one._generator_pid))
            digest = hashlib.blake2b(key, digest_size=16, key=str(one.seed).encode()[:64], person=b"fastload.collate")
            if one.return_tensors == "np":
                one.generator = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
            else:
                one.generator = torch.Generator().manual_seed(words(digest.digest())[2])
            one._generator_pid = os.getpid()  # else it would make another one

    def release(self) -> None:
        """Give the collators their own generators back."""
        while self._before:
            one, generator, pid = self._before.pop()
            one.generator, one._generator_pid = generator, pid


def collate_fn_for_thread(collate_fn: Any) -> Any:
    """Return a ``collate_fn`` with collators, and so generators, of its own; as it is, if it leads to none."""
    found = [one for one in _found(collate_fn) if not one.shared]
    copies = {id(one.thing): copy.copy(one.thing) for one in found}
    return reachable.with_others(collate_fn, [(one, copies[id(one.thing)]) for one in found])


def warn_of_shared_collators(collate_fn: Any) -> None:
    """Warn of collators whose generators worker threads share."""
    names = ", ".join(sorted({type(one.thing).__name__ for one in _found(collate_fn) if one.shared}))
    if names:
        warnings.warn(
            f"worker threads share the generator of a collator with a seed ({names}) that collate_fn reaches by a "
            "global variable or a class, so what it draws depends on their timing; make it an attribute of collate_fn, "
            "of which each thread gets a copy, or use worker_method='multiprocessing'",
            RuntimeWarning,
            stacklevel=2,
        )
