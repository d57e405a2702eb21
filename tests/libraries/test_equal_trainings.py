"""Whole trainings by others' loops: every loss is equal to the last digit, with torch's loader and with ours."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from kit.datasets import Made
from kit.libraries import Classifier, accelerator, forget_settings, lightning_trainer, training_arguments
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload

Losses = list[float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in two classes."""
    found = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(3)
    for place in range(22):
        (found / str(place % 2)).mkdir(exist_ok=True)
        image = PIL.Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8))
        image.resize((50, 42), PIL.Image.Resampling.BICUBIC).save(found / f"{place % 2}/{place}.jpg")
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def losses(train: Callable[[Any], Losses], loader_class: Any, *, installed: bool) -> Losses:
    """Train from the same state of the global generators; return the losses, and what the generators give after it."""
    forget_settings()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    if installed:
        fastload.install()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = train(loader_class)
    finally:
        fastload.uninstall()
    return [*found, random.random(), np.random.rand(), torch.rand(1).item()]


def assert_equal_trainings(train: Callable[[Any], Losses], *, install: bool = False) -> None:
    """Train with torch's class and with ours, which is given to ``train``, or installed before it."""
    torchs = torch.utils.data.DataLoader
    expected = losses(train, torchs, installed=False)
    found = losses(train, torchs if install else fastload.DataLoader, installed=install)
    assert len(expected) > 8
    assert found == expected


def small_network(outputs: int = 2) -> torch.nn.Module:
    """Return a small network of convolutions, with dropout, which draws from torch's generator in this process."""
    first = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    return torch.nn.Sequential(
        first, torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(16, outputs)
    )


def augmentation() -> Any:
    flip_and_colour = torchvision.transforms.RandomHorizontalFlip(), torchvision.transforms.TrivialAugmentWide()
    crop, end = torchvision.transforms.RandomResizedCrop(32), torchvision.transforms.ToTensor()
    return torchvision.transforms.Compose([crop, *flip_and_colour, end, torchvision.transforms.RandomErasing(0.4)])


def mix_up(batch: Any) -> Any:
    """Mix the images of a batch: torchvision's references do so in ``collate_fn``."""
    return v2.MixUp(num_classes=2)(*torch.utils.data.default_collate(batch))


WORKERS = [(0, False), (2, False), (2, True), (3, True)]
each_way = pytest.mark.parametrize(
    ("num_workers", "persistent"), WORKERS, ids=lambda one: f"{one}" if type(one) is int else "kept" * one or "ended"
)


@each_way
@pytest.mark.parametrize("mixes", [False, True])
def test_a_classification_like_torchvisions(folder: Path, num_workers: int, persistent: bool, mixes: bool) -> None:
    def train(loader_class: Any) -> Losses:
        kept = {"num_workers": num_workers, "persistent_workers": persistent}
        images = torchvision.datasets.ImageFolder(str(folder), augmentation())
        sampler = torch.utils.data.RandomSampler(images)
        collate = mix_up if mixes else None
        loader = loader_class(images, batch_size=4, sampler=sampler, pin_memory=False, collate_fn=collate, **kept)
        centre = torchvision.transforms.Compose(
            [torchvision.transforms.CenterCrop(32), torchvision.transforms.ToTensor()]
        )
        held_out = torchvision.datasets.ImageFolder(str(folder), centre)
        validation = loader_class(held_out, batch_size=8, **kept)
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        found = []
        for _ in range(2):
            model.train()
            for pixels, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            model.eval()
            with torch.inference_mode():
                found += [
                    torch.nn.functional.cross_entropy(model(pixels), labels).item() for pixels, labels in validation
                ]
        return found

    assert_equal_trainings(train)


class Detection(torch.utils.data.Dataset[Any]):
    """Images with boxes, transformed together."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        begin = [
            v2.ToImage(),
            v2.RandomPhotometricDistort(),
            v2.RandomZoomOut(side_range=(1.0, 1.5)),
            v2.RandomIoUCrop(),
        ]
        end = [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes()]
        self.transform = v2.Compose([*begin, *end])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = PIL.Image.open(self.paths[index]).convert("RGB")
        boxes = [[2.0, 3, 30, 30], [10, 5, 40, 38]]
        target = {"boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(42, 50))}
        return self.transform(image, target | {"labels": torch.tensor([1, 2])})


def transposed(batch: Any) -> Any:
    return tuple(zip(*batch, strict=True))


@each_way
def test_a_detection_like_torchvisions(folder: Path, num_workers: int, persistent: bool) -> None:
    def train(loader_class: Any) -> Losses:
        images = Detection(folder)
        batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(images), 2, drop_last=True)
        kept = {"num_workers": num_workers, "persistent_workers": persistent}
        loader = loader_class(images, batch_sampler=batches, collate_fn=transposed, **kept)
        model = small_network(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        found = []
        for _ in range(2):
            for pictures, targets in loader:
                boxes = [target["boxes"].as_subclass(torch.Tensor).sum(0) / 100 for target in targets]
                wanted = torch.stack(boxes)
                predicted = torch.cat([model(torch.nn.functional.interpolate(one[None], (32, 32))) for one in pictures])
                loss = torch.nn.functional.smooth_l1_loss(predicted, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    assert_equal_trainings(train)


@pytest.mark.parametrize("many_epochs", [False, True], ids=["loader", "multi-epochs loader"])
@pytest.mark.parametrize("prefetcher", [False, True], ids=["plain", "prefetcher"])
def test_timms_loop(folder: Path, prefetcher: bool, many_epochs: bool) -> None:
    timm_data = pytest.importorskip("timm.data")

    def train(_: Any) -> Losses:
        loader = timm_data.create_loader(
            timm_data.ImageDataset(str(folder)),
            input_size=(3, 32, 32),
            batch_size=4,
            is_training=True,
            auto_augment="rand-m9-mstd0.5-inc1",
            re_prob=0.25,
            num_workers=2,
            device=torch.device("cpu"),
            use_prefetcher=prefetcher,
            use_multi_epochs_loader=many_epochs,
        )
        model = small_network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        found = []
        for _ in range(2):
            for pixels, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    assert_equal_trainings(train, install=True)


def noisy(index: int) -> dict[str, torch.Tensor]:
    """Return a sample for a classifier, with noise of all three generators."""
    noise = [random.gauss(0, 1), np.random.normal() + float(torch.randn(()))]
    return {"features": torch.tensor([index / 10, 1.0]) + torch.tensor(noise), "labels": torch.tensor(index % 2)}


def masked(samples: Any) -> Any:
    """Collate, and draw a mask, as collators for language models do."""
    batch = torch.utils.data.default_collate(samples)
    batch["features"] = batch["features"] * (torch.rand(batch["features"].shape) > 0.2)
    return batch


LIMITS: list[dict[str, Any]] = [{}, {"limit_train_batches": 3}, {"max_steps": 9}, {"limit_val_batches": 1}]


@each_way
@pytest.mark.parametrize("limits", LIMITS, ids=lambda one: next(iter(one), "whole epochs"))
def test_lightnings_trainer(tmp_path: Path, num_workers: int, persistent: bool, limits: dict[str, Any]) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Classifier()
            self.found: Losses = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = self.inner(**batch)["loss"]
            self.found.append(loss.item())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.found.append(self.inner(**batch)["loss"].item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(loader_class: Any) -> Losses:
        kept = {"num_workers": num_workers, "persistent_workers": persistent}
        loader = loader_class(Made(26, noisy), batch_size=2, shuffle=True, collate_fn=masked, **kept)
        validation = loader_class(Made(10, noisy), batch_size=4, **kept)
        module = Module()
        lightning_trainer(tmp_path, max_epochs=2, **limits).fit(module, loader, validation)
        return module.found

    assert_equal_trainings(train)


STEPS: list[dict[str, Any]] = [{"num_train_epochs": 2}, {"max_steps": 9}]


@each_way
@pytest.mark.parametrize("steps", STEPS, ids=["two epochs", "max_steps"])
def test_transformers_trainer(tmp_path: Path, num_workers: int, persistent: bool, steps: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")

    def train(_: Any) -> Losses:
        options = steps | {"dataloader_num_workers": num_workers, "dataloader_persistent_workers": persistent}
        options |= {"logging_strategy": "steps", "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 4}
        trainer = transformers.Trainer(
            Classifier(),
            training_arguments(tmp_path, save_strategy="no", **options),
            data_collator=masked,
            train_dataset=Made(26, noisy),
            eval_dataset=Made(10, noisy),
        )
        trainer.train()
        logs = trainer.state.log_history
        return [log[name] for log in logs for name in ("loss", "eval_loss", "grad_norm") if name in log]

    assert_equal_trainings(train, install=True)


@each_way
@pytest.mark.parametrize("stop", [None, 4], ids=["whole epochs", "left early"])
def test_a_loop_with_accelerate(num_workers: int, persistent: bool, stop: int | None) -> None:
    pytest.importorskip("accelerate")

    def train(loader_class: Any) -> Losses:
        kept = {"num_workers": num_workers, "persistent_workers": persistent}
        loader = loader_class(Made(26, noisy), batch_size=2, shuffle=True, collate_fn=masked, **kept)
        model: Any = Classifier()
        running = accelerator()
        model, optimizer, loader = running.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        found = []
        for _ in range(3):
            for step, batch in enumerate(loader):
                if step == stop:
                    break
                loss = model(**batch)["loss"]
                running.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
        return found

    assert_equal_trainings(train)
