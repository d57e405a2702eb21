"""A network on two devices gives one device's gradients, and each half is on its device."""

from __future__ import annotations

import model_parallel_toy
import torch


def test_loss_and_gradients_equal_those_of_one_device() -> None:
    other = "cuda:0" if torch.cuda.is_available() else "cpu"
    loss, gradients = model_parallel_toy.trained("cpu", other)
    alone_loss, alone = model_parallel_toy.trained("cpu", "cpu")
    assert abs(loss - alone_loss) < 1e-6
    assert len(gradients) == 4
    for left, right in zip(gradients, alone, strict=True):
        torch.testing.assert_close(left, right)


def test_activations_move_to_the_second_device() -> None:
    """A device without memory is a second device on any machine."""
    network = model_parallel_toy.Toy("cpu", "meta")
    assert {value.device.type for value in network.net1.parameters()} == {"cpu"}
    assert {value.device.type for value in network.net2.parameters()} == {"meta"}
    output = network(torch.zeros(3, 10))
    assert (output.shape, output.device.type) == ((3, 5), "meta")
