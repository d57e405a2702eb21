"""What a run reports: lines and a progress bar, JSON lines, TensorBoard, and the hashes of its samples."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeRemainingColumn
from torch import Tensor

from .data import Data, hashes_of
from .distributed import World
from .errors import RunError, UsageError
from .evaluation import EvaluationResult
from .metrics import Throughput, Timer


class Log:
    """Writes JSON lines and TensorBoard files.

    A run that was killed writes the steps after its checkpoint again when it is resumed: the later line counts.
    """

    def __init__(self, path: Path | None, tensorboard: Path | None) -> None:
        self._writer: Any = None
        try:
            self._file = None if path is None else path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"--json must be a writable file, got {str(path)!r}: {error.strerror or error}") from None
        if tensorboard is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(tensorboard))
            except ImportError:
                raise UsageError("--tensorboard needs TensorBoard: pip install tensorboard, or leave it out") from None
            except OSError as error:
                reason = error.strerror or error
                raise UsageError(
                    f"--tensorboard must be a writable folder, got {str(tensorboard)!r}: {reason}"
                ) from None

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        """Write one line, and the numbers in it for TensorBoard."""
        if self._file is not None:
            # JSON has no NaN or infinity: Python would write them, and other readers would fail.
            line = {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in values.items()
            }
            rest = json.dumps({"kind": kind, "step": step, **line}).encode() + b"\n"
            begin = os.fstat(self._file.fileno()).st_size
            try:
                while rest:  # a disk that is nearly full takes a part, without an error
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                with contextlib.suppress(OSError):  # a pipe cannot be truncated
                    self._file.truncate(begin)  # no half line, which a resumed run would append to
                name = str(self._file.name)
                raise RunError(
                    f"the log {name!r} cannot be written: {error.strerror or error}; free some space"
                ) from None
        for name, value in values.items() if self._writer is not None else ():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()


class Reporter:
    """Reports a run: rank 0 prints and logs, and every rank can write the hashes of its samples.

    Raises:
        UsageError: a file cannot be opened.
    """

    def __init__(self, args: Namespace, world: World) -> None:
        self._args = args
        self._world = world
        json_path = args.json or (None if args.out is None else args.out / "log.jsonl")
        self.log = Log(json_path, args.tensorboard) if world.rank == 0 else Log(None, None)
        self._console = Console(quiet=world.rank > 0, highlight=False, markup=False, soft_wrap=True)
        columns = "{task.description}", BarColumn(None), "{task.fields[rates]}", TimeRemainingColumn()
        self._progress = Progress(
            *columns,
            console=self._console,
            disable=not self._console.is_terminal,
            auto_refresh=False,  # no thread: the training thread draws the bar
            transient=True,
            expand=True,
        )
        self._bar = self._progress.add_task("", total=None, rates="")
        self._drawn = 0.0
        self._begun = time.perf_counter()
        self._num_steps = 0
        self._total = Throughput(0, 0.0, 0.0)
        self._damaged: set[str] = set()
        self._last: EvaluationResult | None = None
        self._samples = None
        if args.debug_samples is not None:
            self._samples = Path(f"{args.debug_samples}.rank{world.rank}").open("a", buffering=1)  # noqa: SIM115
            self._write_samples(rank=world.rank, pid=os.getpid(), world_size=world.size)

    def start(self, data: Data, step: int, num_steps: int, settings: dict[str, Any]) -> None:
        """Report that a run starts at step 0, or resumes at another step."""
        device, size = self._world.device, self._world.size
        self._console.print(
            f"{data.num_train:,} images to train on, {data.num_test:,} to test ({data.split}), "
            f"{len(data.classes)} classes"
        )
        processes = "1 process" if size == 1 else f"{size} processes"
        workers = "1 loader worker" if self._args.workers == 1 else f"{self._args.workers} loader workers"
        self._console.print(f"{processes} on {device.type}, {workers} each")
        if step:
            self._console.print(f"resumed after step {step:,} of {num_steps:,}")
        self.log.write("start", step=step, world_size=size, device=str(device), torch=torch.__version__, **settings)
        self._num_steps = num_steps
        self._progress.update(self._bar, total=num_steps, completed=step)
        self._progress.start()
        self._begun = time.perf_counter()

    def samples(self, epoch: int, step: int, images: Tensor) -> None:
        """Write which images this rank has in a step, if that is wanted."""
        if self._samples is not None:
            self._write_samples(epoch=epoch, step=step, samples=hashes_of(images))

    def step(self, epoch: int, step: int, timer: Timer, loss: Tensor, lr: float) -> None:
        """Report a step: update the bar ten times a second at most, and log every ``--log-every`` steps."""
        draws, logs = timer.received - self._drawn > 0.1, step % self._args.log_every == 0
        if self._world.rank > 0 or not (draws or logs):
            return
        speed = Throughput(timer.images, timer.seconds, timer.waited)
        if draws:
            self._drawn = timer.received
            name = f"epoch {epoch + 1:3}"
            self._progress.update(self._bar, description=name, completed=step, rates=str(speed), refresh=True)
        if logs:
            rates = {"images_per_s": speed.images_per_s, "data_wait": speed.waited / speed.seconds}
            self.log.write("step", step=step, epoch=epoch + 1, loss=loss.item(), lr=lr, **rates)  # waits for the device

    def epoch(
        self, epoch: int, step: int, loss: float, tested: EvaluationResult, speed: Throughput, image_size: int
    ) -> None:
        """Report an epoch."""
        values: dict[str, Any] = {}
        self._last = tested
        if speed.images:  # 0 if the run was resumed after the epoch's last step
            values = {"images_per_s": speed.images_per_s, "seconds": speed.seconds, "image_size": image_size}
            values |= {"data_wait_of_ranks": speed.data_wait_of_ranks}
            values |= {} if speed.utilisation is None else {"flop_utilisation": speed.utilisation}
            self._total += speed
        if tested.correct_of_views is not None:
            values["test_accuracy_of_views"] = tested.accuracy_of_views
            values["test_correct_of_views"] = tested.correct_of_views
        rates = str(speed) if speed.images else ""
        self._console.print(f"epoch {epoch + 1:3}   loss {loss:6.3f}   test {tested.accuracy:7.2%} {rates}")
        self.log.write(
            "epoch",
            step=step,
            epoch=epoch + 1,
            loss=loss,
            test_accuracy=tested.accuracy,
            test_correct=tested.correct,
            test_images=tested.total,
            test_loss=tested.loss,
            **values,
        )

    def damaged(self, step: int, of_ranks: list[dict[str, str]]) -> None:
        """Report the images that could not be loaded on any rank, and why, each once."""
        images = {image: reason for of_rank in of_ranks for image, reason in of_rank.items()}
        for image in sorted(images.keys() - self._damaged):
            self._console.print(f"could not be loaded: {image} ({images[image]})")
            self.log.write("damaged", step=step, image=image, why=images[image])
            self._damaged.add(image)

    def stop(self, step: int, number: int) -> None:
        """Report that a signal has stopped the run."""
        self.log.write("stop", step=step, signal=number)
        saved = "nothing was saved, since --out is not given"
        if self._args.out is not None:
            saved = "the same command resumes from there"
        name = signal.Signals(number).name
        self._console.print(f"stopped by {name} after step {step:,} of {self._num_steps:,}; {saved}")

    def end(self, step: int) -> None:
        """Report the end of the run."""
        self._progress.stop()
        assert self._last is not None
        seconds, accuracy = time.perf_counter() - self._begun, self._last.accuracy
        of_views = self._last.accuracy_of_views
        views = "" if of_views is None else f"   with test-time augmentation {of_views:.2%}"
        rates = str(self._total) if self._total.images else ""
        self._console.print(f"done in {seconds:.1f} s   test accuracy {accuracy:.2%}{views} {rates}")
        self.log.write("end", step=step, test_accuracy=accuracy, seconds=seconds)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.live.is_started:  # also after an error: the bar hides the cursor
            self._progress.stop()
        self.log.close()
        if self._samples is not None:
            self._samples.close()

    def _write_samples(self, **values: Any) -> None:
        assert self._samples is not None
        self._samples.write(json.dumps(values) + "\n")
