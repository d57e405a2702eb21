"""Lets the sides of a case take turns, each in a child process of its own.

A child lives until its case ends, so that a loader keeps what it learnt and compiled; while one measures, the others
are stopped, since some load ahead without end. Its first measurement does not count. Where what ran before in a process
would show in the number, each measurement has a new child. A side that fails, or takes too long, is left out from then
on, and the others go on.

The order is ABBA: the sides in their order, then reversed, and so on. A machine that gets slower or faster during the
run favours neither side in such an order.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Self

from benchmarks.spec import Case, Measurement, Side

# Long enough for the slowest measurement, the epoch over ten million strings, on a busy machine.
_SECONDS_PER_MEASUREMENT = 180.0
# To make files, to import, to compile and to check: FFCV's first epoch takes half a minute on an idle machine.
_SECONDS_TO_BEGIN = 300.0
_SECONDS_TO_END = 10.0


class MeasurementFailed(Exception):
    """A child process could not measure; the message says which side, and what the child said."""


@dataclass(kw_only=True)
class Measured:
    """What came of a case."""

    measurements: dict[str, list[Measurement]] = field(default_factory=dict)
    """Side -> its measurements; those at the same place were made one after the other. Only sides that have all."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Side -> why it could not be measured."""
    failed: dict[str, str] = field(default_factory=dict)
    """Side -> the error."""
    first: dict[str, Measurement] = field(default_factory=dict)
    """Side -> what the case's ``first`` returned."""

    def settle(self, case: Case, reason: str) -> None:
        """Keep whole rounds of the sides that were measured; ``reason`` says why others were not."""
        for side in case.sides:
            if side.name in self.skipped or side.name in self.failed:
                self.measurements.pop(side.name, None)
            elif not self.measurements.get(side.name):
                self.measurements.pop(side.name, None)
                self.skipped[side.name] = reason
        rounds = min(map(len, self.measurements.values()), default=0)
        for values in self.measurements.values():
            del values[rounds:]


async def measure(
    case: Case,
    repetitions: int,
    found: Measured,
    advance: Callable[[str], None],
    deadline: float | None = None,
) -> None:
    """Measure every side up to ``repetitions`` times, and add the measurements to ``found``.

    Args:
        case: what is measured.
        repetitions: of each side, beside those that do not count.
        found: sides that it says were skipped or failed are left out.
        advance: is told what is measured next.
        deadline: when to stop, on the event loop's clock.
    """
    turns = _Turns(case, found, advance)
    try:
        async with asyncio.timeout_at(deadline):
            if not case.fresh_process:
                for step in (turns.start, turns.begin):  # all children import at the same time
                    for side in case.sides:
                        await turns.guarded(side, step)
            for number in range(repetitions):
                for side in case.sides[:: 1 if number % 2 == 0 else -1]:
                    await turns.guarded(side, turns.measure_fresh if case.fresh_process else turns.measure)
    except TimeoutError:
        pass  # what was measured by then counts
    finally:
        await turns.end()
        found.settle(case, "time was up (--limit), or somebody ended the run")


def num_measurements(case: Case, repetitions: int) -> int:
    """Return how many measurements a case takes, with those that do not count."""
    return len(case.sides) * (repetitions + (0 if case.fresh_process else 1))


class _Turns:
    """The children of a case."""

    def __init__(self, case: Case, found: Measured, advance: Callable[[str], None]) -> None:
        self._case, self._found, self._advance = case, found, advance
        self._children: dict[str, Child] = {}

    async def guarded(self, side: Side, step: Callable[[Side], Awaitable[None]]) -> None:
        """Carry out a step of a side that was neither skipped nor failed before."""
        if side.missing:
            self._found.skipped[side.name] = side.missing
        if side.name in self._found.skipped or side.name in self._found.failed:
            return
        try:
            await step(side)
        except MeasurementFailed as error:
            self._found.failed[side.name] = str(error)
        if side.name in self._found.skipped or side.name in self._found.failed:
            await self._leave(side)

    async def start(self, side: Side) -> None:
        self._children[side.name] = await Child(side.python, self._case.measure).__aenter__()

    async def begin(self, side: Side) -> None:
        """Let a side make its files, and measure once for nothing."""
        if side.prepare:
            async with Child(side.python) as maker:
                await self._ask(maker, side.prepare, side, _SECONDS_TO_BEGIN)
        child = self._children[side.name]
        answer = await self._ask(child, self._case.first or self._case.measure, side, _SECONDS_TO_BEGIN)
        child.pause()
        if self._case.first:
            self._found.first[side.name] = answer

    async def measure(self, side: Side) -> None:
        child = self._children[side.name]
        child.go_on()
        self._add(side, await self._ask(child, self._case.measure, side, _SECONDS_PER_MEASUREMENT))
        child.pause()

    async def measure_fresh(self, side: Side) -> None:
        async with Child(side.python) as child:
            self._add(side, await self._ask(child, self._case.measure, side, _SECONDS_PER_MEASUREMENT))
            await child.end(_SECONDS_TO_END)

    def _add(self, side: Side, answer: Measurement) -> None:
        if side.name not in self._found.skipped:
            self._found.measurements.setdefault(side.name, []).append(answer)

    async def _ask(self, child: "Child", function: str, side: Side, limit_s: float) -> Measurement:
        self._advance(f"{self._case.name}: {side.name}")
        child.ask(function, {**self._case.arguments, **side.arguments}, side)
        answer = await child.answer(f"{self._case.name}: {side.name}", limit_s)
        if "skipped" in answer:
            self._found.skipped[side.name] = str(answer["skipped"])
        return answer

    async def _leave(self, side: Side) -> None:
        if (child := self._children.pop(side.name, None)) is not None:
            await child.__aexit__()

    async def end(self) -> None:
        """Let the children end, so that their CPU time counts as our own; kill those that do not."""
        children = list(self._children.values())
        self._children.clear()
        await asyncio.gather(*(_end(child) for child in children))


async def _end(child: "Child") -> None:
    if not child.is_asked:
        await child.end(_SECONDS_TO_END)
    await child.__aexit__()


class Child:
    """A process that measures. Leaving the context kills whatever is left of it: the child, its workers, a fork server.

    It imports the module of ``function`` while it waits, carries out one request after the other, and its answers come
    in their order.
    """

    def __init__(self, python: str = sys.executable, function: str = "") -> None:
        self._command = [python, "-m", "benchmarks.child", function.partition(":")[0]]
        self.is_asked = False
        """True while it owes an answer."""

    async def __aenter__(self) -> Self:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed where the context is left)
        # A session of its own, so that a child that hangs can be ended together with its workers.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
            limit=2**24,
        )
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._complaints.close()

    def ask(self, function: str, arguments: Mapping[str, object], side: Side) -> None:
        """Ask for a measurement; ``function`` is ``module:function``."""
        assert self._process.stdin is not None
        told = {"name": side.name, "package": side.package, "options": dict(side.options)}
        request = {"measure": function, "arguments": dict(arguments), "side": told}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self.is_asked = True

    async def answer(self, what: str, limit_s: float) -> Measurement:
        """Return the next measurement, called ``what`` in errors."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError:
            raise MeasurementFailed(f"{what} took more than {limit_s:.0f} s\n{_tail(self._complaints)}") from None
        if not line:
            raise MeasurementFailed(f"{what}: the child ended without a result\n{_tail(self._complaints)}")
        self.is_asked = False
        answer = json.loads(line)
        if "error" in answer:
            raise MeasurementFailed(f"{what}:\n{answer['error'].rstrip()}")
        measurement: Measurement = answer["measurement"]
        return measurement

    def pause(self) -> None:
        """Stop the child and its workers until :meth:`go_on`: some load on when nobody asks."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def end(self, limit_s: float) -> None:
        """Let the child end by itself, if it does so in time."""
        self.go_on()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), limit_s)


def _tail(complaints: IO[str]) -> str:
    """Return the last lines that a child wrote to standard error."""
    complaints.seek(0)
    return "".join(complaints.readlines()[-20:]).rstrip()
