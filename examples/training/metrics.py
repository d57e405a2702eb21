"""How fast a run is: times, images per second, and the fraction of the device's peak."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# Dense matrix products in bfloat16 or float16 with sums in float32, in FLOP/s; source: NVIDIA's data sheets. A longer
# name is before the shorter one that it contains.
PEAKS = {
    "H200": 989.5e12,
    "H100 PCIe": 756.0e12,
    "H100": 989.5e12,
    "A100": 312.0e12,
    "L40S": 362.0e12,
    "L4": 121.0e12,
    "V100": 125.0e12,
    "T4": 65.0e12,
}


def peak_flops(device: torch.device, precision: str, given_tflops: float | None) -> float:
    """Return the device's peak in FLOP/s; 0 if it is unknown, then no utilisation is shown."""
    if given_tflops is not None:
        return given_tflops * 1e12
    if device.type != "cuda" or precision in ("fp32", "tf32"):
        return 0.0
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), 0.0)


def flops_per_image(network: nn.Module, channels: int, size: int) -> float:
    """Return the FLOPs of the forward and backward pass of one image, without computing anything.

    As usual, only convolutions and matrix products count, and the backward pass counts as twice the forward pass.
    (torch's counter is wrong for the gradients of grouped convolutions.)
    """
    twin = copy.deepcopy(network).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(torch.empty(1, channels, size, size, device="meta"))
    return 3.0 * int(counter.get_total_flops())


class Timer:
    """Measures an epoch, and how much of it is spent waiting for data, by the host's clock, in seconds."""

    def __init__(self) -> None:
        self.start = self._requested = time.perf_counter()
        self.received = self.start
        """When the last batch was received."""
        self.waited = 0.0
        self.images = 0
        """Images trained, on all ranks; the user of the timer counts them."""

    def batch_requested(self) -> None:
        """Start waiting for the next batch."""
        self._requested = time.perf_counter()

    def batch_received(self) -> None:
        """Stop waiting."""
        self.received = time.perf_counter()
        self.waited += self.received - self._requested

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self.start


@dataclass(frozen=True)
class Throughput:
    """How fast images were trained, over all ranks."""

    images: int
    seconds: float
    waited: float
    """Seconds spent waiting for data."""
    utilisation: float | None = None
    """Fraction of the devices' peak FLOP/s."""
    data_wait_of_ranks: tuple[float, ...] = ()
    """Fraction of its time that each rank spent waiting for data."""

    @classmethod
    def of_ranks(cls, images: int, times: list[tuple[float, float]], image_flops: float, peak: float) -> Throughput:
        """Return the throughput of an epoch; the slowest rank counts, since the others wait for it."""
        seconds, waited = (max(column) for column in zip(*times, strict=True))
        utilisation = images * image_flops / seconds / (peak * len(times)) if peak else None
        waits = tuple(waited / seconds for seconds, waited in times)
        return cls(images, seconds, waited, utilisation, waits)

    @property
    def images_per_s(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    def __add__(self, other: Throughput) -> Throughput:
        return Throughput(self.images + other.images, self.seconds + other.seconds, self.waited + other.waited)

    def __str__(self) -> str:
        text = f"{self.images_per_s:7,.0f} images/s   data wait {self.waited / self.seconds:6.1%}"
        return text if self.utilisation is None else f"{text}   MFU {self.utilisation:.1%}"
