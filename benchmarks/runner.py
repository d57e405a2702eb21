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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO

from benchmarks.spec import Benchmark, Measurement, Side

# Long enough for the slowest measurement, the epoch over ten million strings, on a busy machine.
_SECONDS_PER_MEASUREMENT = 180.0


class MeasurementFailed(Exception):
    """A child process could not measure; the message says which side, and what the child said."""


def measure_in_turn(
    benchmark: Benchmark,
    arguments: Mapping[str, object],
    repetitions: int,
    advance: Callable[[str], None],
) -> dict[str, list[Measurement]]:
    """Measure every side of ``benchmark`` ``repetitions`` times.

    Args:
        benchmark: what to measure.
        arguments: for the measuring function.
        repetitions: recorded measurements of each side. In a shared process one more goes before them and is thrown
            away, so that imports, caches and the allocator are warm; the file cache is warm in any case.
        advance: called before each measurement with what is measured: benchmark and side.

    Returns:
        Name of side -> its measurements; those at the same place were made one after the other, so they are pairs.

    Raises:
        MeasurementFailed: a measurement raised, died or took too long.
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
    request = {
        "measure": benchmark.measure,
        "arguments": dict(arguments),
        "sides": [asdict(side) for side in sides],
    }
    with tempfile.TemporaryFile("w+") as complaints:
        # A session of its own, so that a child that hangs can be ended together with its workers.
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
            limit=2**24,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.close()
            for side in sides:
                advance(f"{benchmark.name}: {side.name}")
                try:
                    line = await asyncio.wait_for(child.stdout.readline(), _SECONDS_PER_MEASUREMENT)
                except TimeoutError:
                    raise MeasurementFailed(
                        f"{benchmark.name} on {side.name} took more than {_SECONDS_PER_MEASUREMENT:.0f} s"
                    ) from None
                if not line:
                    said = _tail(complaints)
                    raise MeasurementFailed(
                        f"{benchmark.name} on {side.name}: the child ended without a result\n{said}"
                    )
                answer = json.loads(line)
                if "error" in answer:
                    raise MeasurementFailed(f"{benchmark.name} on {side.name}:\n{answer['error'].rstrip()}")
                measurements[side.name].append(answer["measurement"])
            await asyncio.wait_for(child.wait(), _SECONDS_PER_MEASUREMENT)
        finally:
            _end_session(child.pid)
            await child.wait()


def _tail(complaints: IO[str]) -> str:
    """Return the last lines that a child wrote to standard error."""
    complaints.seek(0)
    return "".join(complaints.readlines()[-20:]).rstrip()


def _end_session(leader_pid: int) -> None:
    """Kill whatever is left of the child's process group: the child, its workers, a fork server."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)
