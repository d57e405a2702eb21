"""Which changes of a model invalidate an optimizer that was created before."""

from __future__ import annotations

import optimizer_after_to as example
import pytest
import torch


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("to(dtype)", True),
        ("channels-last", True),
        ("SyncBatchNorm", True),
        ("to_empty", False),
        ("another layer", False),
    ],
)
def test_an_early_optimizer_keeps_parameters_that_are_changed_in_place_and_loses_replaced_ones(
    change: str, kept: bool
) -> None:
    assert example.kept_after(change) is kept


def test_a_replaced_parameter_is_silently_never_updated() -> None:
    network = example.make_network()
    optimizer = example.make_optimizer(network)
    network[0] = torch.nn.Linear(4, 4)
    before = network[0].weight.detach().clone()
    example.step(network, optimizer)
    assert network[0].weight.grad is not None
    assert torch.equal(network[0].weight, before)
    assert not example.has_all_parameters(optimizer, network)


def test_the_state_of_earlier_steps_is_not_moved_until_it_is_loaded_again() -> None:
    assert example.state_after_a_move() == (torch.float32, torch.float64)
