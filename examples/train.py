r"""Train an image classifier on one process or many: one loop, read from top to bottom.

    torchrun --nproc-per-node=2 examples/train.py                  # 1,797 handwritten digits, beside this file
    torchrun --nproc-per-node=2 examples/train.py --data-dir DIR   # images in DIR/train/<class>/, DIR/test/<class>/
    torchrun --nproc-per-node=8 examples/train.py --data-dir DIR --recipe imagenet-resnet50 --precision bf16 \
        --channels-last --compile --fuse --out runs/1              # and the same command again goes on with it
    python examples/train.py                                       # one process, no process group

What is learnt depends on the recipe and ``--seed`` alone: the first weights, the images of each step, their order and
their augmentation are the same for any number of processes, workers and pieces, since ``--batch-size`` counts the
images of a step over all processes. So the learning rate stays right when a run goes on with more or fewer of them, and
what does not fit into memory at once is accumulated (``--micro-batch-size``).

With ``--out`` the run is saved after every epoch, every ``--save-every`` steps, and on SIGTERM or SIGUSR1, which end it
with exit code 0 after the step; the same command goes on at the next image, on any number of processes. What ends a run
otherwise is said in a line, by rank 0 if all have it: exit code 2 for arguments and data that do not fit, else 1.

*data wait* is the share of the training time that a rank is blocked in the loader's ``next()``, workers' start-up
included. Of several ranks the slowest counts, since the others wait for it in ``backward()``; ``--json`` has all.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import itertools
import json
import math
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cifar10
import imagenet
import torch
import torch.distributed as dist
from leaving import run_rank
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeRemainingColumn
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from training import checkpoint
from training.average import Average
from training.backends import set_backends
from training.data import (
    DATASETS,
    DECODERS,
    Loading,
    damaged_images,
    hashes_of,
    load_data,
    plain_images,
    test_loader,
    train_loader,
)
from training.endings import in_a_line
from training.errors import Parser, RunError, UsageError
from training.evaluation import evaluate
from training.lookahead import Lookahead
from training.meters import Log, Stopwatch, flops_of_an_image, peak_flops, rates
from training.models import MODELS, Whitened, build_network, parameter_groups, set_learning_rates
from training.processes import (
    JOIN_TIMEOUT_S,
    Place,
    Signals,
    Stop,
    generators_of,
    join,
    leave,
    refuse,
    replicas_differ,
    seed_rank,
    stop_together,
)
from training.recipe import RECIPES as OWN_RECIPES
from training.recipe import Recipe, add_options, options, with_options
from training.schedule import image_size, lr_factor, pieces

from fastload import FastloadError

RECIPES = {**OWN_RECIPES, **cifar10.RECIPES, **imagenet.RECIPES}
DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    """Read the options, join the process group, train."""
    try:
        args, recipe = parse_arguments()
    except UsageError as error:
        with in_a_line(None):
            refuse(error)
    with Signals(saves=args.out is not None) as signals, in_a_line(args.out):
        train(args, recipe, join(args.init_method, args.timeout, args.join_timeout, signals), signals)


def train(args: argparse.Namespace, recipe: Recipe, place: Place, signals: Signals) -> None:
    """Train, test after every epoch, report, save."""
    device, world_size, first = place.device, place.world_size, place.rank == 0
    alone = contextlib.nullcontext
    if device.type == "cpu":  # torchrun would leave one thread to each rank, and threads short of cores are very slow
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        cores = usable // place.local_ranks
        torch.set_num_threads(args.threads or max(1, cores - args.workers))
    set_backends(device, precision=args.precision, deterministic=args.deterministic)

    # Data. Where there is something to download, rank 0 does it, then one process of each other machine, which finds it
    # there if they share a disk; the others wait.
    loading = Loading(
        workers=args.workers,
        worker_method=args.worker_method,
        fuse=args.fuse,
        decoder=args.decoder,
        resident=args.resident,
        channels_last=args.channels_last,
        seed=args.seed,
        on_error=args.on_error,
        max_errors=args.max_errors,
    )
    load = functools.partial(load_data, args.dataset, args.data_dir, decoder=args.decoder, fuse=args.fuse)
    data = problem = None
    for turn in (first, place.local_rank == 0 and not first):
        try:
            data = load(download=args.download) if turn else data
        except UsageError as error:
            problem = str(error)
        stop_together(problem, place, 2, signals)

    # Set-up that any rank may fail in; nothing of it is a collective, so that all can be told.
    path = None if args.out is None else args.out / "checkpoint.pt"
    found: bytes | None = None
    claim = None
    try:
        data = data or load(download=False)
        loading.check(args.dataset, recipe)
        check_sizes(recipe, len(data.train), world_size)  # type: ignore[arg-type]
        if args.precision == "tf32" and device.type != "cuda":
            raise UsageError("--precision tf32 works on GPUs only, and this run is on the CPU; take fp32")
        if args.sync_bn and device.type != "cuda":
            raise UsageError("--sync-bn works on GPUs only, and this run is on the CPU; leave it out")
        torch.manual_seed(args.seed)  # the same first weights everywhere
        network = build_network(recipe.model, data.channels, len(data.classes), recipe.norm, blur=recipe.blur)
        if not (args.sync_bn and world_size > 1):
            at_once = pieces(recipe.batch_size // world_size, args.micro_batch_size)
            check_norm(network, recipe, data.channels, min(piece.stop - piece.start for piece in at_once))
        size = image_size(0, recipe.epochs, first=recipe.first_image_size, last=recipe.image_size)
        train_batches = train_loader(data, recipe, size, loading, place)
        test_batches = test_loader(data, recipe, loading, place, 4 * recipe.batch_size // world_size)
        if first and path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            claim = checkpoint.claim(path.parent)
            found = checkpoint.read(path)
        log_path = args.json or (None if args.out is None else args.out / "log.jsonl")
        log = Log(log_path, args.tensorboard) if first else Log(None, None)
    except (UsageError, RunError, FastloadError) as error:
        problem = str(error)
    except OSError as error:
        problem = f"--out must be a folder that can be written to, got {str(args.out)!r}: {error.strerror}; correct it"
    stop_together(problem, place, 2, signals)
    assert data is not None

    # Network. The order matters: format and SyncBN before DistributedDataParallel, which lays its buckets out by them;
    # the average before it as well, so that it is one of the plain network; torch.compile after it, so that the graph
    # is cut where gradients are exchanged; the optimizer when the parameters are where they stay.
    network = network.to(device)
    if args.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if args.sync_bn and world_size > 1:
        # Without it each rank has the statistics of its own images, and rank 0's averages are tested and saved.
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    if isinstance(network, Whitened) and first and found is None:
        network.whiten(plain_images(data, recipe, 2000).to(device))  # the other ranks get rank 0's weights below
    average = Average(network, recipe.ema_decay) if recipe.ema_decay else None
    wrapped: nn.Module = network
    stop_together(None, place, 1, signals)  # all are still there: where one is lost, NCCL would wait for it
    if world_size > 1:
        wrapped = DistributedDataParallel(
            network,
            device_ids=[place.local_rank] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            # After its first step DDP lays its buckets out anew, and three ranks or more may add up in another order
            # then: a resumed run would differ in the last bit. With this it does not, and torch warns of its cost.
            find_unused_parameters=args.deterministic and world_size > 2,
        )
    model: Any = torch.compile(wrapped, backend=args.compile) if args.compile else wrapped
    # Behind DistributedDataParallel, which gives all ranks rank 0's weights.
    lookahead = Lookahead(network, recipe.lookahead, recipe.lookahead_decay) if recipe.lookahead else None
    groups = parameter_groups(network, recipe)
    optimizer = torch.optim.SGD(groups, recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov)
    autocast = functools.partial(
        torch.autocast, device.type, dtype=DTYPES[args.precision], enabled=DTYPES[args.precision] is not None
    )
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")  # bfloat16 has float32's range

    # Where the run is: the step says it all, with the loader's state. Learning rate and image size depend on it alone.
    steps = min(len(data.train) // recipe.batch_size, args.limit_batches or sys.maxsize)  # type: ignore[arg-type]
    limited = bool(args.limit_batches or args.repeat_batch)
    end, step = recipe.epochs * steps, 0
    loss_sum = torch.zeros((), device=device)  # over this epoch's steps so far
    settings = settings_of(args, recipe, len(data.train), data.classes)  # type: ignore[arg-type]
    found = place.from_first(found)  # over the network, since other machines may not see rank 0's disk
    saved: dict[str, Any] | None = None
    if found is not None and path is not None:
        try:
            saved = checkpoint.parse(found, path)
            checkpoint.check_settings(saved["settings"], settings, path)
            step = saved["step"]
            network.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            scaler.load_state_dict(saved["scaler"]) if scaler.is_enabled() else None
            if average is not None:
                average.module.load_state_dict(saved["average"])
                average.begun = step > 0  # or the next update would begin it anew
            if lookahead is not None:
                lookahead.load_state_dict(saved["lookahead"])
            train_batches.load_state_dict(saved["loader"])
            loss_sum += saved["loss_sum"]  # each rank's, so that their mean is right for any number of them
            if len(saved["generators"]) == world_size:
                own = saved["generators"][place.rank]
                torch.set_rng_state(own["cpu"])
                if device.type == "cuda" and "cuda" in own:
                    torch.cuda.set_rng_state(own["cuda"], device)
            else:
                seed_rank(args.seed, step, place.rank)
        except (RunError, FastloadError) as error:
            problem = str(error)
        except (KeyError, RuntimeError, ValueError) as error:
            problem = f"the checkpoint {str(path)!r} does not fit this network: {error}; give another --out"
        del found
    stop_together(problem, place, 1, signals)

    def save() -> None:
        """Save the run as it is between two steps. All ranks call this."""
        if path is None:
            return
        total = loss_sum.clone()
        if world_size > 1:
            dist.all_reduce(total)
        mean = total.item() / world_size
        problem, generators = not_finite(mean, network, step), generators_of(place)
        state: dict[str, Any] = {
            "settings": settings,
            "step": step,
            "world_size": world_size,
            "model": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "average": None if average is None else average.module.state_dict(),
            "lookahead": None if lookahead is None else lookahead.state_dict(),
            "loader": train_batches.state_dict(),  # what the loop was given, not what was loaded ahead
            "loss_sum": mean,
            "generators": generators,
        }
        if first and problem is None:
            try:
                checkpoint.write(path, state)
                log.write("save", step=step)
            except RunError as error:
                problem = str(error)
        stop_together(problem, place, 1)

    # What is said. Only rank 0 prints. The bar is for terminals; this thread draws it, ten times a second at most.
    console = Console(quiet=not first, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{len(data.train):,} images to train on, "  # type: ignore[arg-type]
        f"{len(data.test):,} to test ({data.chosen}), {len(data.classes)} classes"  # type: ignore[arg-type]
    )
    console.print(f"{world_size} x {device.type}, {args.workers} workers each")
    if saved is not None:
        console.print(f"goes on after step {step:,} of {end:,}, saved by {saved['world_size']} x")
    columns = "{task.description}", BarColumn(None), "{task.fields[rates]}", TimeRemainingColumn()
    progress = Progress(
        *columns, console=console, disable=not console.is_terminal, auto_refresh=False, transient=True, expand=True
    )
    bar = progress.add_task("", total=end, completed=step, rates="")
    samples = None
    if args.debug_samples is not None:
        samples = Path(f"{args.debug_samples}.rank{place.rank}").open("a", buffering=1)  # noqa: SIM115
        samples.write(json.dumps({"rank": place.rank, "pid": os.getpid(), "world_size": world_size}) + "\n")
    log.write("start", step=step, world_size=world_size, device=str(device), torch=torch.__version__, **settings)
    peak = peak_flops(device, args.precision, args.peak_tflops)
    stop = Stop(place, signals)
    number = 0
    damaged: set[str] = set()
    begun, all_seconds, all_waited, all_images = time.perf_counter(), 0.0, 0.0, 0

    with progress:
        # A run that was saved at the end of an epoch goes on with its test.
        for epoch in range(max(0, -(-step // steps) - 1), recipe.epochs):
            last_step = (epoch + 1) * steps
            wanted = image_size(epoch, recipe.epochs, first=recipe.first_image_size, last=recipe.image_size)
            if wanted != size:
                state, size = train_batches.state_dict(), wanted
                train_batches.close()
                train_batches = train_loader(data, recipe, size, loading, place)
                train_batches.load_state_dict(state)
            flops = flops_of_an_image(network, data.channels, size) if peak else 0.0
            if step == epoch * steps:
                loss_sum.zero_()
            place.gather(None)  # a rank that has gone is missed here at once; the loader's start would wait for it
            train_batches.set_epoch(epoch)  # before the iteration; a state that was loaded for this epoch holds
            model.train()
            begun_at, drawn = step, 0.0
            batches = train_batches if step < last_step else ()
            if args.repeat_batch:
                batches = itertools.repeat(next(iter(train_batches)))
            watch = Stopwatch()
            for images, labels in batches:
                got = watch.got()
                if step == epoch * steps:  # not before: loaders draw from these generators when they begin
                    seed_rank(args.seed, step, place.rank)
                images, labels = images.to(device), labels.to(device)  # they are there, but for DALI's labels
                if samples is not None:
                    samples.write(json.dumps({"epoch": epoch, "step": step, "samples": hashes_of(images)}) + "\n")
                factor = lr_factor(
                    step,
                    end,
                    warmup=recipe.warmup,
                    shape=recipe.schedule,
                    final=recipe.final_lr,
                    first=recipe.first_lr,
                )
                set_learning_rates(optimizer.param_groups, factor, epoch)

                # One step: gradients of all pieces add up, and are exchanged with the last. no_sync covers the forward
                # pass too, which is where DDP decides; each piece counts by its share of the images.
                step_loss = torch.zeros((), device=device)
                cut = pieces(len(images), args.micro_batch_size)
                for piece in cut:
                    silent = world_size > 1 and piece is not cut[-1]
                    with wrapped.no_sync() if silent else alone():  # type: ignore[operator]
                        share = (piece.stop - piece.start) / len(images)
                        with autocast():
                            loss = nn.functional.cross_entropy(
                                model(images[piece]), labels[piece], label_smoothing=recipe.label_smoothing
                            )
                        scaler.scale(loss * share).backward()
                    step_loss += loss.detach() * share
                if recipe.clip_norm:
                    scaler.unscale_(optimizer)  # else the length of the scaled gradient would be compared
                    nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                if lookahead is not None:
                    lookahead.update(step, end)
                if average is not None:
                    average.update()
                loss_sum += step_loss  # stays on the device: reading it here would be a sync point in each step

                if first and (got - drawn > 0.1 or step % args.log_every == 0):
                    done = (step - begun_at) * recipe.batch_size
                    speed = rates(done, watch.seconds, watch.waited)
                    if got - drawn > 0.1:
                        drawn = got
                        progress.update(
                            bar, description=f"epoch {epoch + 1:3}", completed=step, rates=speed, refresh=True
                        )
                    if step % args.log_every == 0:
                        log.write(
                            "step",
                            step=step,
                            epoch=epoch + 1,
                            loss=step_loss.item(),  # sync point, of rank 0
                            lr=recipe.lr * factor,
                            images_per_s=done / watch.seconds,
                            data_wait=watch.waited / watch.seconds,
                        )
                number = stop.agreed()
                if number:
                    break
                if args.save_every and step % args.save_every == 0 and step < last_step:
                    save()
                if limited and step == last_step:
                    break
                watch.ask()

            # The epoch's sums over all ranks, and the test.
            if not number:
                trained = step - begun_at
                total = loss_sum.clone()
                if world_size > 1:
                    dist.all_reduce(total)
                mean_loss = total.item() / (steps * world_size)  # sync point: the epoch's work is done
                seconds, images_trained = watch.seconds, trained * recipe.batch_size
                told = place.gather((seconds, watch.waited))
                slowest = max(told)[0], max(waited for _, waited in told)
                differ = "the ranks' weights differ; report it" if replicas_differ(network, place) else None
                stop_together(not_finite(mean_loss, network, step) or differ, place, 1)
                if trained:
                    save()
                tested = evaluate(
                    network if average is None else average.module,
                    test_batches,
                    place,
                    autocast,
                    lambda: stop.noted,
                    recipe.test_views if epoch + 1 == recipe.epochs else "plain",
                )
                number = (stop.answer() or max(place.gather(stop.noted))) if tested is None else 0
            if number:
                save()
                log.write("stop", step=step, signal=number)
                left = "the same command goes on from there" if path else "nothing is saved: give --out to save"
                console.print(f"stopped by {signal.Signals(number).name} after step {step:,} of {end:,}; {left}")
                break
            if args.on_error == "replace":
                found_now = place.gather(damaged_images(train_batches, test_batches))
                for image, why in sorted(one for of_rank in found_now for one in of_rank.items()):
                    if image not in damaged:
                        console.print(f"could not be loaded: {image} ({why})")
                        log.write("damaged", step=step, image=image, why=why)
                        damaged.add(image)
            assert tested is not None
            accuracy, of_views = tested.accuracy, tested.accuracy_of_views
            speed, numbers = "", {}
            if trained:
                images_per_s = images_trained / slowest[0]
                used = images_per_s / world_size * flops / peak if peak else None
                speed = rates(images_trained, *slowest, used)
                numbers = {"images_per_s": images_per_s, "seconds": slowest[0], "image_size": size}
                numbers |= {"data_wait_of_ranks": [waited / seconds for seconds, waited in told]}
                numbers |= {"flop_utilisation": used} if used is not None else {}
                all_seconds, all_waited = all_seconds + slowest[0], all_waited + slowest[1]
                all_images += images_trained
            if of_views is not None:
                numbers |= {"test_accuracy_of_views": of_views, "test_correct_of_views": tested.correct_of_views}
            console.print(f"epoch {epoch + 1:3}   loss {mean_loss:6.3f}   test {accuracy:7.2%} {speed}")
            log.write(
                "epoch",
                step=step,
                epoch=epoch + 1,
                loss=mean_loss,
                test_accuracy=accuracy,
                test_correct=tested.correct,
                test_images=tested.total,
                test_loss=tested.loss,
                **numbers,
            )
    if not number:
        speed = rates(all_images, all_seconds, all_waited) if all_images else ""
        seconds = time.perf_counter() - begun
        views = "" if of_views is None else f"   of {recipe.test_views} {of_views:.2%}"
        console.print(f"done in {seconds:.1f} s   test accuracy {accuracy:.2%}{views} {speed}")
        log.write("end", step=step, test_accuracy=accuracy, seconds=seconds)
    stop.answer()  # the exchange that nobody has waited for
    train_batches.close()
    test_batches.close()
    log.close()
    leave(place)
    if claim is not None:
        claim.close()
    if number:
        sys.exit(signals.code(number))


def check_sizes(recipe: Recipe, num_images: int, world_size: int) -> None:
    """Raise :class:`UsageError` unless an epoch has a step, and each rank the same share of it."""
    size = recipe.batch_size
    if size % world_size:
        raise UsageError(
            f"--batch-size counts the images of all processes and must be a multiple of their number, got {size} for "
            f"{world_size} processes; take {-(-size // world_size) * world_size}"
        )
    if num_images < size:
        raise UsageError(
            f"an epoch must have one full step, got {num_images} training images for --batch-size {size}; choose a "
            "smaller --batch-size"
        )
    sides = (recipe.image_size, recipe.first_image_size, recipe.test_image_size)
    smallest = min(side for side in sides if side)
    least = 9 if recipe.model in ("proxy", "airbench") else 8
    if smallest < least:
        raise UsageError(f"--model {recipe.model} needs images of {least} x {least} pixels at least, got {smallest}")
    tested = recipe.test_image_size or recipe.image_size
    if recipe.augment == "resized-crop" and 0 < recipe.test_resize < tested:
        raise UsageError(
            f"--test-resize must be at least the side of the images in testing, {tested}, or they would get a black "
            f"border, got {recipe.test_resize}; take a larger one"
        )
    least = min(recipe.image_size, recipe.first_image_size or recipe.image_size)
    if recipe.augment == "pad-crop" and recipe.padding_mode == "reflect" and recipe.padding >= least:
        raise UsageError(f"--padding-mode reflect needs --padding below the images' {least}, got {recipe.padding}")
    if (recipe.mixup or recipe.cutmix) and size // world_size % 2:
        raise UsageError(
            f"--mixup and --cutmix mix neighbours, so each process needs an even number of images, got {size} for "
            f"{world_size} processes; choose another --batch-size"
        )


def check_norm(network: nn.Module, recipe: Recipe, channels: int, images: int) -> None:
    """Raise :class:`UsageError` where so few images at once leave batch normalisation one value, which it refuses."""
    if images > 1:
        return
    side = min(recipe.image_size, recipe.first_image_size or recipe.image_size)
    try:
        copy.deepcopy(network).to("meta").train()(torch.empty(images, channels, side, side, device="meta"))
    except ValueError:
        raise UsageError(
            f"batch normalisation needs two values of a channel, and an image of {side} x {side} pixels alone leaves "
            f"--model {recipe.model} one; take larger images, a larger --batch-size and --micro-batch-size, or --norm "
            "none"
        ) from None


def settings_of(args: argparse.Namespace, recipe: Recipe, num_images: int, classes: list[str]) -> dict[str, Any]:
    """Return what decides what is learnt: it is compared when a run goes on."""
    numbers = asdict(recipe)
    known: dict[str, Any] = {f"--{one.name.replace('_', '-')}": numbers[one.name] for one in options()}
    for name in ("dataset", "seed", "precision", "fuse", "limit_batches"):
        known[f"--{name.replace('_', '-')}"] = getattr(args, name)
    known["--decoder dali"] = args.decoder == "dali"  # the others give the same pixels
    return known | {"mean": list(recipe.mean), "std": list(recipe.std), "images": num_images, "classes": classes}


def not_finite(loss: float, network: nn.Module, step: int) -> str | None:
    """Return what is to be said of a loss, or of weights of the last step, that are no numbers; None if all are."""
    finite = torch.stack([value.isfinite().all() for value in network.state_dict().values()]).all()
    if math.isfinite(loss) and finite:  # sync point
        return None
    what = f"the loss is {loss}" if not math.isfinite(loss) else "the weights are infinite or NaN"
    return f"{what} by step {step}; lower --lr, or give --clip-norm 1; nothing was saved of it"


def parse_arguments() -> tuple[argparse.Namespace, Recipe]:
    """Return the command line's options, and the recipe that they give.

    Raises:
        UsageError: they do not fit one another, or are none.
    """

    def positive(text: str) -> int:
        if (number := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
        return number

    def count(text: str) -> int:
        if (number := int(text)) < 0:
            raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
        return number

    parser = Parser(description="Train an image classifier: digits, CIFAR-10, ImageNet, your images.")
    group = parser.add_argument_group("data")
    group.add_argument("--dataset", choices=DATASETS, help="default: folder with --data-dir, else digits")
    group.add_argument("--data-dir", type=Path, help="images, or packs, in train/<class>/ and test/<class>/")
    group.add_argument("--download", action="store_true", help="CIFAR-10, if it is not there")
    group.add_argument("--fuse", action="store_true", help="decode, crop and resize in one call")
    group.add_argument("--decoder", choices=DECODERS, default="auto", help="what decodes files")
    group.add_argument("--resident", choices=["device", "host", "auto"], help="keep all images in memory")
    group.add_argument("--workers", type=count, default=2, help="of each process; 0: load in the training process")
    group.add_argument("--worker-method", choices=["multiprocessing", "thread"], default="multiprocessing")
    group.add_argument("--on-error", choices=["raise", "replace"], default="raise", help="for images that are damaged")
    group.add_argument("--max-errors", type=count, default=100, help="of each process in an epoch, if replaced")
    group = parser.add_argument_group("speed and memory")
    group.add_argument("--micro-batch-size", type=positive, help="images of a process that are in the network at once")
    group.add_argument("--precision", choices=list(DTYPES), default="fp32", help="default: %(default)s")
    group.add_argument("--channels-last", action="store_true", help="the memory format that GPUs like for convolutions")
    group.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile")
    group.add_argument("--sync-bn", action="store_true", help="batch statistics of all GPUs, for small batches on each")
    group.add_argument("--threads", type=positive, help="of each process on the CPU; default: its cores less --workers")
    group = parser.add_argument_group("the run")
    group.add_argument("--seed", type=count, default=0)
    group.add_argument("--deterministic", action="store_true", help="the same bits again, on as many processes")
    group.add_argument("--out", type=Path, metavar="DIR", help="save the run here, or go on with it")
    group.add_argument("--save-every", type=count, default=0, metavar="STEPS", help="also within epochs; 0: not")
    group.add_argument("--limit-batches", type=positive, help="steps of an epoch, for a quick try")
    group.add_argument("--repeat-batch", action="store_true", help="one batch again and again: a step without data")
    group.add_argument("--init-method", metavar="URL", help="how processes meet: file:// or tcp://; default: env://")
    group.add_argument("--timeout", type=float, default=600.0, help="of collectives, in seconds")
    group.add_argument("--join-timeout", type=float, default=JOIN_TIMEOUT_S, help="of all ranks' coming, in seconds")
    group = parser.add_argument_group("what is said")
    group.add_argument("--json", type=Path, metavar="FILE", help="as JSON lines; default: log.jsonl in --out")
    group.add_argument("--log-every", type=positive, default=50, metavar="STEPS")
    group.add_argument("--tensorboard", type=Path, metavar="DIR")
    group.add_argument("--peak-tflops", type=float, help="of the device in this precision, for MFU; default: if known")
    group.add_argument("--debug-samples", metavar="FILE", help="hashes of each step's images, to FILE.rank<n>")
    group = parser.add_argument_group("the recipe, and numbers in place of its own")
    group.add_argument("--recipe", choices=list(RECIPES), help="default: digits, folder, or cifar10-fast, by --dataset")
    add_options(group)
    args = parser.parse_args()
    args.dataset = args.dataset or ("digits" if args.data_dir is None else "folder")
    default = {"digits": "digits", "cifar10": "cifar10-fast"}.get(args.dataset, "folder")
    if args.model is not None and args.model not in MODELS:
        parser.error(f"argument --model: must be one of {', '.join(MODELS)}, got {args.model}")
    if args.repeat_batch and args.out is not None:
        parser.error("argument --repeat-batch: learns nothing, and is not to be saved; leave --out out")
    for name in ("timeout", "join_timeout"):
        if not 0 < (seconds := getattr(args, name)) <= 1e8:
            option = name.replace("_", "-")
            parser.error(f"argument --{option}: must be above 0 and at most 1e8 seconds, got {seconds}")
    if args.peak_tflops is not None and not 0 < args.peak_tflops < math.inf:
        parser.error(f"argument --peak-tflops: must be above 0 and finite, got {args.peak_tflops}")
    if args.debug_samples is not None and not Path(args.debug_samples).absolute().parent.is_dir():
        parser.error(f"argument --debug-samples: must be in a folder that is there, got {args.debug_samples}")
    if args.seed >= 1 << 63:
        parser.error(f"argument --seed: must be below 2^63, got {args.seed}")
    # What would be left out without a word.
    if args.save_every and args.out is None:
        parser.error("argument --save-every: saves to --out, which is not given; give it")
    if args.dataset == "digits" and args.data_dir is not None:
        parser.error("argument --data-dir: --dataset digits is not read from there; leave one of them out")
    if args.download and args.dataset != "cifar10":
        parser.error(f"argument --download: there is nothing to download for --dataset {args.dataset}; leave it out")
    if args.compile and args.compile not in (known := torch.compiler.list_backends(exclude_tags=())):
        parser.error(f"argument --compile: must be one of {', '.join(known)}, got {args.compile}")
    return args, with_options(RECIPES[args.recipe or default], args)


if __name__ == "__main__":
    run_rank(record(main))
