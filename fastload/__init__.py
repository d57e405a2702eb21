"""PyTorch input pipelines that are fast, deterministic and explainable.

::

    sampling ─> plan ─WorkItem─> workers ─────> delivery ─> device ─> transforms ─> training loop
                                    │ rows into a slot ▲
                                    └─────> slots <────┘

Users import from here; the modules behind may move. The names are imported when they are first used, so that the
command line prints its help, and ``fastload run`` starts a script, without importing torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import prefetch
    from .errors import (
        ConfigError,
        DatasetError,
        FastloadError,
        LoadTimeout,
        PackError,
        RankMismatch,
        StateError,
        WorkerDied,
    )
    from .installation import install, uninstall
    from .loader import DataLoader
    from .on_error import FailedSample
    from .profiling.api import profile
    from .replaying import replay
    from .sampling import DistributedBatchSampler, DistributedSampler
    from .statistics import Statistics
    from .verification.report import VerifyReport
    from .verification.run import verify

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataLoader",
    "DatasetError",
    "DistributedBatchSampler",
    "DistributedSampler",
    "FailedSample",
    "FastloadError",
    "LoadTimeout",
    "PackError",
    "RankMismatch",
    "StateError",
    "Statistics",
    "VerifyReport",
    "WorkerDied",
    "install",
    "prefetch",
    "profile",
    "replay",
    "uninstall",
    "verify",
]

_MODULE_OF = {
    "DataLoader": "loader",
    "DistributedBatchSampler": "sampling",
    "DistributedSampler": "sampling",
    "FailedSample": "on_error",
    "Statistics": "statistics",
    "VerifyReport": "verification.report",
    "install": "installation",
    "prefetch": "device",
    "profile": "profiling.api",
    "replay": "replaying",
    "uninstall": "installation",
    "verify": "verification.run",
}


def __getattr__(name: str) -> object:
    if name in ("images", "testing", "transforms"):
        from importlib import import_module

        return import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
