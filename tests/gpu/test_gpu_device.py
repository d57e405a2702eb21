"""The device stage on a real GPU: values, overlap, and a host that never waits."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from kit.datasets import Made
from kit.recycled import Recycled
from torch import Tensor

from fastload import DataLoader, prefetch
from fastload.device.prefetch import DeviceAhead, Mover
from fastload.device.streams import Streams

CYCLES = 20_000_000  # of torch.cuda._sleep: some 10 ms
SHAPE = (16, 3, 64, 64)


def test_a_batch_is_read_when_the_side_stream_has_made_it(device):
    def slowly(batch: Any, _: Any) -> Tensor:
        torch.cuda._sleep(CYCLES)
        return batch["x"] + 1000  # numbers that memory which was used before cannot hold by chance

    ahead = DeviceAhead(Recycled(6, SHAPE, pinned=True), Mover(device, Streams(device), transform=slowly), 2)
    seen = [ahead.next().data.double().mean() for _ in range(6)]
    torch.cuda.synchronize()
    ahead.close()
    assert [value.item() for value in seen] == [float(i + 1000) for i in range(6)]


@pytest.mark.parametrize("transform", [None, lambda batch, _: batch["x"] + 1], ids=["copies", "transforms"])
def test_copies_and_transforms_run_while_kernels_do(device, transform):
    streams = Streams(device)

    def stage() -> DeviceAhead:
        source = Recycled(8, (16, 3, 256, 256), spare=8, pinned=True)
        return DeviceAhead(source, Mover(device, streams, transform=transform), 2)

    # Before: what takes longer than any kernel here, which is to page-lock and to allocate.
    ahead = stage()
    batches = [ahead.next() for _ in range(8)]
    del batches
    # What is launched here may take the host longer than the kernel runs: then a longer one is needed, to tell.
    for num_cycles in (10 * CYCLES, 100 * CYCLES, 400 * CYCLES):
        ahead.close()
        ahead = stage()
        ahead.next()
        torch.cuda.synchronize()
        torch.cuda._sleep(num_cycles)
        ended = torch.cuda.Event()
        ended.record()
        batch = ahead.next()  # begun now
        assert batch.event is not None
        batch.event.synchronize()
        while_it_ran = not ended.query()
        torch.cuda.synchronize()
        del batch
        if while_it_ran:
            break
    else:
        pytest.fail("what is begun behind a kernel of four seconds ends behind it: it waits for the kernel")
    ahead.close()


def test_memory_is_bounded_by_what_a_slow_device_has_consumed(device):
    depth, number, shape = 2, 100, (10, 1024, 1024)
    size = 4 * 10 * 2**20
    source = Recycled(number, shape, spare=depth + 3, pinned=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats(device)["active_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats(device)
    ahead = DeviceAhead(source, Mover(device, Streams(device)), depth)
    seen = []
    for _ in range(number):
        batch = ahead.next()
        torch.cuda._sleep(4 * CYCLES)  # some 50 ms
        seen.append(batch.data["x"].amax())
        del batch
    # Not max_memory_allocated(): it forgets memory that is freed while a stream is still to read it.
    most = torch.cuda.memory_stats(device)["active_bytes.all.peak"] - before
    torch.cuda.synchronize()
    ahead.close()
    assert [value.item() for value in seen] == [float(i) for i in range(number)]
    assert most <= (depth + 3) * size + 2**21, f"{most / size:.1f} batches"
    assert source.buffers == depth + 3


IMAGES = Made(256, lambda index: (torch.full((3, 32, 32), index, dtype=torch.uint8), index))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_nothing_waits_for_the_device(without_waiting, options):
    loader = DataLoader(
        IMAGES, 32, device="cuda", batch_transform=lambda batch: (batch[0].float() / 255, batch[1]), **options
    )
    list(loader)  # what is done once: the stream, page-locked memory
    with without_waiting():
        seen = [(images, labels) for images, labels in loader]
    for images, labels in seen:
        assert images.device.type == labels.device.type == "cuda"
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)
    loader.close()


def test_a_users_own_copy_from_pinned_batches_reads_the_right_values():
    for method in ("multiprocessing", "thread"):
        loader = DataLoader(IMAGES, 32, num_workers=2, pin_memory=True, worker_method=method)
        stream = torch.cuda.Stream()
        seen = []
        with torch.cuda.stream(stream):
            for images, labels in loader:
                torch.cuda._sleep(CYCLES)
                seen.append((images.cuda(non_blocking=True), labels.cuda(non_blocking=True)))
                del images, labels
        torch.cuda.synchronize()
        for images, labels in seen:
            assert torch.equal(images[:, 0, 0, 0].long(), labels)
        loader.close()


WAYS: dict[str, dict[str, Any]] = {
    "processes": {"num_workers": 2},
    "kept": {"num_workers": 2, "persistent_workers": True},
    "pipes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}


def loader_of(way: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> DataLoader[Any]:
    if way == "pipes":
        monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes")
    return DataLoader(IMAGES, 16, **{"device": "cuda", **WAYS[way], **options})


def check_slow_kernels(loader: DataLoader[Any], device: torch.device) -> None:
    """Check that slow kernels read their own batches in two epochs, though memory is written again."""
    seen = []
    for _ in range(2):
        for images, labels in loader:
            assert images.device == labels.device == device
            with torch.cuda.device(device):
                torch.cuda._sleep(CYCLES // 4)
            seen.append((images.amin((1, 2, 3)).long(), images.amax((1, 2, 3)).long(), labels.clone()))
            del images, labels
    torch.cuda.synchronize(device)
    assert torch.cat([labels for _, _, labels in seen]).tolist() == list(range(256)) * 2
    for least, most, labels in seen:
        assert torch.equal(least, labels)
        assert torch.equal(most, labels)
    loader.close()


@pytest.mark.parametrize(
    "options", [{}, {"channels_last": True}, {"fixed_buffers": True}, {"prefetch_to_device": 5}], ids=str
)
@pytest.mark.parametrize("way", WAYS)
def test_slow_kernels_read_their_own_batches_though_slots_are_written_again(way, options, device, monkeypatch):
    check_slow_kernels(loader_of(way, monkeypatch, **options), device)


@pytest.mark.parametrize("options", [{}, {"fixed_buffers": True}, {"resident": "device"}, {"num_workers": 2}], ids=str)
def test_batches_come_to_a_device_that_is_not_the_current_one(options):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    other = torch.device("cuda", 1)
    with torch.cuda.device(0):
        check_slow_kernels(DataLoader(IMAGES, 16, device=other, **options), other)


@pytest.mark.parametrize("way", WAYS)
def test_a_users_own_copy_of_parts_that_stay_reads_the_right_values(way, monkeypatch):
    loader = loader_of(way, monkeypatch, keep_on_host=(1,))
    stream = torch.cuda.Stream()
    seen = []
    for images, labels in loader:
        assert not labels.is_pinned()
        stream.wait_stream(torch.cuda.current_stream())  # which is the one that waits for the batch
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES // 4)
            seen.append((images[:, 0, 0, 0].long(), labels.cuda(non_blocking=True)))
            images.record_stream(stream)
        del images, labels
    torch.cuda.synchronize()
    assert torch.cat([labels for _, labels in seen]).tolist() == list(range(256))
    for images, labels in seen:
        assert torch.equal(images, labels)
    loader.close()


@pytest.mark.parametrize("way", ["processes", "threads"])
def test_while_a_child_lives_the_device_reads_what_was_written_after_the_fork(way, monkeypatch):
    loader = loader_of(way, monkeypatch)
    iterator = iter(loader)
    seen = [next(iterator)]
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tells)
        os.read(hears, 1)
        os._exit(0)
    os.close(hears)
    seen += list(iterator)
    os.close(tells)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for images, labels in seen:
        assert torch.equal(images[:, 2, 31, 31].long(), labels)
    loader.close()


@pytest.mark.parametrize(
    "stream", [lambda: torch.cuda.current_stream(), lambda: torch.cuda.Stream()], ids=["default", "own"]
)
def test_the_users_current_stream_is_the_one_that_waits(device, stream):
    with torch.cuda.stream(stream()):
        seen = [batch.double().mean() for batch in prefetch([torch.full(SHAPE, float(i)) for i in range(9)], device)]
        torch.cuda.current_stream().synchronize()
    assert [value.item() for value in seen] == [float(i) for i in range(9)]
