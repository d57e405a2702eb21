"""Parts of the training that are there for a GPU: the average, settings of libraries, a step that never waits."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import trainings  # noqa: F401  # puts examples/ where the imports below find it
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode
from training.average import Average
from training.backends import set_backends
from training.lookahead import Lookahead
from training.models import build_network


def stepped(network: nn.Module, seed: int) -> None:
    """Change the weights and the statistics of a network in place, as a step does."""
    torch.manual_seed(seed)
    network.train()(torch.randn(4, 1, 8, 8))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return build_network("small", 1, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def test_the_average_is_torchs_bit_for_bit(network: nn.Module) -> None:
    ours = Average(network, 0.9)
    torchs = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for step in range(4):
        stepped(network, step)
        ours.update()
        torchs.update_parameters(network)
    expected, current = torchs.module.state_dict(), network.state_dict()
    for name, value in ours.module.state_dict().items():
        # torch cuts the mean of counts off to an integer; ours are the network's.
        assert torch.equal(value, expected[name] if value.is_floating_point() else current[name]), name
        assert value.stride() == current[name].stride()
        assert value.data_ptr() != current[name].data_ptr()


def test_an_average_goes_on_from_weights_that_were_loaded(network: nn.Module) -> None:
    whole = Average(network, 0.9)
    for step in range(2):
        stepped(network, step)
        whole.update()
    again = Average(network, 0.9)
    again.module.load_state_dict(copy.deepcopy(whole.module.state_dict()))
    again.begun = True
    stepped(network, 2)
    whole.update()
    again.update()
    for one, other in zip(whole.module.state_dict().values(), again.module.state_dict().values(), strict=True):
        assert torch.equal(one, other)


class Calls(TorchDispatchMode):
    """Notes the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_an_update_is_one_call_for_all_weights_and_copies_nothing_from_the_host(network: nn.Module) -> None:
    average = Average(network, 0.9)
    average.update()
    with Calls() as calls:
        average.update()
    assert calls.names == ["aten._foreach_lerp_.Scalar", "aten._foreach_copy_.default"]


def test_lookahead_meets_the_network_in_two_calls(network: nn.Module) -> None:
    lookahead = Lookahead(network, every=1, decay=0.9)
    before = {name: value.clone() for name, value in lookahead.state_dict().items()}
    stepped(network, 1)
    quick = {name: network.state_dict()[name].clone() for name in before}
    with Calls() as calls:
        lookahead.update(1, 2)
    assert [name for name in calls.names if "detach" not in name] == [
        "aten._foreach_lerp_.Scalar",
        "aten._foreach_copy_.default",
    ]
    for name, slow in lookahead.state_dict().items():
        assert torch.equal(slow, before[name].lerp(quick[name], 1 - 0.9 / 8))
        assert torch.equal(slow, network.state_dict()[name])


@pytest.fixture
def settings() -> Iterator[None]:
    """Set the libraries back."""
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    yield
    torch.backends.cudnn.benchmark = benchmark
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("device", "deterministic", "benchmark"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_cudnn_chooses_the_fastest_where_bits_need_not_be_the_same(
    monkeypatch: pytest.MonkeyPatch, device: str, deterministic: bool, benchmark: bool
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    set_backends(torch.device(device), precision="fp32", deterministic=deterministic)
    assert torch.backends.cudnn.benchmark is benchmark
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("settings")
def test_products_are_in_tf32_where_that_is_asked_for() -> None:
    set_backends(torch.device("cuda"), precision="tf32", deterministic=False)
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.slow
def test_the_script_that_guards_steps_on_a_gpu_guards_all_but_two() -> None:
    script = Path(__file__).parents[1] / "guarded_training.py"
    words = ["--epochs", "1", "--limit-batches", "4", "--batch-size", "32", "--workers", "0", "--ema-decay", "0.9"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 guarded steps"
