"""One random generator for each sample: ``fastload.rng()`` and ``fastload.torch_rng()``. Imported when one is called.

A generator has a key of its own, in a domain of its own, so its numbers are neither those of the global generators nor
move them.

A place is a list: the generators made here so far (None: none yet), an iterator over samples of which the last one
taken is being loaded, the seed, the epoch and the domain of the keys, and what the sample's id follows from: whether it
is the index, the length and the stride of the :class:`~fastload.workers.samples.Job`, the indices of the task and the
position of the first. So a loader notes this once for all samples of a task, and nothing is computed for samples that
do not ask.
"""

from __future__ import annotations

import operator
import os

import numpy as np
import torch

from . import seeding


class _Generators:
    """The generators of one sample, made when they are first asked for."""

    __slots__ = ("for_numpy", "for_torch", "key", "left")

    def __init__(self, key: bytes, left: int) -> None:
        self.key = key
        self.left = left
        """How many samples of the task were to be taken after it."""
        self.for_numpy: np.random.Generator | None = None
        self.for_torch: torch.Generator | None = None


_of_process: _Generators | None = None


def _here() -> _Generators:
    global _of_process
    place = seeding.place.get()
    if place is None or place[1] is None:
        if _of_process is None:
            _of_process = _Generators(seeding.Keys(torch.initial_seed(), 0, seeding.RNG_PROCESS).key(0), 0)
        return _of_process
    made: _Generators | None = place[0]
    left = operator.length_hint(place[1])
    if made is None or made.left != left:
        _, _, seed, epoch, domain, by_index, length, stride, indices, position = place
        row = len(indices) - 1 - left
        identity = position + row * stride
        if by_index:
            identity = seeding.sample_id(indices[row], identity, length)
        made = place[0] = _Generators(seeding.keys_of(seed, epoch, domain).key(identity), left)
    return made


def _forget() -> None:
    global _of_process
    _of_process = None


os.register_at_fork(after_in_child=_forget)  # torch has seeded a worker otherwise than its parent


def rng() -> np.random.Generator:
    """Return the NumPy generator of the sample that is being loaded: what to draw from in new code.

    What it draws depends on the seed, the epoch and the sample; not on the workers (processes, threads, Ray's or none),
    their number, or what else was drawn. Call it where you draw, and do not keep it: in the same sample it
    returns the same generator, which goes on.

    Returns:
        A Philox generator.

        * In ``__getitem__``: the sample's. Another try of ``on_error`` begins anew.
        * In ``__getitems__``, and in ``collate_fn``: the batch's, one for each of the two.
        * In an ``IterableDataset``: one for each worker and epoch.
        * Outside of fastload's loaders, in torch's workers too: one for the process, seeded at the first call by
          ``torch.initial_seed()``. Threads that a sample starts itself have this one too.

        Without a ``seed`` the keys come from the base seed that torch draws when an iteration begins, so
        ``torch.manual_seed`` determines them.

    Cost: 10 µs for the first call in a sample, then 0.1 µs; nothing for samples that do not call it.

    Examples:
        >>> import numpy as np, fastload
        >>> class Noisy:
        ...     def __len__(self): return 100
        ...     def __getitem__(self, index): return index + fastload.rng().normal()
        >>> one = list(fastload.DataLoader(Noisy(), batch_size=10, seed=1))
        >>> other = list(fastload.DataLoader(Noisy(), batch_size=10, seed=1, num_workers=2, worker_method="thread"))
        >>> all((a == b).all() for a, b in zip(one, other, strict=True))
        True
    """
    made = _here()
    if made.for_numpy is None:
        made.for_numpy = np.random.Generator(np.random.Philox(int.from_bytes(made.key, "little")))
    return made.for_numpy


def torch_rng() -> torch.Generator:
    """Return torch's generator of the sample that is being loaded, on the CPU: the twin of :func:`fastload.rng`.

    For torch's functions, as in ``torch.rand(3, generator=fastload.torch_rng())``. Its seed has 32 bits of the key,
    which is what torch's generator uses. Cost: 5 µs for the first call in a sample, then 0.1 µs.
    """
    made = _here()
    if made.for_torch is None:
        made.for_torch = torch.Generator().manual_seed(seeding.words(made.key)[2])
    return made.for_torch
