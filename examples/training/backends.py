"""What torch's libraries may do on a device: how they choose algorithms, and how exact products are."""

from __future__ import annotations

import os

import torch


def set_backends(device: torch.device, *, precision: str, deterministic: bool) -> None:
    """Set what holds for the whole process.

    * ``deterministic``: only algorithms that give the same bits again. Otherwise, on CUDA, cuDNN tries its algorithms
      for each new shape and takes the fastest: a training has few shapes, also where the images grow.
    * ``precision="tf32"``: products of matrices may be in TF32, as convolutions on CUDA are by torch's own default.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not deterministic
    if precision == "tf32" and device.type == "cuda":  # on the CPU the run is refused
        torch.set_float32_matmul_precision("high")
