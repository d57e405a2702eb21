"""The stall in the tracker that people already look at: callbacks for Lightning and the Trainer, and ``Stall``.

The numbers of ``loader.statistics().stall`` go to the logger that is configured, over ranks, and a line in words comes
at the end. Nothing of a library is imported before its callback is asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lightning import LightningCallback as LightningCallback
    from .measure import Stall as Stall
    from .transformers import HFCallback as HFCallback

__all__ = ["HFCallback", "LightningCallback", "Stall"]

_MODULES = {"HFCallback": "transformers", "Stall": "measure"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "lightning")
    # Two packages of the same code; each takes only callbacks of its own class.
    if module == "lightning" and "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        module = "pytorch_lightning"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
