"""How near crop, flip, normalise and cast come to a copy on the GPU: one JSON line for each way of doing it.

``python -m benchmarks.device_transforms``, on an idle GPU. Claim to be checked: uint8 to bfloat16, channels-last, 256
images of 256 x 256 cropped to 224 x 224, at 0.8 of the bandwidth of a copy on the device or more. Bandwidth counts each
byte of the crops once and each byte of the result once; a copy reads and writes as many bytes in all. Times are medians
of 50 by CUDA events around the whole call, with parameters that are on the device already; before each the device is
kept busy until the host has queued the call, so that they are the device's times and not the host's. A GPU that does
something else, or whose clocks are not warm, makes the numbers meaningless.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch

from fastload import transforms
from fastload.transforms.params import params_to

NUM, SIDE, CROP = 256, 256, 224
_BUSY = 4_000_000  # cycles: some 2 ms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def seconds(call: Callable[[], Any], repetitions: int = 50) -> list[float]:
    """Return the times of calls on the device, after ten that are not counted."""
    for _ in range(10):
        call()
    found = []
    for _ in range(repetitions):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_BUSY)
        begun.record()
        call()
        ended.record()
        ended.synchronize()
        found.append(begun.elapsed_time(ended) / 1000)
    return found


def main() -> None:
    """Print a line for the copy, and one for each way."""
    images = torch.randint(0, 256, (NUM, SIDE, SIDE, 3), dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    composed = transforms.Compose(
        [
            transforms.RandomCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.bfloat16, scale=True),
            transforms.Normalize(MEAN, STD),
        ]
    )
    _, drawn = composed(images, return_params=True)
    params = params_to(drawn, images.device)
    num_bytes = NUM * 3 * CROP * CROP * (1 + 2)
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    compiled = torch.compile(composed.transform)

    def switched(wish: str) -> Callable[[], Any]:
        def call() -> Any:
            os.environ["FASTLOAD_TRITON"] = wish
            return composed.transform(images, params)

        return call

    ways: dict[str, Callable[[], Any]] = {
        "copy": lambda: target.copy_(source),
        "triton": switched("1"),
        "torch": switched("0"),
        "compiled": lambda: compiled(images, params),
    }
    rates: dict[str, float] = {}
    for name, call in ways.items():
        times = seconds(call)
        low, middle, high = statistics.quantiles(times, n=4)
        rates[name] = num_bytes / middle
        line = {
            "way": name,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "n": len(times),
            "microseconds": [round(1e6 * value, 1) for value in (low, middle, high)],
            "gigabytes_per_second": round(rates[name] / 1e9, 1),
            "of_copy": round(rates[name] / rates["copy"], 3),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
