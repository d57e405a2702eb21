"""How fast a run is: times, and images per second."""

from __future__ import annotations

import time
from dataclasses import dataclass


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
    data_wait_of_ranks: tuple[float, ...] = ()
    """Fraction of its time that each rank spent waiting for data."""

    @classmethod
    def of_ranks(cls, images: int, times: list[tuple[float, float]]) -> Throughput:
        """Return the throughput of an epoch; the slowest rank counts, since the others wait for it."""
        seconds, waited = (max(column) for column in zip(*times, strict=True))
        return cls(images, seconds, waited, tuple(waited / seconds for seconds, waited in times))

    @property
    def images_per_s(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    def __add__(self, other: Throughput) -> Throughput:
        return Throughput(self.images + other.images, self.seconds + other.seconds, self.waited + other.waited)

    def __str__(self) -> str:
        return f"{self.images_per_s:7,.0f} images/s   data wait {self.waited / self.seconds:6.1%}"
