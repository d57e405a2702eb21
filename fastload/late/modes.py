"""Torch's modes that see each function or operator that a sample calls: under them nothing is left out or replaced.

``torch.jit.trace`` is one of them. So it is where users have replaced methods of tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

_OWN = frozenset(vars(Tensor))
_num_seen = len(_OWN)


def is_tracing() -> bool:
    """Return whether ``torch.jit.trace`` is running in this thread."""
    return torch._C._get_tracing_state() is not None


def are_watching() -> bool:
    """Return whether a mode is active in this thread that may see, or change, what a sample's code calls.

    Or whether a method of tensors was replaced.

    A worker thread's own :class:`~fastload.workers.torch_routing.TorchRouting` does not count: it gives a generator to
    what draws, and it sees the draws that are made in place of others too.
    """
    if not _are_methods_torchs():
        return True
    num_modes = torch._C._len_torch_function_stack()
    if num_modes == 1 and not torch._C._len_torch_dispatch_stack():
        return is_tracing() or not getattr(torch._C._get_function_stack_at(0), "only_routes_draws", False)
    return bool(num_modes or torch._C._len_torch_dispatch_stack() or is_tracing())


def _are_methods_torchs() -> bool:
    """Whether tensors have the methods that they inherit: what replaces one is an attribute of their class."""
    global _num_seen
    own = vars(Tensor)
    if len(own) == _num_seen:
        return True
    if any(hasattr(Tensor.__base__, name) for name in own.keys() - _OWN):
        return False
    _num_seen = len(own)  # others were added, as libraries do
    return True
