"""From ``torch.jit`` to ``torch.compile`` and ``torch.export``.

    python examples/parallelism/compile_and_export.py              # or --backend inductor, which needs a C compiler

    torch.jit.trace(model, inputs)        torch.export.export(model, (inputs,)) to deploy; torch.compile(model) to train
    torch.jit.script(model)               the same
    torch.jit.save / load                 torch.export.save / load; AOTInductor for a library without Python
    @torch.jit.script_if_tracing, ...     torch.cond for branches on data

The notes trace or script a model to deploy it. ``torch.compile`` falls back to Python for what it cannot capture;
``torch.export`` raises an error. In a training loop: wrap with DistributedDataParallel first, then compile.

Measured (torch 2.13, CPU): the trace is right on the branch of its example only; ``torch.compile`` on both; so is
``torch.export`` with ``torch.cond``, saved and loaded, also for another length.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from common import options
from torch import Tensor, nn


class Branch(nn.Module):
    """Doubles a tensor with a positive sum, and negates others."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        if x.sum() > 0:
            return x * 2
        return -x


class Conditional(nn.Module):
    """The same with ``torch.cond``, which can be exported."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        chosen: Tensor = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,))
        return chosen


UP, DOWN = torch.ones(3), -torch.ones(3)


def right_on(model: Any) -> list[bool]:
    """Return whether a model is right, for each branch."""
    return [torch.equal(model(x), Branch()(x)) for x in (UP, DOWN)]


def traced() -> tuple[list[bool], list[str]]:
    """Trace with a positive example; return for which branches it is right, and the classes of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = torch.jit.trace(Branch(), (UP,))
        return right_on(model), sorted({warning.category.__name__ for warning in caught})


def compiled(backend: str) -> list[bool]:
    """Compile; return for which branches it is right."""
    return right_on(torch.compile(Branch(), backend=backend))


def refused_by_export() -> str:
    """Return the class of the error that ``torch.export`` raises for the branch."""
    try:
        torch.export.export(Branch(), (UP,))
    except Exception as error:  # of several classes, by version
        return type(error).__name__
    return "none"


def exported(folder: Path) -> list[bool]:
    """Export for any length, save, load; return for which branches it is right, and whether for another length."""
    anything = {"x": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Conditional(), (UP,), dynamic_shapes=anything)
    torch.export.save(program, folder / "model.pt2")
    model = torch.export.load(folder / "model.pt2").module()
    longer = torch.ones(7)
    return [*right_on(model), torch.equal(model(longer), longer * 2)]


def main() -> None:
    """Print whether each is right, for a positive sum and for a negative one."""
    backend = options(__doc__, backend="eager").backend  # which compiles nothing
    right, said = traced()
    print(f"torch.jit.trace:  {right}, warns: {', '.join(said)}")
    print(f"torch.compile:    {compiled(backend)}")
    print(f"torch.export:     {refused_by_export()}")
    with tempfile.TemporaryDirectory() as folder:
        print(f"with torch.cond:  {exported(Path(folder))}, saved and loaded")


if __name__ == "__main__":
    main()
