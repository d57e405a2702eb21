"""DataParallel concatenates outputs and adds up gradients; nothing is averaged."""

from __future__ import annotations

import data_parallel
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CPU = torch.device("cpu")


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))


def batch_of(size: int) -> tuple[Tensor, Tensor]:
    data = torch.Generator().manual_seed(1)
    return torch.randn(size, 6, generator=data), torch.randint(0, 4, (size,), generator=data)


def gradients_alone(size: int) -> dict[str, Tensor]:
    network = make_network()
    images, labels = batch_of(size)
    cross_entropy(network(images), labels).backward()
    return data_parallel.gradients(network)


@pytest.mark.parametrize(
    ("size", "copies", "pieces"), [(8, 2, [4, 4]), (10, 4, [3, 3, 3, 1]), (5, 4, [2, 2, 1]), (3, 1, [3])]
)
def test_outputs_are_joined_and_gradients_summed_also_for_unequal_parts(
    size: int, copies: int, pieces: list[int]
) -> None:
    network = make_network()
    images, labels = batch_of(size)
    outputs, weights = data_parallel.data_parallel(network, images, [CPU] * copies)
    assert [len(piece) for piece in images.chunk(copies)] == pieces
    assert len(weights) == len(pieces)
    torch.testing.assert_close(outputs, network(images))
    cross_entropy(outputs, labels).backward()
    alone = gradients_alone(size)
    found = data_parallel.gradients(network)
    total = {name: sum(copy[name].grad for copy in weights) for name in alone}  # type: ignore[misc]
    assert data_parallel.difference(found, alone) < 1e-6
    assert data_parallel.difference(total, alone) < 1e-6
    if len(pieces) > 1:
        mean = {name: value / len(pieces) for name, value in total.items()}
        assert data_parallel.difference(mean, alone) > 1e-2


def test_batch_norm_sees_one_part_and_keeps_the_first_copys_statistics() -> None:
    norm = nn.BatchNorm1d(6, momentum=1.0)
    images, _ = batch_of(8)
    outputs, _ = data_parallel.data_parallel(norm, images, [CPU, CPU])
    torch.testing.assert_close(norm.running_mean, images[:4].mean(dim=0))
    torch.testing.assert_close(outputs[4:].mean(dim=0), torch.zeros(6), atol=1e-6, rtol=0)
    assert norm.num_batches_tracked == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the class is not idle")
def test_without_a_gpu_torchs_class_calls_the_network_once() -> None:
    calls = []
    network = make_network()
    network.register_forward_hook(lambda *_: calls.append(1))
    live = nn.DataParallel(network)
    live(batch_of(8)[0])
    assert (live.device_ids, len(calls)) == ([], 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_class_itself_on_two_gpus_computes_the_same() -> None:
    network = make_network().cuda(0)
    images, labels = (value.cuda(0) for value in batch_of(10))
    cross_entropy(nn.DataParallel(network, [0, 1])(images), labels).backward()
    live = data_parallel.gradients(network)
    cross_entropy(
        data_parallel.data_parallel(network, images, [torch.device("cuda", 0), torch.device("cuda", 1)])[0], labels
    ).backward()
    assert data_parallel.difference(data_parallel.gradients(network), live) < 1e-5


def test_the_script_prints_that_the_sum_is_right_and_the_mean_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["data_parallel.py"])
    data_parallel.main()
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines() if "..." in line)
    assert float(lines["... their sum"]) < 1e-6
    assert float(lines["... their mean"]) > 1e-3
