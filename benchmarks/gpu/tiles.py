"""Which tiles the crop kernel is fastest with on this GPU: ``python -m benchmarks.gpu.tiles --json tiles.json``.

Out: a JSON file with the time of each tile for the two crop pipelines of the benchmarks, channels-last; on standard
output the line that ``fastload/transforms/measured_tiles.py`` is to have for this GPU. Time is up after ``--limit``
seconds: what has been measured by then is written.

Each tile is timed as the benchmarks' "kernels" are, 8 calls in a CUDA graph: the fastest of three graphs, in turn with
nothing else. A tile that does not compile is left out, and said.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.catalogue import ALL
from benchmarks.gpu.measuring import captured, seconds_of
from fastload.transforms import fused
from fastload.transforms.measured_tiles import MEASURED, Tile

_NUM_CALLS = 8
_CASES = ("transforms-crop-224", "transforms-pad-crop-32")
# From 8 to 64 values for each thread.
CANDIDATES = [
    Tile(rows, values, strips, warps)
    for rows, values, warps in itertools.product((8, 16, 32, 64), (32, 64, 128, 256), (2, 4, 8))
    if 8 <= rows * values // (32 * warps) <= 64
    for strips in (1, 2, 4, 8)
]


class Sweep(NamedTuple):
    """What was measured for one length of rows."""

    rule: float
    """Seconds with the rule's tile."""
    found: dict[Tile, float]
    """Seconds of each tile."""
    failed: dict[Tile, str]
    """Why others could not be measured."""

    @property
    def best(self) -> Tile | None:
        """The fastest tile; None where the rule's is as fast."""
        tile = min(self.found, key=lambda one: self.found[one], default=None)
        return tile if tile is not None and self.found[tile] < self.rule else None

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "best": self.best,
            "tiles": [[*tile, seconds] for tile, seconds in sorted(self.found.items(), key=lambda item: item[1])],
            "failed": [[*tile, reason] for tile, reason in self.failed.items()],
        }


def sweep(
    seconds_with: Callable[[Tile | None], float],
    candidates: Sequence[Tile],
    is_over: Callable[[], bool],
) -> Sweep:
    """Time all tiles, or as many as there is time for. ``seconds_with``: of the rule's tile for None."""
    done = Sweep(seconds_with(None), {}, {})
    for tile in candidates:
        if is_over():
            break
        try:
            done.found[tile] = seconds_with(tile)
        except Exception as error:  # one that the compiler or the device refuses
            done.failed[tile] = str(error).splitlines()[0] if str(error) else type(error).__name__
    return done


def line_for(name: str, sweeps: dict[int, Sweep]) -> str:
    """Return the line of ``measured_tiles.py`` for a GPU."""
    tiles = ", ".join(f"{length}: {tile!r}" for length, one in sweeps.items() if (tile := one.best) is not None)
    return f'    "{name}": {{{tiles}}},'


def main() -> int:
    """Measure; return 1 if there is no CUDA device, or nothing was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tiles", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=400, metavar="S", help="stop after S seconds (default: 400)")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if torch.device(options.device).type != "cuda" or not torch.cuda.is_available():
        print(f"tiles are measured on a CUDA device, and torch has none for --device {options.device}", file=sys.stderr)
        return 1
    end = time.monotonic() + options.limit
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device)
    sweeps: dict[int, Sweep] = {}
    for number, case in enumerate(case for case in ALL if case.name in _CASES):
        until = end - (len(_CASES) - 1 - number) * (end - time.monotonic()) / (len(_CASES) - number)
        length = 3 * int(str(case.arguments["crop"]))
        seconds_with = _timing(case.arguments, length, name, device)
        sweeps[length] = sweep(seconds_with, CANDIDATES, lambda until=until: time.monotonic() > until)  # type: ignore[misc]
        written = {"gpu": name, "torch": torch.__version__, "commit": options.commit}
        lengths = {str(one): done.as_json() for one, done in sweeps.items()}
        options.json.write_text(json.dumps({**written, "candidates": len(CANDIDATES), "lengths": lengths}) + "\n")
    print(line_for(name, sweeps))
    return 0


def _timing(arguments: Any, length: int, name: str, device: torch.device) -> Callable[[Tile | None], float]:
    """Return a function that times the crop kernel with a tile."""
    from benchmarks.gpu.transforms import RECIPES, _inputs, _on
    from fastload import transforms as T  # noqa: N812

    crop, num = arguments["crop"], arguments["num"]
    inputs = _inputs(num, arguments["size"], arguments["num_inputs"], device)
    pipeline = T.Compose(RECIPES[arguments["recipe"]].members(crop))
    params = _on(pipeline(inputs.images[0], return_params=True)[1], device)

    def work() -> None:
        for call in range(_NUM_CALLS):
            pipeline(inputs.images[call % len(inputs.images)], params=params)

    def seconds_with(tile: Tile | None) -> float:
        before = MEASURED.pop(name, None)
        try:
            if tile is not None:
                MEASURED[name] = {length: tile}
            replay = captured(work, device)
            return min(seconds_of(replay, device) for _ in range(3)) / _NUM_CALLS
        finally:
            MEASURED.pop(name, None)
            if before is not None:
                MEASURED[name] = before

    if not fused.available(device):
        raise RuntimeError(f"the Triton kernels do not run on {name}, so there are no tiles to measure")
    return seconds_with


if __name__ == "__main__":
    sys.exit(main())
