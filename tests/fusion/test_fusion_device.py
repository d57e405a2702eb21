"""A fused loader with a device: workers make bytes, the device their values; the batches are those without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fusion_tools import MEAN, STD, cifar, folder
from torch.utils.data import Subset, get_worker_info
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload import ConfigError, DataLoader, transforms
from fastload.engine import fusing

NORMALISED = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
CHAINS: dict[str, Any] = {
    "v1": [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "v2": [v2.RandomResizedCrop(24), v2.ToImage(), v2.RandomHorizontalFlip(), *NORMALISED],
    "bytes": [v1.Resize(30), v1.CenterCrop(24), v1.PILToTensor()],
    "erased": [v2.CenterCrop(24), v2.ToImage(), *NORMALISED, v2.RandomErasing(0.8, value="random")],
    "half": [v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)],
}
WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "kept": {"num_workers": 2, "persistent_workers": True},
    "a shard": {},
}


@pytest.fixture(autouse=True)
def _the_cpu_does_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "does_steps", lambda _: True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("images")
    folder(place)
    return place


def made(root: Path, steps: Any, kind: str = "files") -> Any:
    transform = v1.Compose(steps)
    return folder(root, transform) if kind == "files" else cifar(transform, count=25)


def batches(loader: DataLoader[Any], epochs: int = 2) -> list[list[Any]]:
    return [batch for _ in range(epochs) for batch in loader]


def check(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert len(found) == len(expected) > 0
    for (images, targets), (others, labels) in zip(found, expected, strict=True):
        assert (type(images), images.dtype, images.shape) == (type(others), others.dtype, others.shape)
        assert images.stride() == others.stride()
        assert torch.equal(images, others)
        assert torch.equal(targets, labels)


def splits(loader: DataLoader[Any]) -> bool:
    words = [line.split() for line in loader.explain().splitlines()]
    return any(line[-1] == "device" for line in words)


@pytest.mark.parametrize("kind", ["files", "arrays"])
@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_those_that_there_are_without_a_device(root, name, kind):
    dataset = made(root, CHAINS[name], kind)
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3, "fuse": True}
    expected = batches(DataLoader(dataset, **arguments))
    loader = DataLoader(dataset, **arguments, device="cpu")
    assert splits(loader) == (name not in ("bytes", "erased"))
    check(batches(loader), expected)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("way", WAYS)
def test_whoever_loads_them(root, way, seed):
    dataset = Subset(made(root, CHAINS["v1"]), [*range(20), 3, 3])

    def of(**options: Any) -> list[list[Any]]:
        generator = torch.Generator().manual_seed(5)
        sampler = fastload.DistributedSampler(dataset, 8, 7, seed=3, tail="pad") if way == "a shard" else None
        loader = DataLoader(dataset, 4, sampler=sampler, seed=seed, fuse=True, generator=generator, **options)
        found = batches(loader)
        loader.close()
        # Persistent workers have one base seed for all iterations.
        return found[: len(found) // 2] if seed is None and way == "kept" else found

    check(of(device="cpu", **WAYS[way]), of())


def test_a_resumed_pass_and_a_replayed_sample_are_the_same(root):
    dataset = made(root, CHAINS["v1"])

    def make() -> DataLoader[Any]:
        return DataLoader(
            dataset, 5, shuffle=True, seed=1, fuse=True, device="cpu", batch_transform=transforms.RandomHorizontalFlip()
        )

    whole, resumed = batches(make(), 1), make()
    loader = make()
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    resumed.load_state_dict(loader.state_dict())
    check(batches(resumed, 1), whole[2:])
    images, _ = fastload.replay(make(), 0, position=5 * 3 + 2, transformed=True)
    assert torch.equal(images[0], whole[3][0][2])


def test_the_users_transform_gets_what_it_would_get_and_draws_the_same(root):
    dataset = made(root, CHAINS["v1"])
    seen: list[Any] = []

    def look(batch: Any) -> Any:
        seen.append(batch[0].clone())
        return batch

    list(DataLoader(dataset, 5, fuse=True, seed=1, device="cpu", batch_transform=look))
    plain = list(DataLoader(dataset, 5, fuse=True, seed=1))
    check([[images, images] for images in seen], [[images, seen[i]] for i, (images, _) in enumerate(plain)])
    params = []
    for device in (None, "cpu"):
        loader = DataLoader(dataset, 5, fuse=True, seed=1, device=device, batch_transform=transforms.RandomCrop(20))
        next(iter(loader))
        params.append(loader.batch_params)
    assert all(torch.equal(params[0][name], params[1][name]) for name in ("top", "left"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"keep_on_host": (0,)}, "steps: keep_on_host keeps the images"),
        (
            {"collate_fn": lambda samples: [torch.stack([image for image, _ in samples])]},
            "steps: collate_fn gets what",
        ),
        ({"resident": "host"}, "steps: resident='host' keeps what"),
        ({"device": None}, "table of values"),
    ],
)
def test_the_workers_do_all_where_the_device_does_not_get_their_images(root, options, why):
    dataset = made(root, CHAINS["half"])
    arguments = {"batch_size": 4, "fuse": True, "seed": 1}
    loader = DataLoader(dataset, **arguments, **{"device": "cpu", **options})
    assert not splits(loader)
    assert why in loader.explain()
    assert splits(DataLoader(dataset, **arguments, device="cpu"))
    found = [batch[0] for batch in loader]
    expected = [batch[0] for batch in DataLoader(dataset, **arguments)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("options", [{"channels_last": True}, {"fixed_buffers": True, "drop_last": True}])
def test_batches_lie_as_they_are_asked_to(root, options):
    dataset = made(root, CHAINS["v1"])
    found, expected = [], []
    for kept, split in ((found, True), (expected, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fusing, "does_steps", lambda _, split=split: split)
            loader = DataLoader(dataset, 4, fuse=True, seed=1, device="cpu", **options)
            for images, targets in loader:
                if "channels_last" in options:
                    assert images.is_contiguous(memory_format=torch.channels_last)
                kept.append([images.clone(), targets.clone()])
    check(found, expected)


def test_what_moves_batches_is_made_once_as_long_as_the_steps_are_the_same(root):
    dataset = made(root, CHAINS["v1"])
    loader = DataLoader(dataset, 4, fuse=True, seed=1, device="cpu", num_workers=1)
    movers = []
    for _ in range(2):
        next(iter(loader))
        movers.append(loader._kept.mover[1])
    assert movers[0] is movers[1]
    dataset.transform = v1.Compose([*CHAINS["v1"][:3], v1.Normalize([0.5], [1])])
    images, _ = next(iter(loader))
    assert loader._kept.mover[1] is not movers[0]
    plain = DataLoader(dataset, 4, fuse=True, seed=1)
    plain.set_epoch(2)
    check([[images, images]], [[next(iter(plain))[0], images]])


def other_transform(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.transform = v1.Compose([v1.CenterCrop(24), v1.ToTensor()])


def test_a_transform_that_is_changed_where_the_device_does_a_part_of_it_is_an_error(root):
    dataset = made(root, CHAINS["v1"])
    loader = DataLoader(dataset, 4, fuse=True, seed=1, device="cpu", num_workers=1, worker_init_fn=other_transform)
    with pytest.raises(ConfigError, match="the transform of the ImageFolder was changed in a worker"):
        next(iter(loader))


def test_on_the_cpu_the_workers_do_all(root, monkeypatch):
    monkeypatch.undo()
    assert not splits(DataLoader(made(root, CHAINS["v1"]), 4, fuse=True, device="cpu"))
    assert fusing.does_steps(torch.device("cuda"))
