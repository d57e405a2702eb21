"""Seed the generators that transformers' data collators keep, such as ``DataCollatorForLanguageModeling(seed=...)``.

A collator of this kind makes its generator in each worker, seeded by the worker's number: its masks depend on who takes
the batch. Here they depend on its own ``seed`` and the batch's key. transformers is not imported here.
"""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

import numpy as np
import torch

from ..base import objects
from .seeding import words

_CHANGED = ("generator", "_generator_pid", "create_rng")
"""Attributes of a collator that are others while a batch is collated."""


def keeps_generator(thing: Any) -> bool:
    """Return whether an object is such a collator."""
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


class CollatorGenerators:
    """Seeds the collators' generators for one worker."""

    def __init__(self, collate_fn: Any) -> None:
        found = objects.find(collate_fn, keeps_generator, inside=False)
        self._collators = list({id(one.thing): one.thing for one in found}.values())
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def seed(self, key: bytes) -> None:
        """Give each collator generators for the batch with 16 bytes of key, until :meth:`release`."""
        for one in self._collators:
            self._before.append((one, {name: vars(one)[name] for name in _CHANGED if name in vars(one)}))
            digest = hashlib.blake2b(key, digest_size=16, key=str(one.seed).encode()[:64], person=b"fastload.collate")
            # A collator asks for another generator where the call's return_tensors is not its own.
            one.create_rng = functools.partial(_use, one, digest.digest(), {})
            one.create_rng()

    def release(self) -> None:
        """Give the collators their own generators back."""
        while self._before:
            one, before = self._before.pop()
            for name in _CHANGED:
                vars(one).pop(name, None)
            vars(one).update(before)


def _use(collator: Any, digest: bytes, made: dict[bool, Any], return_tensors: str | None = None) -> None:
    """Give a collator its batch's generator for a call with these ``return_tensors``; ``made``: those that it has had.

    It stands for ``create_rng``, which would make one of the seed alone.
    """
    is_numpy = (return_tensors or collator.return_tensors) == "np"
    if is_numpy not in made:
        if is_numpy:
            made[is_numpy] = np.random.default_rng(int.from_bytes(digest, "little"))
        else:
            made[is_numpy] = torch.Generator().manual_seed(words(digest)[2])
    collator.generator = made[is_numpy]
    collator._generator_pid = os.getpid()  # else it would ask again
