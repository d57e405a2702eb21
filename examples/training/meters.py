"""What a run says of itself: lines for people, JSON lines for plots, TensorBoard, and how much it is of the peak."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .errors import RunError, UsageError

# Dense matrix products in bfloat16 or float16 with sums in float32, in FLOP/s; source: NVIDIA's data sheets. The longer
# name comes before the shorter one it contains.
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


def peak_flops(device: torch.device, precision: str, given_tflops: float | None) -> float | None:
    """Return what the device can do at most, in FLOP/s; None where that is not known: nothing is shown then."""
    if given_tflops is not None:
        return given_tflops * 1e12
    if device.type != "cuda" or precision in ("fp32", "tf32"):
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def flops_of_an_image(network: nn.Module, channels: int, size: int) -> float:
    """Return what the forward and backward pass of one image cost: two for each product with its sum.

    Only convolutions and matrix products count, and the backward pass as twice the forward pass, as is the custom.
    (torch's counter is right for forward passes; it takes gradients of grouped convolutions for those of full ones.)
    Nothing is computed: the tensors have no data.
    """
    twin = copy.deepcopy(network).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(torch.empty(1, channels, size, size, device="meta"))
    return 3.0 * int(counter.get_total_flops())


def rates(images: int, seconds: float, waited: float, utilisation: float | None = None) -> str:
    """Return what the lines and the bar say of speed; times in seconds."""
    text = f"{images / seconds:7,.0f} images/s   data wait {waited / seconds:6.1%}"
    return text if utilisation is None else f"{text}   MFU {utilisation:.1%}"


class Stopwatch:
    """The time of an epoch, and how much of it was spent waiting for data, by the host's clock, in seconds."""

    def __init__(self) -> None:
        self.begun = self._asked = time.perf_counter()
        self.waited = 0.0

    def ask(self) -> None:
        """The next batch is asked for now."""
        self._asked = time.perf_counter()

    def got(self) -> float:
        """It has come; return the time."""
        now = time.perf_counter()
        self.waited += now - self._asked
        return now

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self.begun


def _number_or_none(value: Any) -> Any:
    """Return None for a float that JSON does not know: Python would write NaN, and other readers stop there."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Log:
    """One JSON object for each line, and TensorBoard's files; on rank 0, and only where they are asked for.

    A run that was killed writes the steps behind its checkpoint again when it goes on: the later line counts.
    """

    def __init__(self, path: Path | None, tensorboard: Path | None) -> None:
        """Open the files, to go on where they end.

        Raises:
            UsageError: a file cannot be opened, or TensorBoard is not installed.
        """
        self._writer: Any = None
        try:
            self._file = None if path is None else path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(
                f"--json must be a file that can be written to, got {str(path)!r}: {error.strerror or error}"
            ) from None
        if tensorboard is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UsageError("--tensorboard needs TensorBoard: pip install tensorboard, or leave it out") from None
            try:
                self._writer = SummaryWriter(str(tensorboard))
            except OSError as error:
                raise UsageError(
                    f"--tensorboard must be a folder that can be written to, got {str(tensorboard)!r}: "
                    f"{error.strerror or error}; correct it"
                ) from None

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        """Write what happened at a step.

        Raises:
            RunError: the disk is full.
        """
        if self._file is not None:
            line = {name: _number_or_none(value) for name, value in values.items()}
            rest = json.dumps({"kind": kind, "step": step, **line}).encode() + b"\n"
            begin = os.fstat(self._file.fileno()).st_size
            try:
                while rest:  # where the disk is nearly full, a part is written and no error raised
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                with contextlib.suppress(OSError):  # a pipe has no length
                    self._file.truncate(begin)  # or a run that goes on would end the half line with its first one
                name = str(self._file.name)
                raise RunError(f"the log {name!r} cannot be written: {error.strerror or error}; make room") from None
        for name, value in values.items() if self._writer is not None else ():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()
