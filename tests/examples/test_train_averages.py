"""The moving average of the weights, and Lookahead."""

from __future__ import annotations

import copy

import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode
from training.averages import EMA, Lookahead
from training.models import build_network


def change_weights(network: nn.Module, seed: int) -> None:
    """Change the weights and statistics of a network in place, as a step does."""
    torch.manual_seed(seed)
    network.train()(torch.randn(4, 1, 8, 8))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return build_network("small", 1, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def test_the_average_is_bit_identical_to_torchs(network: nn.Module) -> None:
    ours = EMA(network, 0.9)
    torchs = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for step in range(4):
        change_weights(network, step)
        ours.update()
        torchs.update_parameters(network)
    expected, current = torchs.module.state_dict(), network.state_dict()
    for name, value in ours.module.state_dict().items():
        # torch truncates the mean of integer counts; ours are the network's.
        assert torch.equal(value, expected[name] if value.is_floating_point() else current[name]), name
        assert value.stride() == current[name].stride()
        assert value.data_ptr() != current[name].data_ptr()


def test_a_restored_average_continues_as_before(network: nn.Module) -> None:
    whole = EMA(network, 0.9)
    for step in range(2):
        change_weights(network, step)
        whole.update()
    again = EMA(network, 0.9)
    again.load_state_dict(copy.deepcopy(whole.module.state_dict()), started=True)
    change_weights(network, 2)
    whole.update()
    again.update()
    for one, other in zip(whole.module.state_dict().values(), again.module.state_dict().values(), strict=True):
        assert torch.equal(one, other)


class Calls(TorchDispatchMode):
    """Records the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_an_update_is_one_call_for_all_weights_and_copies_nothing_from_the_host(network: nn.Module) -> None:
    average = EMA(network, 0.9)
    average.update()
    with Calls() as calls:
        average.update()
    assert calls.names == ["aten._foreach_lerp_.Scalar", "aten._foreach_copy_.default"]


def test_lookahead_synchronises_in_two_calls(network: nn.Module) -> None:
    lookahead = Lookahead(network, every=1, decay=0.9)
    before = {name: value.clone() for name, value in lookahead.state_dict().items()}
    change_weights(network, 1)
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


def test_the_network_is_reset_to_the_slow_weights_every_few_steps_and_at_the_end() -> None:
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    weight, mean = network[0].weight, network[1].running_mean
    first = slow = quick = weight.item()
    lookahead = Lookahead(network, 5, 0.95)
    for step in range(1, 13):
        with torch.no_grad():
            weight += step
            mean += 2 * step
        quick += step
        lookahead.update(step, 12)
        if step in (5, 10):
            kept = 0.95**5 * (step / 12) ** 3
            slow = quick = kept * slow + (1 - kept) * quick
        assert weight.item() == pytest.approx(slow if step == 12 else quick)
    assert mean.item() == pytest.approx(
        2 * (weight.item() - first), rel=1e-5
    )  # running statistics are averaged the same way
    other = Lookahead(network, 5, 0.95)
    other.load_state_dict({name: value + 1 for name, value in lookahead.state_dict().items()})
    assert other.state_dict()["0.weight"].item() == pytest.approx(slow + 1)
    with pytest.raises(KeyError, match=r"0\.weight"):
        other.load_state_dict({})
