"""For tests: ``fastload.testing.assert_deterministic(loader)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .verification.plan import METHODS, Method
from .verification.report import VerifyReport
from .verification.run import verify


def assert_deterministic(
    loader_or_dataset: Any,
    *,
    batches: int = 4,
    seed: int | None = None,
    batch_size: int = 8,
    methods: Sequence[Method] = METHODS,
    timeout: float = 60.0,
) -> VerifyReport:
    """Fail a test unless a loader gives the same bits however it is run.

    ::

        def test_our_pipeline_is_deterministic():
            fastload.testing.assert_deterministic(make_loader())

    Args:
        loader_or_dataset, batches, seed, batch_size, methods, timeout: see :func:`fastload.verify`. ``methods`` without
            ``"spawn"`` saves the seconds that another process needs to import torch.

    Returns:
        The report.

    Raises:
        AssertionError: something differs; the message is the report's table, and names the stage.
        ConfigError: the argument cannot be verified.
    """
    report = verify(
        loader_or_dataset,
        batches=batches,
        seed=seed,
        batch_size=batch_size,
        methods=methods,
        timeout=timeout,
        progress=False,
    )
    report.raise_for_difference()
    return report
