"""PyTorch input pipelines that are fast, deterministic and explainable.

::

    sampling ─> plan ─WorkItem─> workers ─────> delivery ─> training loop
                                    │ rows into a slot ▲
                                    └─────> slots <────┘

Users import from here; the modules behind may move.
"""

from .errors import ConfigError, DatasetError, FastloadError, LoadTimeout, WorkerDied
from .installation import install, uninstall
from .loader import DataLoader, Statistics

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataLoader",
    "DatasetError",
    "FastloadError",
    "LoadTimeout",
    "Statistics",
    "WorkerDied",
    "install",
    "uninstall",
]
