r"""Train as train.py does, started by Ray Train instead of torchrun, with loader workers on any machine of the cluster.

    python examples/ray_train.py --ranks 2 --out runs/1                      # Ray is started on this machine
    RAY_ADDRESS=auto python examples/ray_train.py --ranks 8 --workers 8 \
        --data-dir DIR --recipe imagenet-resnet50 --fuse --out s3://bucket/runs/1

All options of train.py are there too. ``--workers`` counts the Ray workers of each rank. A rank has a GPU where the
cluster has one for each, otherwise they use gloo.

Ray Train keeps the checkpoints, in a folder or a bucket that all machines reach. The same command resumes at the next
image, on any number of ranks, workers and machines; with ``--max-failures`` Ray Train itself does so when a rank or its
machine is lost.

Without RAY_ADDRESS, ``ray.init("local")`` starts Ray on this machine and stops it at the end. Two things stay:
``~/.ray/auth_token``, a secret by which later clusters of yours know their own processes (``RAY_AUTH_MODE=disabled``:
none is written), and Ray's logs in ``/tmp/ray``. Both can be deleted when no Ray runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from typing import Any

import ray
import ray.train
import torch.distributed as dist
import train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device
from training.backends import set_backends
from training.distributed import Signals, World
from training.errors import errors_as_messages
from training.options import parse_arguments


class ReportedRun(train.Run):
    """A run whose checkpoints Ray Train keeps."""

    def save(self) -> None:
        """Save a checkpoint to this rank's own folder, and hand it to Ray Train. All ranks must call this."""
        super().save()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if self.path is not None and self.world.rank == 0:
                shutil.copy(self.path, folder)
                saved = Checkpoint.from_directory(folder)
            ray.train.report({"step": self.step}, checkpoint=saved)  # returns when all ranks have called it


def this_world() -> World:
    """Return the ranks, whose process group Ray Train has made."""
    context = ray.train.get_context()
    size = context.get_world_size()
    return World(
        context.get_world_rank(),
        size,
        context.get_local_rank(),
        context.get_local_world_size(),
        get_device(),
        dist.new_group(backend="gloo") if size > 1 else None,
    )


def train_rank(config: dict[str, Any]) -> None:
    """Train; called in each rank.

    Args:
        config: ``words``: the arguments of train.py; ``saves``: whether checkpoints are kept.
    """
    world = this_world()
    with tempfile.TemporaryDirectory() as folder:
        words = list(config["words"])
        if config["saves"]:
            words += ["--out", folder]  # the last --out counts
        previous = ray.train.get_checkpoint()
        if previous is not None and world.rank == 0:
            previous.to_directory(folder)  # train.Run finds it there, and tells the other ranks
        args, recipe = parse_arguments(train.ALL_RECIPES, words)
        set_backends(args, world)
        # Ray Train stops ranks by itself, and calls this from a thread, which cannot receive signals.
        run = ReportedRun(args, recipe, world, Signals(saves=config["saves"]))
        with run.reporter:
            train.train(run)
        run.close()


def connect(num_cpus: int) -> None:
    """Connect to the cluster at RAY_ADDRESS; without one this machine is the cluster.

    Args:
        num_cpus: that the run asks for; here ranks and workers may take turns.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_ADDRESS" in os.environ:
        ray.init()
    else:
        ray.init("local", num_cpus=max(num_cpus, os.cpu_count() or 1), include_dashboard=False)


def main() -> None:
    """Parse the options, connect to Ray or start it, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes that train; default: %(default)s")
    parser.add_argument("--out", help="save the run to this folder or bucket, or resume it")
    parser.add_argument("--max-failures", type=int, default=0, help="how often to go on after a rank was lost")
    own, rest = parser.parse_known_args()
    words = ["--worker-method", "ray", "--workers", "1", *rest]  # of an option that comes twice the last counts
    words += [] if own.out is None else ["--out", own.out]
    with errors_as_messages(None):
        args, _ = parse_arguments(train.ALL_RECIPES, words)  # errors are told here, and not by each rank
    connect(own.ranks * (1 + args.workers))
    storage, name = None, None
    if own.out is not None:
        storage, name = os.path.split(own.out if "://" in own.out else os.path.abspath(own.out))
    TorchTrainer(
        train_rank,
        train_loop_config={"words": words, "saves": args.out is not None},
        scaling_config=ScalingConfig(num_workers=own.ranks, use_gpu=ray.cluster_resources().get("GPU", 0) >= own.ranks),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=own.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    main()
