"""The example of CUDA graphs, with graphs that the CPU replays: one for each place, and the weights of plain steps."""

from __future__ import annotations

import graphed_step
import torch


class Simulated:
    """Captures work as a function that does it again, in the same tensors."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def before(self, work):
        self.log.append("before")
        return work()

    def capture(self, work):
        self.log.append("capture")
        loss = torch.zeros(())
        owner = self

        class Graph:
            def replay(self):
                owner.log.append("replay")
                loss.copy_(work())

        return Graph(), loss


class Eager:
    """Does each step as it is."""

    def before(self, work):
        return work()


def trained(capturing, capsys):
    network = graphed_step.train(torch.device("cpu"), capturing, epochs=1, batch_size=128, lr=0.05, workers=0)
    return list(network.parameters()), capsys.readouterr().out


def test_each_place_has_one_graph_and_the_weights_are_those_of_plain_steps(capsys, monkeypatch):
    simulated = Simulated()
    weights, printed = trained(simulated, capsys)
    places = graphed_step.PREFETCH + 2
    steps = len(graphed_step.Digits(train=True)) // 128
    assert simulated.log == ["before"] * 3 + ["capture", "replay"] * places + ["replay"] * (steps - 3 - places)
    once = graphed_step.GraphedStep.__init__
    monkeypatch.setattr(graphed_step.GraphedStep, "__init__", lambda self, *given: once(self, *given, num_before=999))
    plain, also_printed = trained(Eager(), capsys)
    assert all(map(torch.equal, weights, plain))
    assert printed == also_printed
