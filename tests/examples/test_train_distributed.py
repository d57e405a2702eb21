"""Seeds, signals, lost ranks and wrong weights; torch's settings; steps that never wait for the GPU."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from torch import nn
from training.backends import set_backends
from training.distributed import Signals, StopRequest, World, check_finite, ignore_signals, seed_rank
from training.errors import RunError, is_lost_rank
from training.options import parse_arguments
from training.recipe import RECIPES
from training.startup import join


def test_ranks_and_steps_draw_different_numbers() -> None:
    drawn = set()
    with torch.random.fork_rng(devices=[]):
        for seed, step, rank in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]:
            seed_rank(seed, step, rank)
            drawn.add(float(torch.rand(())))
    assert len(drawn) == 5


def test_errors_of_a_lost_rank_are_recognised() -> None:
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"
    assert is_lost_rank(RuntimeError(lost))
    assert is_lost_rank(torch.distributed.DistNetworkError("the client socket has failed"))
    assert is_lost_rank(RuntimeError("Wait timeout"))  # of a rank that exited while the group was created
    assert is_lost_rank(RuntimeError("Application timeout caused pair closure"))  # of gloo, in another thread
    assert not is_lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_rank(ValueError("gloo"))


def test_one_process_needs_no_group_and_signals_are_recorded_until_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with Signals(saves=False) as signals:
        world = join(None, 1.0, 1.0, signals)
        assert (world.rank, world.size, world.gather("word"), world.broadcast(3)) == (0, 1, ["word"], 3)
        stop = StopRequest(world, signals)
        assert stop.agreed() == 0
        signal.raise_signal(signal.SIGUSR1)
        assert stop.agreed() == signal.SIGUSR1
        ignore_signals(0)
        signal.raise_signal(signal.SIGTERM)  # would end this process
        assert stop.agreed() == signal.SIGUSR1
        assert signals.exit_code(signal.SIGTERM) == 128 + 15  # nothing is saved
    assert Signals(saves=True).exit_code(signal.SIGTERM) == 0
    assert {number: signal.getsignal(number) for number in before} == before


def test_infinite_weights_and_losses_are_errors() -> None:
    network = nn.Linear(2, 2)
    check_finite(1.0, network, 3)
    with pytest.raises(RunError, match=r"^the loss is nan at step 3; lower --lr"):
        check_finite(float("nan"), network, 3)
    with torch.no_grad():
        network.bias[1] = float("inf")
    with pytest.raises(RunError, match=r"^the weights are infinite or NaN at step 3; lower --lr"):
        check_finite(1.0, network, 3)


@pytest.fixture
def settings() -> Iterator[None]:
    """Restore torch's settings."""
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    threads = torch.get_num_threads()
    yield
    torch.backends.cudnn.benchmark = benchmark
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("device", "deterministic", "benchmark"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_cudnn_takes_the_fastest_algorithm_unless_deterministic(
    monkeypatch: pytest.MonkeyPatch, device: str, deterministic: bool, benchmark: bool
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    args, _ = parse_arguments(RECIPES, ["--threads", "1", *["--deterministic"] * deterministic])
    set_backends(args, World(device=torch.device(device)))
    assert torch.backends.cudnn.benchmark is benchmark
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("settings")
def test_matrix_products_use_tf32_if_requested() -> None:
    args, _ = parse_arguments(RECIPES, ["--precision", "tf32"])
    set_backends(args, World(device=torch.device("cuda")))
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.slow
def test_all_steps_but_the_first_two_are_guarded() -> None:
    script = Path(__file__).parents[1] / "guarded_training.py"
    words = ["--epochs", "1", "--limit-batches", "4", "--batch-size", "32", "--workers", "0", "--ema-decay", "0.9"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 guarded steps"
