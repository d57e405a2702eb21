"""Optional features: the last checks of their arguments, and what workers are given for them.

Plain loaders do not import this module.
"""

from __future__ import annotations

from ..device.streams import device_of
from ..spec import Spec
from ..workers.on_error import candidates_of
from ..workers.ray.options import options_of


def check(asked: Spec) -> None:
    """Check what takes the modules of the features.

    Raises:
        ConfigError: an argument is out of its range.
    """
    if asked.device is not None:
        device_of(asked.device)
    options_of(asked.ray_options)
    if hasattr(type(asked.dataset), "fastload_order"):
        from ..sampling.mixture import check_sampler

        check_sampler(asked.sampling)
    if asked.on_error == "replace":
        candidates_of(asked.sampling)
    if asked.cache is not None:
        from ..cache.shared import check as check_cache

        check_cache(asked.cache, asked.cache_size)
