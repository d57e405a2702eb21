"""Torch's modes that see each function or operator that a sample calls: under them nothing is left out or replaced.

``torch.jit.trace`` is one of them.
"""

from __future__ import annotations

import torch


def is_tracing() -> bool:
    """Return whether ``torch.jit.trace`` is running in this thread."""
    return torch._C._get_tracing_state() is not None


def are_watching() -> bool:
    """Return whether a mode is active in this thread that may see, or change, what a sample's code calls.

    A worker thread's own :class:`~fastload.workers.torch_routing.TorchRouting` does not count: it gives a generator to
    what draws, and it sees the draws that are made in place of others too.
    """
    num_modes = torch._C._len_torch_function_stack()
    if num_modes == 1 and not torch._C._len_torch_dispatch_stack():
        return is_tracing() or not getattr(torch._C._get_function_stack_at(0), "only_routes_draws", False)
    return bool(num_modes or torch._C._len_torch_dispatch_stack() or is_tracing())
