"""Sequences of different lengths, through the loader, packed, in buckets, on ranks."""

from __future__ import annotations

from typing import Any

import packed_sequences as example
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from fastload import DataLoader, DistributedBatchSampler


@pytest.fixture(scope="module")
def data() -> example.Sequences:
    return example.Sequences(400)


@pytest.fixture
def network() -> example.Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return example.Network().eval()


def test_a_packed_batch_gives_the_result_of_each_sequence_in_order(
    data: example.Sequences, network: example.Network
) -> None:
    unsorted = 0
    for batch in example.make_loader(data, 32, "cpu"):
        lengths = batch["lengths"]
        assert (lengths.device.type, lengths.dtype) == ("cpu", torch.int64)
        unsorted += not bool((lengths.diff() <= 0).all())
        packed = pack_padded_sequence(batch["sequences"], lengths, batch_first=True, enforce_sorted=False)
        with torch.no_grad():
            together = network(packed)
            for row, length in enumerate(lengths.tolist()):
                one = batch["sequences"][row : row + 1, :length]
                alone = network(pack_padded_sequence(one, lengths[row : row + 1], batch_first=True))
                assert torch.allclose(together[row], alone[0], atol=1e-5)
    assert unsorted > 0


def test_lengths_stay_on_the_host_and_sequences_do_not(
    data: example.Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A device without memory stands for a GPU.
    for module in ("device.prefetch", "device.streams", "engine.features"):
        monkeypatch.setattr(f"fastload.{module}.device_of", lambda _: torch.device("meta"))
    monkeypatch.setattr("fastload.device.prefetch.streams_of", lambda _: None)
    loader = example.make_loader(data, 32, "cuda")
    order = list(loader.batch_sampler)
    for batch, indices in zip(loader, order, strict=True):
        assert batch["sequences"].device.type == batch["classes"].device.type == "meta"
        assert batch["lengths"].device.type == "cpu"
        assert torch.equal(batch["lengths"], data.lengths[indices])


def test_unsorted_lengths_need_enforce_sorted_false(data: example.Sequences) -> None:
    batch = example.pad([data[index] for index in (0, int(data.lengths.argmax()))])
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        pack_padded_sequence(batch["sequences"], batch["lengths"], batch_first=True)


def test_a_packed_sequence_from_collate_fn_passes_through_workers_and_device(
    data: example.Sequences, network: example.Network
) -> None:
    options: Any = {"collate_fn": example.pack, "num_workers": 1, "device": "cpu"}
    packed, classes = next(iter(DataLoader(data, 8, **options)))
    assert isinstance(packed, PackedSequence)
    expected, expected_classes = example.pack([data[index] for index in range(8)])
    with torch.no_grad():
        assert torch.equal(network(packed), network(expected))
    assert torch.equal(classes, expected_classes)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_make_the_same_number_of_steps_with_batches_of_similar_length(
    data: example.Sequences, world_size: int
) -> None:
    loaders = [example.make_loader(data, 32, "cpu", rank=rank, world_size=world_size) for rank in range(world_size)]
    batches = [list(loader.batch_sampler) for loader in loaders]
    assert {len(of_rank) for of_rank in batches} == {400 // 32}
    seen = [index for of_rank in batches for batch in of_rank for index in batch]
    assert len(seen) == len(set(seen)) == 400 // 32 * 32
    plain = example.padding(data, DistributedBatchSampler(data, 32, seed=0))
    assert example.padding(data, [index for of_rank in batches for index in of_rank]) < plain / 3
