"""The command line of ``fastload explain``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

from typing import Any

from ..run.targets import Target, TargetResult, Verb


def explain(target: Target, options: dict[str, Any]) -> TargetResult:
    """Print the tables of a script's loaders, or of an object.

    Raises:
        UsageError: the object cannot be explained.
    """
    from .tables import print_tables  # takes time: torch

    print_tables(target.value, made=target.made)
    return TargetResult(0)


VERB = Verb(
    name="explain",
    summary="print how the loaders of a script work, and what can be fused",
    description="""\
Print how the loaders of a script work, and what of their datasets is fused, or would be with fuse=True.

A script runs unmodified up to its first batch, and ends there: nothing is trained, and no sample is loaded.""",
    loader_of_script="the loaders that the script has made when it asks for its first batch",
    object="a DataLoader, a dataset, or a function without arguments that returns one",
    status="0 printed; 2 the command was not understood, or no loader was found; 130 or 143 interrupted",
    add_options=lambda parser: None,
    action="fastload.explain.command:explain",
)
