"""Settings of torch for the whole process: threads, and how its libraries compute."""

from __future__ import annotations

import os
from argparse import Namespace

import torch

from .distributed import World


def set_backends(args: Namespace, world: World) -> None:
    """Apply ``--threads``, ``--deterministic`` and ``--precision``.

    * Threads: torchrun would leave one to each rank. By default a rank on the CPU gets its share of the cores, less
      those of its loader workers.
    * With ``deterministic`` only algorithms that give the same bits again are used. Otherwise cuDNN tries its
      algorithms for each new shape and takes the fastest.
    * With ``tf32`` matrix products may use TF32, as convolutions on CUDA do by default.
    """
    if world.device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        local_workers = 0 if args.worker_method == "ray" else args.workers
        torch.set_num_threads(args.threads or max(1, cores // world.local_size - local_workers))
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = world.device.type == "cuda" and not args.deterministic
    if args.precision == "tf32" and world.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
