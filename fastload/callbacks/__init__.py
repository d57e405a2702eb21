"""The stall in the tracker that people already look at: callbacks for Lightning, the Trainer and Accelerate.

In: the loader of a training, of fastload or torch. Out: numbers in whatever logger is configured, and one line in words
at the end. :class:`Stall` measures (:mod:`.watching`, :mod:`.device`, :mod:`.processes`) and exchanges with the other
ranks (:mod:`.ranks`); a module for each library calls it. What the numbers are is in ``engine/stall.py``.

Nothing of a library is imported before its callback is asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accelerate import AccelerateStall as AccelerateStall
    from .lightning import LightningCallback as LightningCallback
    from .measure import Stall as Stall
    from .transformers import HFCallback as HFCallback

__all__ = ["AccelerateStall", "HFCallback", "LightningCallback", "Stall"]

_MODULES = {"AccelerateStall": "accelerate", "HFCallback": "transformers", "Stall": "measure"}


def __getattr__(name: str) -> Any:
    if name == "LightningCallback":
        # Two packages of the same code; each takes only callbacks of its own class.
        alone = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
        module = "pytorch_lightning" if alone else "lightning"
    elif name in _MODULES:
        module = _MODULES[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
