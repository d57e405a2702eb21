"""examples/minimal.py: killed twice it gives the weights of a run that nobody killed, bit for bit."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import minimal
import pytest
import torch
from kit.comparison import difference

EPOCHS, STEPS = 2, 22  # of an epoch
WORDS = ("--epochs", str(EPOCHS), "--workers", "1", "--seed", "3")


def rank(number: int, count: int, port: int, out: Path, killed_at: int | None, save_every: int) -> None:
    """Be a rank of torchrun's; kill this process when it has made so many steps."""
    names = {"RANK": number, "WORLD_SIZE": count, "LOCAL_RANK": number, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    printed = os.open(out / f"printed-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.argv = ["minimal.py", *WORDS, "--save-every", str(save_every), "--out", str(out)]
    made, plain = itertools.count(1), torch.optim.SGD.step

    def step(self: torch.optim.SGD, *given: Any) -> Any:
        found = plain(self, *given)
        if next(made) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    torch.optim.SGD.step = step  # type: ignore[method-assign]
    minimal.main()


def run(out: Path, ranks: int, killed_at: int | None = None, save_every: int = 10) -> list[int | None]:
    """Run it, or resume it; return the exit codes of the ranks."""
    out.mkdir(exist_ok=True)
    context = multiprocessing.get_context("fork")
    # Bound and not listening: nobody else gets this port, and rank 0 can listen there.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        given = ranks, reserved.getsockname()[1], out, killed_at, save_every
        processes = [context.Process(target=rank, args=(number, *given)) for number in range(ranks)]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(150)
            return [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()


def checkpoint(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / "checkpoint.pt")
    return found


@pytest.mark.slow
def test_killed_and_resumed_on_two_ranks_the_weights_are_those_of_a_run_that_nobody_killed(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, 2) == [0, 0]
    for killed_at, saved in ((15, 10), (18, 20)):  # in the first epoch, and in the second
        assert run(killed, 2, killed_at)[0] == -signal.SIGKILL
        assert checkpoint(killed)["step"] == saved
    assert run(killed, 2) == [0, 0]
    expected, found = checkpoint(whole), checkpoint(killed)
    assert expected["step"] == EPOCHS * STEPS
    assert difference(found, expected) is None
    assert not any(name.startswith("module.") for name in found["network"])
    assert re.findall(r"resumed after step (\d+)", (killed / "printed-0").read_text()) == ["10", "20"]
    # What rank 0 printed at the end is what one process counts, of test images that it has not seen.
    network = minimal.build_network()
    network.load_state_dict(found["network"])
    share = minimal.accuracy(network, torch.device("cpu"))
    assert share > 0.3  # chance is a tenth
    assert (whole / "printed-0").read_text().splitlines()[-1].endswith(f"test {share:.2%}")
    assert (whole / "printed-1").read_text() == ""


@pytest.mark.slow
def test_a_run_that_was_killed_on_two_ranks_after_the_end_of_an_epoch_was_saved_ends_on_one(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, 2, STEPS + 3, save_every=11)[0] == -signal.SIGKILL
    assert checkpoint(tmp_path)["step"] == STEPS
    assert run(tmp_path, 1) == [0]
    assert checkpoint(tmp_path)["step"] == EPOCHS * STEPS
    assert run(tmp_path, 1) == [0]  # nothing is left to do
    assert (tmp_path / "printed-0").read_text().splitlines()[-1] == f"resumed after step {EPOCHS * STEPS}"
