"""Runs of examples/train.py whose ranks are forked from the test, which has imported torch: they start at once.

The ranks meet through a file. The test reads what rank 0 prints from a pipe, so it can wait for a step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import multiprocessing
import os
import resource
import select
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 150.0
"""How long a run may print nothing, or take to end: longer than a slow machine takes."""


def train_module() -> ModuleType:
    """Return examples/train.py as a module."""
    if "fastload_train" not in sys.modules:
        specification = importlib.util.spec_from_file_location("fastload_train", EXAMPLES / "train.py")
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        sys.modules["fastload_train"] = module
    return sys.modules["fastload_train"]


class Training:
    """The ranks of a run.

    Args:
        folder: for the file that they meet through, and for their stderr.
        arguments: of train.py; ``--json /dev/stdout --log-every 1`` is added, so :attr:`lines` has a line for each
            step.
        ranks: how many.
        file_bytes: size limit of files; None: no limit.
        started: how many of the ranks are started; None: all.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        ranks: int = 1,
        file_bytes: int | None = None,
        started: int | None = None,
    ) -> None:
        train_module()
        self.lines: list[str] = []
        self._rest = b""
        number = len(list(folder.glob("errors-*-0")))
        store = folder / f"store-{number}"
        self._errors = [folder / f"errors-{number}-{rank}" for rank in range(ranks)]
        self._errors[0].touch()
        self._pipe, theirs = os.pipe()
        words = [*arguments, "--threads", "1", "--init-method", f"file://{store}"]
        if "--json" not in words:
            words += ["--json", "/dev/stdout", "--log-every", "1"]
        context = multiprocessing.get_context("fork")
        self.processes = []
        for rank, errors in enumerate(self._errors[:started]):
            process = context.Process(target=_rank, args=(rank, ranks, words, theirs, self._pipe, errors, file_bytes))
            process.start()
            self.processes.append(process)
        os.close(theirs)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
            process.join()
        os.close(self._pipe)

    def until(self, step: int) -> None:
        """Read what rank 0 prints until it has made this many steps."""
        while not any(line["kind"] == "step" and line["step"] >= step for line in self.logged()):
            if not self._read():
                pytest.fail(f"the run ended before step {step}:\n{self.lines}\n{self.errors()}")

    def end(self) -> list[int | None]:
        """Read to the end and return the exit codes of the ranks; -9: it was killed."""
        while self._read():
            pass
        for process in self.processes:
            process.join(LIMIT_S)
        return [process.exitcode for process in self.processes]

    def finish(self) -> None:
        """Read to the end; all ranks must exit with 0."""
        codes = self.end()
        assert codes == [0] * len(codes), (codes, self.lines, self.errors())

    def send(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to some ranks."""
        for rank in ranks:
            os.kill(self.processes[rank].pid or 0, number)

    def kill(self) -> None:
        """Kill all ranks."""
        self.send(signal.SIGKILL, *range(len(self.processes)))
        assert self.end() == [-signal.SIGKILL] * len(self.processes)

    def logged(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the JSON lines so far, of one kind or all."""
        read = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [one for one in read if kind in (None, one["kind"])]

    def errors(self) -> str:
        """Return what the ranks wrote to stderr, and what all but rank 0 printed."""
        return "".join(path.read_text() for path in self._errors if path.exists())

    def _read(self) -> bool:
        ready, _, _ = select.select([self._pipe], [], [], LIMIT_S)
        if not ready:
            self.send(signal.SIGUSR2, *(rank for rank, one in enumerate(self.processes) if one.exitcode is None))
            select.select([self._pipe], [], [], 2.0)  # until they have printed their stacks
            pytest.fail(f"the run prints nothing any more:\n{self.lines}\n{self.errors()}")
        piece = os.read(self._pipe, 65536)
        *whole, self._rest = (self._rest + piece).split(b"\n")
        self.lines += [line.decode() for line in whole]
        return bool(piece)


def _rank(
    rank: int, ranks: int, arguments: list[str], stdout: int, theirs: int, errors: Path, file_bytes: int | None
) -> None:
    os.close(theirs)
    sink = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stdout if rank == 0 else sink, 1)
    os.dup2(sink, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.close(stdout)
    names = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in names.items()})
    sys.argv = ["train.py", *arguments]
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR2, file=sys.stderr)  # prints its stack; pytest's own timer cannot be forked
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    try:
        train_module().main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 70
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.exit(code)


def state_in(folder: Path) -> dict[str, Any]:
    """Return what the checkpoint in a folder has."""
    from training import checkpoint

    path = folder / "checkpoint.pt"
    return checkpoint.parse(path.read_bytes(), path)


def samples(folder: Path, ranks: int, name: str = "samples") -> dict[int, list[list[str]]]:
    """Return the samples of all ranks, in the order of the ranks, for each step: a list for each time it was made."""
    of_ranks: list[list[tuple[int, list[str]]]] = []
    for rank in range(ranks):
        lines = [json.loads(line) for line in (folder / f"{name}.rank{rank}").read_text().splitlines()]
        of_ranks.append([(line["step"], line["samples"]) for line in lines if "samples" in line])
    steps: dict[int, list[list[str]]] = {}
    for parts in zip(*of_ranks, strict=False):  # a killed rank may have started one step less
        assert len({step for step, _ in parts}) == 1
        steps.setdefault(parts[0][0], []).append([one for _, part in parts for one in part])
    return steps


def make_images(folder: Path, count: int, side: int = 20) -> None:
    """Write noisy images of three classes, red, green and blue, as JPEGs of slightly different sizes."""
    rng = np.random.default_rng(0)
    for channel, name in enumerate(["blue", "green", "red"]):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 100, (side + number % 3, side, 3), dtype=np.uint8)
            pixels[..., 2 - channel] += 120
            Image.fromarray(pixels).save(folder / name / f"{number:03}.jpg")
