"""What examples/parallelism claims and its scripts do not print."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cross_entropy
import ddp_invariants
import gradient_accumulation
import init_methods
import packed_sequences
import pipeline_by_hand
import pytest
import send_receive
import sparse_gradients
import torch
from common import Rank, count_buckets
from producer_consumer import Ahead
from ranks import Said, run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence
from torchvision import models

from fastload import DataLoader

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def of_ranks(body: Any, folder: Path, **more: Any) -> list[Any]:
    return run_ranks(body, folder, start="forkserver", **more)


def inputs_of(rank: int, size: int) -> Tensor:
    return torch.randn(size, 10, generator=torch.Generator().manual_seed(10 + rank))


def averaged_and_sent(rank: int) -> tuple[list[Tensor], list[list[int]]]:
    here = Rank(rank, 2, CPU)
    torch.manual_seed(0)
    plain = nn.Linear(10, 1)
    averaging = ddp_invariants.wrap(plain, here)
    averaging(inputs_of(rank, 3 - 2 * rank)).square().mean().backward()
    sent = []
    for megabytes in (0.0005, 25.0):
        model = ddp_invariants.wrap(nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))), here, megabytes)
        sizes = count_buckets(model)
        for _ in range(2):
            sizes.clear()  # after the first backward DDP arranges buckets anew, in the order the gradients came
            model(torch.ones(1, 16)).sum().backward()
        sent.append(sizes)
    return [value.grad for value in plain.parameters() if value.grad is not None], sent


def test_ddp_averages_over_the_ranks_and_not_over_their_samples_in_buckets(tmp_path: Path) -> None:
    (found, sent), (of_other, _) = of_ranks(averaged_and_sent, tmp_path)
    torch.manual_seed(0)
    plain = nn.Linear(10, 1)

    def gradients(inputs: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(plain(inputs).square().mean(), list(plain.parameters())))

    shares = [inputs_of(0, 3), inputs_of(1, 1)]
    for left, right, *parts in zip(found, of_other, *map(gradients, shares), strict=True):
        assert torch.equal(left, right)
        torch.testing.assert_close(left, torch.stack(parts).mean(dim=0))
    assert (found[0] - gradients(torch.cat(shares))[0]).abs().max() > 0.01
    small, one = sent
    assert len(small) > 2
    assert one == [sum(small)] == [6 * (16 * 16 + 16)]


def with_and_without_a_name(rank: int) -> list[Tensor]:
    held, dropped = (sparse_gradients.Bag(sparse=False) for _ in range(2))
    model = DistributedDataParallel(held)
    model(sparse_gradients.words_of(rank)).square().sum().backward()
    DistributedDataParallel(dropped)(sparse_gradients.words_of(rank)).square().sum().backward()
    return [module.table.weight.grad for module in (held, dropped)]  # type: ignore[misc]


def test_a_deleted_ddp_silently_averages_nothing(tmp_path: Path) -> None:
    zero, one = of_ranks(with_and_without_a_name, tmp_path)
    assert torch.equal(zero[0], one[0])
    assert not torch.equal(zero[1], one[1])


def short_last_batch(rank: int) -> None:
    link = send_receive.Link(1 - rank, CPU)
    if rank:
        link.receive()
    else:
        link.send(torch.zeros(4, 2))
        link.send(torch.zeros(3, 2))


def test_what_a_link_cannot_send_is_the_senders_error(tmp_path: Path) -> None:
    with pytest.raises(Said, match=r"rank 1 expects \[4, 2\], torch.float32, got \[3, 2\].*drop_last=True"):
        of_ranks(short_last_batch, tmp_path)
    with pytest.raises(ValueError, match=r"at most 8 dimensions, got torch.int64 of 1"):
        send_receive.Link(1, CPU).send(torch.zeros(3, dtype=torch.int64))


def meet(rank: int, ports: tuple[int, ...], folder: str) -> dict[str, float]:
    return init_methods.meet(rank, init_methods.METHODS, 2, ports, folder)


def test_two_ranks_meet_by_environment_address_and_file_in_turn(tmp_path: Path) -> None:
    with init_methods.reserved_port() as first, init_methods.reserved_port() as second:
        body = functools.partial(meet, ports=(first, second, 0), folder=str(tmp_path))
        assert of_ranks(body, tmp_path, store=None) == [{"env": 3.0, "tcp": 3.0, "file": 3.0}] * 2


@pytest.mark.parametrize("split_size", [4, 1])
def test_any_split_size_gives_the_gradients_of_the_whole_batch_with_fixed_norms(split_size: int) -> None:
    torch.manual_seed(0)
    network = models.resnet18(num_classes=10).eval()
    images, labels = torch.randn(6, 3, 32, 32), torch.randint(0, 10, (6,))
    found = []
    for model in (network, pipeline_by_hand.Pipelined(*pipeline_by_hand.halves(network), ["cpu", "cpu"], split_size)):
        network.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        found.append([value.grad.clone() for value in network.parameters() if value.grad is not None])
    assert len(found[0]) == 62
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("every", [1, 3, 11, 20])
def test_a_window_of_any_size_equals_one_batch_of_its_samples(every: int) -> None:
    accumulated, _ = gradient_accumulation.train(0, 1, 16, every, "around both")
    together, _ = gradient_accumulation.train(0, 1, 16 * every, 1, "nowhere")
    assert torch.allclose(accumulated, together, rtol=0, atol=1e-12)


def test_losses_that_cross_entropy_computes_in_two_ways_are_equal() -> None:
    for words, (left, right) in cross_entropy.equalities().items():
        assert 0 < left < torch.inf, words
        assert torch.allclose(left, right, rtol=0, atol=1e-12), words


def test_a_packed_batch_gives_the_result_of_each_sequence_in_order() -> None:
    data, network = packed_sequences.Sequences(64), packed_sequences.Network().eval()
    options: Any = {"collate_fn": packed_sequences.pack, "num_workers": 1, "device": "cpu"}
    packed, _ = next(iter(DataLoader(data, 32, **options)))  # through workers, and to the device
    with torch.no_grad():
        together = network(packed)
        for row in range(32):
            one = data[row][0][None]
            alone = network(pack_padded_sequence(one, torch.tensor([one.shape[1]]), batch_first=True))
            assert torch.allclose(together[row], alone[0], atol=1e-5)


def producers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ahead"]


def test_a_queue_gives_every_item_once_in_order_and_then_the_producers_error() -> None:
    ahead = Ahead(lambda: range(50), 2)
    assert list(ahead) == list(ahead) == list(range(50))

    def numbers() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    iterator = iter(Ahead(numbers, 10))
    assert next(iterator) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    assert not producers()
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        Ahead(lambda: [1], 0)


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("taken", [1, 2, 7])
def test_a_break_ends_the_producer_even_if_it_waits_for_room(capacity: int, taken: int) -> None:
    for number in Ahead(lambda: iter(int, 1), capacity):  # zeros without end
        assert number == 0
        taken -= 1
        if not taken:
            break
    assert not producers()
