"""Lets the sides of a case alternate, each in a child of its own, run by its own environment's Python.

All children of a case live until its end, so that a loader keeps what it learnt and compiled; while one measures, the
others are stopped, since some load ahead without end. A side that fails, or takes too long, is left out from then on.
The order is ABBA, as in ``benchmarks/runner.py``.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers import packing
from benchmarks.peers.catalogue import Beside, Case
from benchmarks.peers.install import python_of
from benchmarks.runner import Child, Measured, MeasurementFailed
from benchmarks.spec import Measurement, Side

# The first request imports, compiles and checks: FFCV's takes half a minute on an idle machine.
_SECONDS_PER_CHECK = 240.0
_SECONDS_PER_EPOCH = 120.0
_SECONDS_TO_END = 10.0


class Runner:
    """Measures cases; an asynchronous context, at whose end no process is left."""

    def __init__(self, environments: Path | None, data: Path, packed: Path, advance: Callable[[str], None]) -> None:
        self._environments = environments
        self._data = data
        self._packed = packed
        self._advance = advance
        self._children: dict[str, Child] = {}

    async def __aenter__(self) -> "Runner":
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._end_children()

    async def measure(self, case: Case, arguments: Mapping[str, object], repetitions: int, deadline: float) -> Measured:
        """Measure every side of a case up to ``repetitions`` times."""
        found = Measured(measurements={side.name: [] for side in case.sides})
        requests = {side.name: self._arguments(side, arguments) for side in case.sides}
        for side in case.sides:
            await self._begin(case, side, requests[side.name], found)
        longest = 0.0
        for number in range(repetitions):
            start = time.monotonic()
            if number > 0 and start + longest > deadline:
                break
            for side in case.sides[:: 1 if number % 2 == 0 else -1]:
                if side.name in self._children:
                    await self._round(case, side, requests[side.name], found)
            longest = max(longest, time.monotonic() - start)
        for name in (*found.skipped, *found.failed):
            del found.measurements[name]
        await self._end_children()
        return found

    def _arguments(self, side: Beside, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return a side's own arguments, with its folders; the tree of images is made if it is needed."""
        own = {**arguments, **side.arguments}
        num_images = int(str(own["num_images"]))
        images = self._data
        if own["work"] == "images":
            images = packing.link_images(self._data, self._packed, num_images)
        packed = self._packed / (f"{side.packed}-{num_images}" if side.packed is not None else "none")
        return {**own, "images": str(images), "packed": str(packed)}

    async def _begin(self, case: Case, side: Beside, arguments: Mapping[str, object], found: Measured) -> None:
        """Pack, start the side's child, and let it check its batches."""
        python = sys.executable
        if side.environment is not None:
            if self._environments is None:
                found.skipped[side.name] = "no --envs given"
                return
            python = str(python_of(self._environments, side.environment))
            if not Path(python).exists():
                found.skipped[side.name] = (
                    f"not installed: python -m benchmarks.peers.install {self._environments} {side.environment}"
                )
                return
        try:
            if side.packed is not None:
                await packing.pack(side, python, Path(str(arguments["packed"])), arguments, self._advance)
            self._children[side.name] = await Child(python).__aenter__()
            self._advance(f"{case.name}: {side.name}")
            found.facts[side.name] = await self._ask(case, side, "check", arguments)
        except MeasurementFailed as error:
            await self._leave_out(side, found, error)

    async def _round(self, case: Case, side: Beside, arguments: Mapping[str, object], found: Measured) -> None:
        self._advance(f"{case.name}: {side.name}")
        try:
            found.measurements[side.name].append(await self._ask(case, side, "epoch", arguments))
        except MeasurementFailed as error:
            await self._leave_out(side, found, error)

    async def _ask(self, case: Case, side: Beside, function: str, arguments: Mapping[str, object]) -> Measurement:
        child = self._children[side.name]
        plain = Side(name=side.name, package=side.package, options=side.options)
        child.go_on()
        child.ask(f"benchmarks.peers.measuring:{function}", arguments, [plain])
        limit_s = _SECONDS_PER_CHECK if function == "check" else _SECONDS_PER_EPOCH
        try:
            return await child.answer(f"{case.name}: {side.name}", limit_s)
        finally:
            child.pause()

    async def _leave_out(self, side: Beside, found: Measured, error: MeasurementFailed) -> None:
        found.failed[side.name] = str(error)
        if (child := self._children.pop(side.name, None)) is not None:
            await child.__aexit__()

    async def _end_children(self) -> None:
        """Let the children end, so that their CPU time counts as our own; kill those that do not."""
        children = list(self._children.values())
        self._children.clear()
        await asyncio.gather(*(_end(child) for child in children))


async def _end(child: Child) -> None:
    with contextlib.suppress(TimeoutError):
        await child.end(_SECONDS_TO_END)
    await child.__aexit__()
