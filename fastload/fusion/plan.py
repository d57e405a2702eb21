"""The plan of a dataset: what runs where, and why something was not fused.

A :class:`Plan` is plain data. For it nothing of the dataset's is called, nothing read and nothing drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch

from ..transforms.base import Transform
from ..transforms.compose import Compose
from ..transforms.sample import Kind, NotRecognised, SampleTransform, State
from ..transforms.values import Normalize
from .changes import replaced
from .recognition import Pipeline, recognise_transform
from .sources import Router, SampleSource, source_of
from .stages import Stages, fits, names_of, size_after, stages_of

# Columns that the name of a stage may take.
_WIDEST = 60

Tail: TypeAlias = tuple[tuple[SampleTransform, State, str], ...]
"""Steps of the device, the state before each, and the names of their streams."""


class Yields(NamedTuple):
    """What a sample's image is, before collation."""

    kind: Kind
    dtype: torch.dtype
    shape: tuple[int, int, int] | None
    """[C, H, W]; None: each has its own."""

    def __str__(self) -> str:
        shape = ", of different sizes" if self.shape is None else f" {list(self.shape)}"
        return f"{State(self.kind, self.dtype, 3)}{shape}"


class Line(NamedTuple):
    """A line of the table."""

    stage: str
    runs: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The plan of one of the datasets that a dataset is made of."""

    source: SampleSource
    pipeline: Pipeline
    moved: int = 0
    """How many of the last steps a batched transform does on the device."""

    @property
    def steps(self) -> tuple[SampleTransform, ...]:
        """The steps that the workers do."""
        return self.pipeline.steps[: len(self.pipeline.steps) - self.moved]

    @property
    def states(self) -> tuple[State, ...]:
        """The state before each of these steps, and after the last."""
        return self.pipeline.states[: len(self.steps) + 1]

    @property
    def tail(self) -> Tail:
        """The steps that are moved, the state before each, and the names of their streams."""
        first, steps = len(self.steps), self.pipeline.steps
        return tuple(zip(steps[first:], self.pipeline.states[first:-1], names_of(steps)[first:], strict=True))

    @property
    def stages(self) -> Stages:
        """The stages of these steps."""
        whole = not self.pipeline.rest and (self.moved > 0 or self.states[-1].kind != "PIL")
        return stages_of(self.source, self.steps, self.states, whole=whole)

    @property
    def yields(self) -> Yields | None:
        """What the workers make; None if an unknown transform comes last."""
        if self.pipeline.rest:
            return None
        state, size = self.states[-1], size_after(self.source, self.steps)
        kind: Kind = "tensor" if self.moved else state.kind
        return Yields(kind, state.dtype, None if size is None or kind == "PIL" else (state.channels, *size))


class FusedTail(Compose):
    """The last steps, batched: draws what the same steps would draw sample by sample, from streams of these names."""

    def __init__(self, transforms: Sequence[Transform], names: Sequence[str]) -> None:
        super().__init__(transforms)
        self._names = list(names)

    @classmethod
    def of(cls, tail: Tail) -> FusedTail | None:
        """Return the batched transforms of some steps; None if there are none."""
        made = [(transform, name) for step, state, name in tail for transform in step.batched(state) or []]
        return cls([transform for transform, _ in made], [name for _, name in made]) if made else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What runs where, and why not."""

    dataset: str
    """The dataset's class."""
    parts: tuple[Part, ...]
    reason: str | None
    """Why the dataset is not fused; None if it is."""
    rows: str = "Pillow"
    """The name of the decoder that makes rows of files."""
    blocks: str = "torch"
    """The name of what makes blocks of datasets in memory."""

    @property
    def fused(self) -> bool:
        """Whether anything is fused."""
        return self.reason is None

    @property
    def yields(self) -> Yields | None:
        """What the image of a sample is, if it is the same for all."""
        each = {part.yields for part in self.parts}
        return each.pop() if len(each) == 1 else None

    @property
    def direct(self) -> bool:
        """Whether images can be written into a batch: all are of one dtype and shape, and nothing unknown is done."""
        return self.fused and self.yields is not None and all(part.stages.direct for part in self.parts)

    @property
    def tails(self) -> frozenset[Any]:
        """What identifies the steps of the device, for each part; empty if nothing is moved there."""
        tails = (part.tail for part in self.parts if part.moved)
        return frozenset(tuple((step.key, state, name) for step, state, name in tail) for tail in tails)

    @property
    def calls_user_code(self) -> bool:
        """Whether a transform or target_transform of the user's is called, for which generators must be seeded."""
        return any(part.pipeline.rest or part.source.target_transform for part in self.parts)

    def split(self, device: bool) -> tuple[Plan, FusedTail | None]:
        """Return the plan of what the workers do, and what a device, if there is one, does with whole batches of it.

        The second gives what this plan yields: the same for uint8 and for pixels that move, within the tolerance of
        :class:`fastload.transforms.Compose` for the rest. (this plan, None) if nothing is moved.
        """
        moved = {_num_moved(part) for part in self.parts}
        if not device or not self.fused or len(moved) != 1:
            return self, None
        count = moved.pop()
        plan = replace(self, parts=tuple(replace(part, moved=count) for part in self.parts))
        if len(plan.tails) != 1 or plan.yields is None:
            return self, None
        tail = FusedTail.of(plan.parts[0].tail)
        return (self, None) if tail is None else (plan, tail)

    def lines(self) -> Iterator[Line]:
        """Return the table's lines."""
        if not self.parts:
            yield Line(self.dataset, "as it is", self.reason or "")
            return
        counts: Counter[Part] = Counter()
        for part in self.parts:
            counts[replace(part, source=replace(part.source, count=0))] += part.source.count
        for part, count in counts.items():
            yield from self._lines_of(part, count)

    def _lines_of(self, part: Part, count: int) -> Iterator[Line]:
        source, pipeline, stages = part.source, part.pipeline, part.stages
        files = source.size is None
        together = f"row ({self.rows})" if files else f"block ({self.blocks})"
        yield Line(str(replace(source, count=count)), "", self.reason or "")
        if files:
            yield Line("  read, decode", together if stages.head else self.rows, "")
        for place, step in enumerate(pipeline.steps):
            note = ""
            if place >= len(part.steps):
                runs = "device"
            elif place < stages.head:
                runs = together
            elif place < stages.per_sample:
                runs, note = "torchvision", _why_per_sample(part, place)
            elif place < stages.values:
                runs = "values, in one pass"
            else:
                runs = "values, in place"
            yield Line(f"  {step.shown}", runs, note)
        for place, name in enumerate(pipeline.rest):
            note = f"{pipeline.reason}; it gets a {pipeline.state}" if not place else f"comes after {pipeline.rest[0]}"
            yield Line(f"  {name}", "as it is", note)
        if source.target_transform is not None:
            yield Line(f"  target_transform {source.target_transform}", "as it is", "it is the user's")
        if not pipeline.rest:
            whole = replace(part, moved=0).yields
            yield Line("  = image", "", str(pipeline.state if pipeline.state.kind == "PIL" else whole))

    def __str__(self) -> str:
        lines = [Line("stage", "runs", "note"), *self.lines()]
        lines = [
            line._replace(stage=f"{line.stage[: _WIDEST - 3]}...") if len(line.stage) > _WIDEST else line
            for line in lines
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(2)]
        return "\n".join(f"{line.stage:<{widths[0]}}  {line.runs:<{widths[1]}}  {line.note}".rstrip() for line in lines)

    def table(self) -> Any:
        """Return the table for ``rich``."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in Line._fields:
            table.add_column(column, overflow="fold", max_width=_WIDEST if column == "stage" else None)
        for line in self.lines():
            table.add_row(*line, style=None if line.stage.startswith(" ") else "bold")
        return table


def recognise(dataset: Any) -> Plan:
    """Return the plan of a dataset, of which nothing is called: known or not, it can be printed."""
    name = type(dataset).__name__
    changed = replaced()
    if changed is not None:
        return Plan(dataset=name, parts=(), reason=changed)
    try:
        router = Router(dataset)
        parts = []
        for leaf, count in zip(router.leaves, router.counts, strict=True):
            source = source_of(leaf)
            source = source if count is None else replace(source, count=count)
            parts.append(Part(source=source, pipeline=recognise_transform(leaf.transform, source.state)))
    except NotRecognised as why:
        return Plan(dataset=name, parts=(), reason=str(why))
    reason = None if any(part.steps for part in parts) else "no transform of it is known"
    return Plan(dataset=name, parts=tuple(parts), reason=reason if parts else "it is made of no datasets")


def _num_moved(part: Part) -> int:
    """Return how many of the last steps can be batched, beyond those of the row."""
    steps, states = part.pipeline.steps, part.pipeline.states
    if part.pipeline.rest or not part.stages.direct:
        return 0
    least = part.stages.head if part.source.size is None else 0
    first = len(steps)
    while first > least and fits(steps[first - 1], states[first - 1], size_after(part.source, steps[: first - 1])):
        # Beyond their range colours are not continuous, and in half precision affine transforms round coordinates to
        # pixels: there a rounding may make any difference.
        is_half = states[first - 1].dtype in (torch.float16, torch.bfloat16)
        normalised = any(isinstance(step, Normalize) for step in steps[: first - 1])
        if steps[first - 1].role == "color" and (is_half or normalised):
            break
        first -= 1
    return len(steps) - first


def _why_per_sample(part: Part, place: int) -> str:
    step, state = part.steps[place], part.states[place]
    if step.role in ("resize", "color"):
        return "Pillow's own arithmetic" if state.kind == "PIL" else "torch's own arithmetic"
    if part.pipeline.rest:
        return f"so that {part.pipeline.rest[0]} gets what it would get"
    if size_after(part.source, part.steps) is None:
        return "the images are of different sizes"
    if part.states[-1].kind == "PIL":
        return "the samples are PIL images"
    if step.role == "move" and state.dtype.is_floating_point:
        return "it gets floats, and only bytes are moved together: put it before the conversion"
    return "no one pass can do it between the steps beside it"
