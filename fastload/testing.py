"""For tests: ``fastload.testing.assert_deterministic(loader)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .verification.plan import METHODS, Method
from .verification.report import NotDeterministic, VerifyReport
from .verification.run import verify


def assert_deterministic(
    loader_or_dataset: Any,
    *,
    batches: int = 4,
    seed: int = 0,
    batch_size: int = 8,
    methods: Sequence[Method] = METHODS,
    timeout: float = 60.0,
) -> VerifyReport:
    """Fail a test if a loader does not give the same bits however it is run: see ``fastload.verify``.

    Args:
        loader_or_dataset: a DataLoader of fastload or torch, a dataset, or a function without arguments that returns
            one of them.
        batches: batches of an epoch that each run loads; at least 1.
        seed: for loaders without a seed.
        batch_size: samples in a batch, for a dataset.
        methods: kinds of workers: ``"inline"``, ``"thread"``, ``"fork"``, ``"spawn"``. Without ``"spawn"`` it is some
            seconds faster.
        timeout: seconds without a batch after which a run fails, for loaders without a timeout.

    Returns:
        The report.

    Raises:
        AssertionError: something differs. The message is the report's table, and names the stage.
        ConfigError: ``loader_or_dataset`` cannot be verified, or another argument is out of its range.

    Examples:
        ```python
        def test_our_pipeline_is_deterministic():
            fastload.testing.assert_deterministic(make_loader())
        ```
    """
    report = verify(
        loader_or_dataset,
        batches=batches,
        seed=seed,
        batch_size=batch_size,
        methods=methods,
        timeout=timeout,
    )
    if not report.ok:
        raise NotDeterministic("\n" + report.to_text())
    return report
