"""What a plain loader does without: the checks of features' arguments, and what workers are given for the features.

Plain loaders do not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..arguments import FusingArguments, WorkerArguments
from ..device.streams import device_of
from ..sampling.epochs import Sampling
from ..spec import Spec, part
from ..workers.on_error import ErrorPolicy, FailureLog, candidates_of, error_policy_of
from ..workers.ray.options import options_of
from .fusing import fused_of
from .kept import Kept

if TYPE_CHECKING:
    from ..fusion import FusedDataset


def check(spec: Spec, changed: Callable[[], Mapping[str, Any]]) -> tuple[Any, Any]:
    """Check what :func:`fastload.arguments.check_arguments` leaves; return the ``cache`` and ``cache_size``.

    ``changed`` returns the defaults of arguments that were changed for a script.

    Raises:
        ConfigError: one of them is out of its range, or cannot be combined with another.
    """
    if spec.device is not None:
        device_of(spec.device)
    if spec.worker_method == "ray" or spec.ray_options is not None:
        options_of(spec.ray_options)
        part(spec, WorkerArguments).check_ray()
    if spec.on_error == "replace":
        candidates_of(part(spec, Sampling))
    cache, cache_size = spec.cache, spec.cache_size
    if cache is not None or cache_size is not None:
        cache, cache_size = _cache().checked(cache, cache_size, part(spec, FusingArguments).why_no_cache(), changed())
    return cache, cache_size


def _cache() -> ModuleType:
    from ..cache import shared

    return shared


def extras_of(spec: Spec, kept: Kept, seed: int) -> tuple[FusedDataset | None, ErrorPolicy | None]:
    """Return what loads the samples in the dataset's place, and what is done about errors.

    ``kept`` gets the cache, and the log of failures. ``seed``: of the samples' keys.
    """
    fused = error_policy = None
    if spec.cache is not None:
        kept.cache = _cache().records_of(spec.cache, spec.cache_size)
    if spec.fuse is True:
        fused = fused_of(part(spec, FusingArguments), kept, seed)
    if spec.on_error != "raise":
        error_policy = error_policy_of(spec.on_error, part(spec, Sampling), seed)
        kept.counts.failures = kept.counts.failures or FailureLog()
    return fused, error_policy
