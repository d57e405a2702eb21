"""Lets the sides of each case alternate in one child process, and puts another in its place when a side fails.

A side that fails, or takes too long, is left out from then on; the others go on in a new child, since a GPU's error may
stay with the process that met it. Each side's first measurement in a child is thrown away: what is done once belongs to
it. The order is ABBA, as in ``benchmarks/runner.py``.
"""

from collections.abc import Callable, Mapping

from benchmarks.gpu.catalogue import Case
from benchmarks.runner import Child, Measured, MeasurementFailed
from benchmarks.spec import Measurement, Side

# The first measurement of a side imports, compiles and uploads; none is longer than that on an idle machine.
_SECONDS_PER_MEASUREMENT = 90.0
_NOBODY = Side(name="", package="none")


class Runner:
    """Measures cases; an asynchronous context, at whose end no process is left."""

    def __init__(self, device: str, advance: Callable[[str], None]) -> None:
        self._device = device
        self._advance = advance
        self._child: Child | None = None
        self._warm: set[str] = set()

    async def __aenter__(self) -> "Runner":
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.leave_child()

    async def describe(self) -> Measurement:
        """Return what the device is. Raises :class:`MeasurementFailed`."""
        return await self._ask("benchmarks.gpu.measuring:describe", {}, _NOBODY, "the device")

    async def measure(self, case: Case, arguments: Mapping[str, object], repetitions: int, found: Measured) -> None:
        self._warm.clear()
        for number in range(repetitions):
            for side in case.sides[:: 1 if number % 2 == 0 else -1]:
                if side.name not in found.skipped and side.name not in found.failed:
                    await self._measure_side(case, arguments, side, found)
        if self._child is not None:
            try:
                await self._ask("benchmarks.gpu.measuring:forget", {}, _NOBODY, f"the end of {case.name}")
            except MeasurementFailed:
                await self.leave_child()

    async def _measure_side(self, case: Case, arguments: Mapping[str, object], side: Side, found: Measured) -> None:
        what = f"{case.name}: {side.name}"
        self._advance(what)
        try:
            if side.name not in self._warm:
                answer = await self._ask(case.measure, arguments, side, what)
                if "skipped" in answer:
                    found.skipped[side.name] = str(answer["skipped"])
                    return
                self._warm.add(side.name)
            answer = await self._ask(case.measure, arguments, side, what)
        except MeasurementFailed as error:
            found.failed[side.name] = str(error)
            await self.leave_child()
        else:
            found.measurements[side.name].append(answer)

    async def _ask(self, measure: str, arguments: Mapping[str, object], side: Side, what: str) -> Measurement:
        if self._child is None:
            self._child = await Child().__aenter__()
        self._child.ask(measure, {"device": self._device, **arguments}, [side])
        return await self._child.answer(what, _SECONDS_PER_MEASUREMENT)

    async def leave_child(self) -> None:
        """End the child process, whatever it does; the next measurement starts another one."""
        child, self._child = self._child, None
        self._warm.clear()
        if child is not None:
            await child.__aexit__()
