"""Lets the sides of a benchmark alternate: in one child process, or in a fresh child for each measurement.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import IO, Self

from benchmarks.spec import Benchmark, Measurement, Side

# Long enough for the slowest measurement, the epoch over ten million strings, on a busy machine.
SECONDS_PER_MEASUREMENT = 180.0


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
    facts: dict[str, Measurement] = field(default_factory=dict)
    """Side -> versions of its library, Python and torch, where it has an environment of its own."""

    def settle(self, reason: str) -> None:
        """Keep what can be compared: whole rounds of the sides that were measured."""
        for name in (*self.skipped, *self.failed):
            self.measurements.pop(name, None)
        for name in [name for name, values in self.measurements.items() if not values]:
            self.skipped[name] = reason
            del self.measurements[name]
        rounds = min(map(len, self.measurements.values()), default=0)
        for values in self.measurements.values():
            del values[rounds:]


def measure_in_turn(
    benchmark: Benchmark,
    arguments: Mapping[str, object],
    repetitions: int,
    advance: Callable[[str], None],
) -> dict[str, list[Measurement]]:
    """Measure every side of ``benchmark`` ``repetitions`` times.

    Returns:
        Name of side -> its measurements; those at the same place were made one after the other, so they are pairs.
    """
    rounds = [list(benchmark.sides)[:: 1 if number % 2 == 0 else -1] for number in range(repetitions)]
    if benchmark.fresh_process:
        children = [[side] for sides in rounds for side in sides]
        num_thrown_away = 0
    else:
        children = [[*benchmark.sides, *(side for sides in rounds for side in sides)]]
        num_thrown_away = 1
    measurements: dict[str, list[Measurement]] = {side.name: [] for side in benchmark.sides}
    for sides in children:
        asyncio.run(_measure_in_child(benchmark, arguments, sides, advance, measurements))
    return {name: values[num_thrown_away:] for name, values in measurements.items()}


def num_measurements(benchmark: Benchmark, repetitions: int) -> int:
    """Return how often ``advance`` is called for a benchmark."""
    return len(benchmark.sides) * (repetitions + (0 if benchmark.fresh_process else 1))


async def _measure_in_child(
    benchmark: Benchmark,
    arguments: Mapping[str, object],
    sides: list[Side],
    advance: Callable[[str], None],
    measurements: dict[str, list[Measurement]],
) -> None:
    """Start a child, hand it its request, and add what it measures to ``measurements``."""
    async with Child(environment=sides[0].environment if benchmark.fresh_process else {}) as child:
        child.ask(benchmark.measure, arguments, sides)
        for side in sides:
            advance(f"{benchmark.name}: {side.name}")
            answer = await child.answer(f"{benchmark.name} on {side.name}", SECONDS_PER_MEASUREMENT)
            measurements[side.name].append(answer)
        await child.end(SECONDS_PER_MEASUREMENT)


class Child:
    """A process that measures. Leaving the context kills whatever is left of it: the child, its workers, a fork server.

    It carries out one request after the other, and its answers come in their order.
    """

    def __init__(self, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> None:
        self._python = python
        self._environment = {**os.environ, **(environment or {})}

    async def __aenter__(self) -> Self:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed where the context is left)
        # A session of its own, so that a child that hangs can be ended together with its workers.
        self._process = await asyncio.create_subprocess_exec(
            self._python,
            "-m",
            "benchmarks.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
            limit=2**24,
            env=self._environment,
        )
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._complaints.close()

    def ask(self, measure: str, arguments: Mapping[str, object], sides: Sequence[Side]) -> None:
        """Ask for the sides' measurements; ``measure`` is ``module:function``."""
        assert self._process.stdin is not None
        request = {"measure": measure, "arguments": dict(arguments), "sides": [asdict(side) for side in sides]}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def answer(self, what: str, limit_s: float) -> Measurement:
        """Return the next measurement, called ``what`` in errors."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError:
            raise MeasurementFailed(f"{what} took more than {limit_s:.0f} s\n{_tail(self._complaints)}") from None
        if not line:
            raise MeasurementFailed(f"{what}: the child ended without a result\n{_tail(self._complaints)}")
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
        self.go_on()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), limit_s)


def end_children_too() -> None:
    """Let SIGTERM end this process as Ctrl-C does: the children have sessions of their own, and would run on."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def _tail(complaints: IO[str]) -> str:
    """Return the last lines that a child wrote to standard error."""
    complaints.seek(0)
    return "".join(complaints.readlines()[-20:]).rstrip()
