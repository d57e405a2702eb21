"""Carries the per-thread state of Python, NumPy and torch over to threads that fastload starts.

Taken along: context variables (NumPy's error state and print options are some), a copy of decimal's context, gradients,
inference mode, autocast, and torch's function modes, of which the default device is one. Not taken along: values of a
``threading.local``, torch's dispatch modes, and the current CUDA stream.
"""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode


class ThreadState:
    """The state of the thread that makes this object, at that time. Any number of threads may use it.

    Cost: 10 µs to make it, 15 µs a call of :meth:`run`.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._float_errors = np.geterr(), np.geterrcall()  # no context variables in NumPy 1
        self._gradients = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        try:
            accelerator = torch.accelerator.current_accelerator()
        except RuntimeError:  # torch 2.6 where there is none
            accelerator = None
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in {"cpu", "cpu" if accelerator is None else accelerator.type}
            if torch.amp.is_autocast_available(kind)
        ]
        self._caches_casts = torch.is_autocast_cache_enabled()
        # torch has no public name for these; see also late/scope.py.
        self._modes = [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in this state. For all that a thread does: not everything is undone afterwards.

        Changes by the function stay in its thread.
        """
        self._context.copy().run(self._run, function, args)

    def _run(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        decimal.setcontext(decimal.getcontext().copy())  # a copy: theirs is one object in all copies of a context
        errors, callback = self._float_errors
        np.seterr(**errors)
        np.seterrcall(callback)
        for kind, is_enabled, dtype in self._autocast:
            torch.set_autocast_enabled(kind, is_enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._caches_casts)
        with contextlib.ExitStack() as stack:
            if self._inference:
                stack.enter_context(torch.inference_mode())
            torch.set_grad_enabled(self._gradients)
            for mode in self._modes:
                TorchFunctionMode.__enter__(mode)  # its own __enter__ has run already
                stack.push(functools.partial(TorchFunctionMode.__exit__, mode))
            function(*args)
