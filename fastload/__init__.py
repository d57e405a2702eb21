"""PyTorch input pipelines that are fast, deterministic and explainable.

::

    sampling ─────Task──> workers ─────> delivery ─> device ─> transforms ─> training loop
                                    │ rows into a slot ▲
                                    └─────> slots <────┘

Users import from here; the modules behind may move. The names are imported when they are first used, so that the
command line prints its help, and ``fastload run`` starts a script, without importing torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base.retry import retry
    from .base.share import share
    from .base.version import __version__ as __version__
    from .device.prefetch import prefetch
    from .engine.statistics import Statistics
    from .errors import (
        ClusterError,
        ConfigError,
        DatasetError,
        FastloadError,
        LoadTimeout,
        PackError,
        RankMismatch,
        StateError,
        WorkerDied,
    )
    from .explain.replay import replay
    from .keys.rng import rng, torch_rng
    from .loader import DataLoader
    from .profiling.api import profile
    from .run.installation import install, uninstall
    from .sampling.distributed import DistributedBatchSampler, DistributedSampler
    from .sampling.mixture import Mixture
    from .sampling.packed import PackedBatchSampler
    from .tokens.flattening import collate_packed
    from .tokens.lengths import token_lengths
    from .verification.report import VerifyReport
    from .verification.run import verify
    from .workers.on_error import FailedSample

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataLoader",
    "DatasetError",
    "DistributedBatchSampler",
    "DistributedSampler",
    "FailedSample",
    "FastloadError",
    "LoadTimeout",
    "Mixture",
    "PackError",
    "PackedBatchSampler",
    "RankMismatch",
    "StateError",
    "Statistics",
    "VerifyReport",
    "WorkerDied",
    "collate_packed",
    "install",
    "prefetch",
    "profile",
    "replay",
    "retry",
    "rng",
    "share",
    "token_lengths",
    "torch_rng",
    "uninstall",
    "verify",
]

_MODULE_OF = {
    "__version__": "base.version",
    "DataLoader": "loader",
    "DistributedBatchSampler": "sampling.distributed",
    "DistributedSampler": "sampling.distributed",
    "FailedSample": "workers.on_error",
    "Mixture": "sampling.mixture",
    "PackedBatchSampler": "sampling.packed",
    "Statistics": "engine.statistics",
    "VerifyReport": "verification.report",
    "collate_packed": "tokens.flattening",
    "install": "run.installation",
    "prefetch": "device.prefetch",
    "profile": "profiling.api",
    "replay": "explain.replay",
    "retry": "base.retry",
    "rng": "keys.rng",
    "share": "base.share",
    "token_lengths": "tokens.lengths",
    "torch_rng": "keys.rng",
    "uninstall": "run.installation",
    "verify": "verification.run",
}


def __getattr__(name: str) -> object:
    if name in ("images", "testing", "transforms"):
        from importlib import import_module

        return import_module(f".{name}", __name__)
    if name not in __all__ and name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
