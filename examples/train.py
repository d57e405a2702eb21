r"""Train an image classifier on one process or many.

    torchrun --nproc-per-node=2 examples/train.py                  # 1,797 handwritten digits, part of the repository
    torchrun --nproc-per-node=2 examples/train.py --data-dir DIR   # images in DIR/train/<class>/, DIR/test/<class>/
    torchrun --nproc-per-node=8 examples/train.py --data-dir DIR --recipe imagenet-resnet50 --precision bf16 \
        --channels-last --compile --fuse --out runs/1              # the same command again resumes the run
    python examples/train.py                                       # one process, no process group

The initial weights, the images of each step, their order and their augmentation depend on the recipe and ``--seed``
alone, not on the number of processes and workers: ``--batch-size`` counts the images of a step over all processes. A
step that does not fit into memory is cut into micro-batches (``--micro-batch-size``).

With ``--out`` the run is saved after every epoch, every ``--save-every`` steps, and when SIGTERM or SIGUSR1 stops it
(exit code 0). The same command resumes it at the next image, on any number of processes. Errors are one line, printed
by rank 0 if all ranks have them; the exit code is 2 for arguments and data, otherwise 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import sys
from typing import Any

import cifar10
import imagenet
import torch
from leaving import run_rank
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from training import checkpoint, distributed
from training.averages import EMA, Lookahead
from training.backends import set_backends
from training.data import damaged_images, load_data_on_all_ranks, sample_images, test_loader, train_loader
from training.distributed import Signals, StopRequest, World, fail_together
from training.errors import RunError, UsageError, errors_as_messages
from training.evaluation import evaluate
from training.metrics import Throughput, Timer, flops_per_image, peak_flops
from training.models import Whitened, build_network, parameter_groups, set_learning_rates
from training.options import DTYPES, check_batch_norm, check_options, parse_arguments, settings_of
from training.recipe import RECIPES, Recipe
from training.reporting import Reporter
from training.schedule import image_size, lr_factor, micro_batches
from training.startup import exit_for_usage, join

ALL_RECIPES = {**RECIPES, **cifar10.RECIPES, **imagenet.RECIPES}


class Run:
    """A training run: its data, its network, and everything that a step changes and a checkpoint contains."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe, world: World, signals: Signals) -> None:
        """Set up on all ranks; an error on one of them exits all."""
        self.args, self.recipe, self.world = args, recipe, world
        self.stop = StopRequest(world, signals)
        self.data = data = load_data_on_all_ranks(args, world, signals)
        self.path = None if args.out is None else args.out / "checkpoint.pt"
        saved = self.lock = None
        with fail_together(world, signals):
            check_options(args, recipe, data, world)
            torch.manual_seed(args.seed)  # the same initial weights on all ranks
            network = build_network(recipe.model, data.channels, len(data.classes), recipe.norm, blur=recipe.blur)
            check_batch_norm(args, recipe, network, data.channels, world)
            self.image_size = image_size(0, recipe)
            self.train_loader = train_loader(args, recipe, data, world, self.image_size)
            self.test_loader = test_loader(args, recipe, data, world)
            if world.rank == 0 and self.path is not None:
                self.lock = checkpoint.lock(args.out)
                saved = checkpoint.read(self.path)
            self.reporter = Reporter(args, world)
        self.steps_per_epoch = min(data.num_train // recipe.batch_size, args.limit_batches or sys.maxsize)
        self.num_steps = recipe.epochs * self.steps_per_epoch
        self.step = 0  # steps made; learning rate and image size depend on it alone
        self.loss_sum = torch.zeros((), device=world.device)  # over the steps of this epoch
        self.settings = settings_of(args, recipe, data)
        self.build(network, whiten=saved is None)
        self.resume(world.broadcast(saved))  # rank 0 reads the file, since other machines may not have its disk
        self.reporter.start(data, self.step, self.num_steps, self.settings)

    def build(self, network: Any, *, whiten: bool) -> None:
        """Move the network to the device, wrap it, and create the optimizer. The order matters."""
        args, recipe, device = self.args, self.recipe, self.world.device
        network = network.to(device)
        if args.channels_last:
            network = network.to(memory_format=torch.channels_last)  # before DDP, which lays out its buckets by it
        if args.sync_bn and self.world.size > 1:  # otherwise each rank has the batch statistics of its own images
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        if isinstance(network, Whitened) and self.world.rank == 0 and whiten:
            network.whiten(sample_images(self.data, recipe, 2000).to(device))  # DDP copies rank 0's weights
        self.network: nn.Module = network
        self.ema = EMA(network, recipe.ema_decay) if recipe.ema_decay else None  # of the plain network: before DDP
        self.wrapped: Any = network
        self.world.gather(None)  # fails if a rank has exited; NCCL would wait for it
        if self.world.size > 1:
            self.wrapped = DistributedDataParallel(
                network,
                device_ids=[self.world.local_rank] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                # DDP changes its buckets after the first step, which changes the order of sums over three ranks or
                # more: a resumed run would differ in the last bit. This turns it off, and torch warns of its cost.
                find_unused_parameters=args.deterministic and self.world.size > 2,
            )
        # Compiled after DDP, so that the graph is cut where gradients are exchanged.
        self.model: Any = torch.compile(self.wrapped, backend=args.compile) if args.compile else self.wrapped
        # After DDP, which gives all ranks rank 0's weights.
        self.lookahead = Lookahead(network, recipe.lookahead, recipe.lookahead_decay) if recipe.lookahead else None
        groups = parameter_groups(network, recipe)
        self.optimizer = torch.optim.SGD(groups, recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov)
        dtype = DTYPES[args.precision]
        self.autocast = functools.partial(torch.autocast, device.type, dtype=dtype, enabled=dtype is not None)
        self.scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")

    def train_step(self, images: Tensor, labels: Tensor, epoch: int) -> tuple[Tensor, float]:
        """Train on this rank's images of a step; return their mean loss, on the device, and the learning rate."""
        factor = lr_factor(self.step, self.num_steps, self.recipe)
        set_learning_rates(self.optimizer.param_groups, factor, epoch)
        step_loss = torch.zeros((), device=self.world.device)
        slices = micro_batches(len(images), self.args.micro_batch_size)
        for one in slices:
            weight = (one.stop - one.start) / len(images)
            # Gradients accumulate, and are exchanged with the last micro-batch. no_sync must cover the forward pass.
            accumulates = self.world.size > 1 and one is not slices[-1]
            with self.wrapped.no_sync() if accumulates else contextlib.nullcontext():
                with self.autocast():
                    scores = self.model(images[one])
                    loss = nn.functional.cross_entropy(scores, labels[one], label_smoothing=self.recipe.label_smoothing)
                self.scaler.scale(loss * weight).backward()
            step_loss += loss.detach() * weight
        if self.recipe.clip_norm:
            self.scaler.unscale_(self.optimizer)  # otherwise the norm of the scaled gradient would be compared
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.lookahead is not None:
            self.lookahead.update(self.step, self.num_steps)
        if self.ema is not None:
            self.ema.update()
        self.loss_sum += step_loss  # not read here, which would wait for the device in every step
        return step_loss, self.recipe.lr * factor

    def save(self) -> None:
        """Save a checkpoint, with --out. All ranks must call this."""
        if self.path is None:
            return
        loss_sum = self.world.sum(self.loss_sum).item() / self.world.size
        generators = distributed.generator_states(self.world)
        with fail_together(self.world):
            distributed.check_finite(loss_sum, self.network, self.step)
            if self.world.rank == 0:
                state = {
                    "settings": self.settings,
                    "step": self.step,
                    "world_size": self.world.size,
                    "model": self.network.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "scaler": self.scaler.state_dict(),
                    "average": None if self.ema is None else self.ema.module.state_dict(),
                    "lookahead": None if self.lookahead is None else self.lookahead.state_dict(),
                    "loader": self.train_loader.state_dict(),  # after the last batch of the loop, not of the workers
                    "loss_sum": loss_sum,
                    "generators": generators,
                }
                checkpoint.write(self.path, state)
                self.reporter.log.write("save", step=self.step)

    def resume(self, data: bytes | None) -> None:
        """Restore the checkpoint, if there is one."""
        if data is None or self.path is None:
            return
        with fail_together(self.world):
            saved = checkpoint.parse(data, self.path)
            checkpoint.check_settings(saved["settings"], self.settings, self.path)
            self.train_loader.load_state_dict(saved["loader"])
            try:
                self.network.load_state_dict(saved["model"])
                self.optimizer.load_state_dict(saved["optimizer"])
                self.scaler.load_state_dict(saved["scaler"])
                if self.ema is not None:
                    self.ema.load_state_dict(saved["average"], started=saved["step"] > 0)
                if self.lookahead is not None:
                    self.lookahead.load_state_dict(saved["lookahead"])
            except (KeyError, RuntimeError, ValueError) as error:
                raise RunError(f"the checkpoint {str(self.path)!r} does not fit this network: {error}") from None
            self.step = saved["step"]
            self.loss_sum += saved["loss_sum"]
            distributed.restore_generators(saved["generators"], self.world, self.args.seed, self.step)

    def close(self) -> None:
        """Close the loaders, leave the process group, and unlock the folder."""
        self.stop.finish()  # the last exchange, which nobody has waited for
        self.train_loader.close()
        self.test_loader.close()
        distributed.leave(self.world)
        if self.lock is not None:
            self.lock.close()


def resize_images(run: Run, size: int) -> None:
    """Replace the loader by one for images of another size."""
    state, run.image_size = run.train_loader.state_dict(), size
    run.train_loader.close()
    run.train_loader = train_loader(run.args, run.recipe, run.data, run.world, size)
    run.train_loader.load_state_dict(state)


def train_epoch(run: Run, epoch: int) -> tuple[Timer, int]:
    """Train the steps of an epoch that are left; return their times, and the signal that stopped the run, or 0."""
    args, world, loader = run.args, run.world, run.train_loader
    first_step, last_step = epoch * run.steps_per_epoch, (epoch + 1) * run.steps_per_epoch
    world.gather(None)  # fails if a rank has exited; the start of the loader would wait for it
    loader.set_epoch(epoch)  # a resumed loader stays where it is in this epoch
    run.model.train()
    batches = loader if run.step < last_step else ()
    if args.repeat_batch:
        batches = itertools.repeat(next(iter(loader)))
    timer, stopped = Timer(), 0
    for images, labels in batches:
        timer.batch_received()
        if run.step == first_step:
            run.loss_sum.zero_()
            distributed.seed_rank(args.seed, run.step, world.rank)  # the start of the loader draws, so not earlier
        images, labels = images.to(world.device), labels.to(world.device)
        run.reporter.samples(epoch, run.step, images)
        loss, lr = run.train_step(images, labels, epoch)
        timer.images += run.recipe.batch_size
        run.reporter.step(epoch, run.step, timer, loss, lr)
        if stopped := run.stop.agreed():
            break
        if args.save_every and run.step % args.save_every == 0 and run.step < last_step:
            run.save()
        if run.step == last_step and (args.limit_batches or args.repeat_batch):
            break
        timer.batch_requested()
    return timer, stopped


def finish_epoch(run: Run, epoch: int, timer: Timer) -> int:
    """Save, test and report an epoch; return the signal that stopped the run, or 0."""
    args, recipe, world = run.args, run.recipe, run.world
    loss = world.sum(run.loss_sum).item() / (run.steps_per_epoch * world.size)  # waits for the device
    times = world.gather((timer.seconds, timer.waited))
    distributed.check_weights(loss, run.network, run.step, world)
    if timer.images:
        run.save()
    network = run.network if run.ema is None else run.ema.module
    views = recipe.test_views if epoch + 1 == recipe.epochs else "plain"
    tested = evaluate(network, run.test_loader, world, run.autocast, lambda: run.stop.signals.received, views)
    if tested is None:
        return run.stop.finish() or max(world.gather(run.stop.signals.received))
    if args.on_error == "replace":
        run.reporter.damaged(run.step, world.gather(damaged_images(run.train_loader, run.test_loader)))
    peak = peak_flops(world.device, args.precision, args.peak_tflops)
    flops = flops_per_image(run.network, run.data.channels, run.image_size) if peak else 0.0
    speed = Throughput.of_ranks(timer.images, times, flops, peak)
    run.reporter.epoch(epoch, run.step, loss, tested, speed, run.image_size)
    return 0


def train(run: Run) -> int:
    """Train and test all epochs that are left; return the signal that stopped the run, or 0."""
    # A run that was saved at the end of an epoch resumes with its test.
    for epoch in range(max(0, math.ceil(run.step / run.steps_per_epoch) - 1), run.recipe.epochs):
        if (size := image_size(epoch, run.recipe)) != run.image_size:
            resize_images(run, size)
        timer, stopped = train_epoch(run, epoch)
        if stopped or (stopped := finish_epoch(run, epoch, timer)):
            run.save()
            run.reporter.stop(run.step, stopped)
            return stopped
    run.reporter.end(run.step)
    return 0


def main() -> None:
    """Parse the options, join the process group, train."""
    with errors_as_messages(None):
        try:
            args, recipe = parse_arguments(ALL_RECIPES)
        except UsageError as error:
            exit_for_usage(error)
    with Signals(saves=args.out is not None) as signals, errors_as_messages(args.out):
        world = join(args.init_method, args.timeout, args.join_timeout, signals)
        set_backends(args, world)
        run = Run(args, recipe, world, signals)
        with run.reporter:
            stopped = train(run)
        run.close()
    if stopped:
        sys.exit(signals.exit_code(stopped))


if __name__ == "__main__":
    run_rank(record(main))
