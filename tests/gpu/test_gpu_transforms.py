"""Transforms on a real GPU: the CPU's results, one launch where there can be, and a host that never waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from every_transform import CASES, MEAN, NORMALIZED, NUM, STD, arguments, check, draws_of, made, params_of
from kit.datasets import Made
from torch import Tensor

from fastload import DataLoader
from fastload import transforms as T
from fastload.transforms import fused, proof
from fastload.transforms.params import params_to

CYCLES = 20_000_000  # of torch.cuda._sleep: some 10 ms
MEMORY = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
EACH = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]

NORMALIZE = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
CHAINS: dict[str, list[Any]] = {
    "cifar": [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), *NORMALIZE],
    "filled": [T.RandomCrop(32, (1, 2, 3, 4), fill=(10, 20, 30)), T.RandomVerticalFlip(), *NORMALIZE],
    "edge": [T.RandomCrop(44, 6, padding_mode="edge"), T.ToNormalized(MEAN, STD, torch.bfloat16)],
    "reflect": [T.RandomCrop(44, 6, padding_mode="reflect"), T.ToNormalized(MEAN, STD, torch.float16)],
    "symmetric": [T.RandomCrop(44, 6, padding_mode="symmetric"), T.ToDtype(torch.bfloat16, scale=True)],
    "evaluation": [T.Resize(38, "nearest"), T.CenterCrop(32), T.ToNormalized([0.5], [0.25], torch.bfloat16)],
    "moved": [T.RandomCrop(24), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "values": [T.ToNormalized(MEAN, STD, torch.bfloat16)],
}


@pytest.fixture(autouse=True)
def _kernels_prove_themselves(monkeypatch) -> Iterator[None]:
    """Else torch's operations would serve, and the tests would compare these."""
    monkeypatch.setattr(proof, "_reasons", {})
    monkeypatch.setattr(proof, "_warned", set())
    yield
    for number in range(torch.cuda.device_count()):
        assert proof.refusals(torch.device("cuda", number)) == []


@pytest.fixture(params=["0", "1"], ids=["torch", "triton"])
def kernels(request, monkeypatch):
    """Either way of doing it."""
    monkeypatch.setenv("FASTLOAD_TRITON", request.param)
    return request.param


def test_the_kernel_is_there(device):
    assert fused.available(device), "it needs Triton, a GPU that this compiles for, a C compiler and headers"


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_results_are_those_of_the_cpu(device, name, dtype, memory):
    case = CASES[name]
    transform = case.make()
    images = made(dtype, MEMORY[memory])
    params = params_of(transform, images)
    expected = transform(*arguments(transform, images), params=params)
    found = transform(*arguments(transform, images.to(device)), params=params)
    check(found, expected, case, dtype)


@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_no_transform_waits_for_the_device(device, kernels, without_waiting, name, dtype):
    transform = CASES[name].make()
    given = arguments(transform, made(dtype).to(device))
    draws = draws_of(NUM)
    transform(*given, draws=draws)  # what is done once: libraries, page-locked memory, compilation
    with without_waiting():
        transform(*given, draws=draws)


def check_close(found: Tensor, expected: Tensor) -> None:
    """Check the tolerance of ToNormalized: in float32, and one unit in the last place of what is lower."""
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    place = 0.0 if expected.dtype in (torch.uint8, torch.float32) else torch.finfo(expected.dtype).eps
    assert ((found.double() - expected.double()).abs() <= NORMALIZED + place * expected.double().abs()).all()


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CHAINS)
def test_one_launch_gives_what_several_give(device, monkeypatch, name, dtype, memory):
    composed = T.Compose(CHAINS[name])
    images = made(dtype, MEMORY[memory]).to(device)
    params = params_of(composed, images)
    before = images.clone()
    monkeypatch.setenv("FASTLOAD_TRITON", "0")
    expected = composed(images, params=params)
    monkeypatch.setenv("FASTLOAD_TRITON", "1")
    launches, launch = [], fused.transformed
    monkeypatch.setattr(fused, "transformed", lambda *args: launches.append(None) or launch(*args))
    found = composed(images, params=params)
    assert len(launches) == 1
    if name in ("moved", "symmetric"):
        assert torch.equal(found, expected)
    check_close(found, expected)
    assert torch.equal(images, before)


# Where quotients of sizes are not rounded as the CPU rounds them, another pixel is the nearest, and ties break.
@pytest.mark.parametrize(
    ("side", "size"), [(41, 41), (82, 41), (94, 47), (164, 82), (220, 110), (224, 192), (304, 224)]
)
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear"])
def test_resized_images_are_those_of_the_cpu(device, kernels, side, size, interpolation):
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    transform = T.Resize((size, size), interpolation)
    params = params_of(transform, images)
    expected = transform(images, params=params).int()
    found = transform(images.to(device), params=params).cpu().int()
    if interpolation != "bilinear":
        assert torch.equal(found, expected)
    assert ((found - expected).abs() > 0).double().mean() < 0.001
    assert (found - expected).abs().max() <= 1


# Inductor advises TF32 for products of matrices, and libraries that it imports warn of their own.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHAINS)
def test_compiled_chains_give_what_the_launch_gives(device, name):
    composed = T.Compose(CHAINS[name])
    images = made(torch.uint8).to(device)
    params = params_to(params_of(composed, images), device)
    torch.compiler.reset()
    compiled = torch.compile(composed.transform, fullgraph=True)
    check_close(compiled(images, params).contiguous(), composed.transform(images, params))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_compose_draws_and_gives_the_same(device):
    composed = T.Compose(CHAINS["cifar"])
    images = made(torch.uint8).to(device)
    torch.compiler.reset()
    found, params = torch.compile(composed)(images, return_params=True)
    check_close(found.contiguous(), composed(images, params=params))


def test_a_launch_is_on_the_current_stream(device):
    composed = T.Compose(CHAINS["cifar"])
    images = made(torch.uint8)
    params = params_of(composed, images)
    expected = composed(images, params=params)
    late = torch.zeros_like(images, device=device)
    composed(late, params=params)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        late.copy_(images.pin_memory(), non_blocking=True)
        found = composed(late, params=params)
        stream.synchronize()
    check_close(found.cpu(), expected)


def test_a_launch_can_be_recorded_in_a_graph(device):
    composed = T.Compose(CHAINS["cifar"])
    images = made(torch.uint8).to(device)
    params = params_to(params_of(composed, images), device)
    expected = composed.transform(images, params)
    place = torch.zeros_like(images)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = composed.transform(place, params)
    place.copy_(images)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


def test_parameters_of_many_batches_arrive_though_the_device_is_late(device):
    torch.cuda._sleep(10 * CYCLES)
    moved = []
    for number in range(50):
        params = {"a": torch.full((100,), number), "b": {"c": torch.full((7,), number / 4), "d": [torch.tensor(True)]}}
        moved.append(params_to(params, device))
        del params
    for number, found in enumerate(moved):
        assert found["a"].device == device
        assert found["a"].tolist() == [number] * 100
        assert found["b"]["c"].tolist() == [number / 4] * 7
        assert found["b"]["d"][0].item() is True


# Offsets of 2**31 and more: within a sample, and from the first sample to the last.
@pytest.mark.parametrize("shape", [(1, 1, 46_342, 46_342), (70_000, 3, 100, 104)])
@pytest.mark.parametrize("memory", MEMORY)
def test_large_batches_are_read_and_written_to_their_end(device, shape, memory):
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of the GPU's memory")
    images = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=MEMORY[memory])
    images.random_(0, 256)
    composed = T.Compose([T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)])
    params = {name: {"flip": torch.ones(shape[0], dtype=torch.bool)} for name in composed._names}
    assert torch.equal(composed(images, params=params), images.flip(2, 3))


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_loader_gives_the_same_augmented_batches_from_either_device(device, kernels, channels_last):
    composed = T.Compose(CHAINS["cifar"])
    options = {"batch_size": 32, "shuffle": True, "seed": 3, "batch_transform": composed}
    dataset = Made(100, lambda index: (made(torch.uint8, seed=index)[0], index))
    there = list(DataLoader(dataset, device="cuda", channels_last=channels_last, **options))
    here = list(DataLoader(dataset, device="cpu", channels_last=channels_last, **options))
    assert len(there) == len(here) == 4
    for (found, labels), (expected, expected_labels) in zip(there, here, strict=True):
        check_close(found.cpu(), expected)
        assert labels.tolist() == expected_labels.tolist()
