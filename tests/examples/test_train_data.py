"""The datasets: digits, CIFAR-10 with its fast recipe."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10
from training import checkpoint
from training.data import batch_transform, load_data, load_digits, sample_transform, with_transform
from training.errors import UsageError
from training.options import parse_arguments
from training.recipe import RECIPES
from trainings import Training


def test_digits_are_split_and_normalised_to_minus_1_to_1() -> None:
    data = load_digits()
    assert (data.num_train, data.num_test) == (1437, 360)
    images = torch.stack([data.train[index][0] for index in range(1437)])
    normalised = batch_transform(RECIPES["digits"], 8, 10, train=False)(images)
    torch.testing.assert_close(normalised, images / 8.0 - 1)
    assert with_transform(data.train, str)[0][0].shape == (1, 8, 8)  # a TensorDataset has no transform


@pytest.mark.parametrize("resized", [False, True])
def test_policies_are_done_to_each_image_before_it_is_a_tensor(resized: bool) -> None:
    recipe = replace(RECIPES["folder"], trivial_augment=True)
    for train in (False, True):
        steps = [type(one).__name__ for one in sample_transform(recipe, 8, train=train, resized=resized).transforms]
        assert ("TrivialAugmentWide" in steps) == train
        assert steps[-1] == "PILToTensor"
        assert (len(steps) > 1 + train) == resized


def _write_cifar10(root: Path, per_file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write images in torchvision's format, and make it expect their checksums."""
    folder = root / CIFAR10.base_folder
    folder.mkdir()
    rng = np.random.default_rng(0)

    def written(name: str, content: Any) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def batch(name: str) -> list[str]:
        labels = [number % 10 for number in range(per_file)]
        pixels = rng.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        return [name, written(name, {"data": pixels, "labels": labels})]

    train = [batch(name) for name, _ in CIFAR10.train_list]
    test = [batch(name) for name, _ in CIFAR10.test_list]
    meta = {**CIFAR10.meta, "md5": written("batches.meta", {"label_names": [f"class {n}" for n in range(10)]})}
    args, _ = parse_arguments(RECIPES, ["--dataset", "cifar10", "--data-dir", str(root), "--recipe", "folder"])
    with pytest.raises(UsageError, match=r"cifar-10-batches-py/, got .+ where it is missing or incomplete; add --down"):
        load_data(args, download=False)
    for name, value in {"train_list": train, "test_list": test, "meta": meta}.items():
        monkeypatch.setattr(CIFAR10, name, value)


@pytest.fixture(scope="module")
def cifar10_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Training, Path]]:
    """A run of the small fast recipe with all its techniques, on two ranks and random images, with TensorBoard."""
    folder = tmp_path_factory.mktemp("cifar10")
    words = ["--dataset", "cifar10", "--data-dir", str(folder), "--recipe", "cifar10-proxy", "--epochs", "2"]
    words += ["--batch-size", "40", "--workers", "0", "--out", str(folder / "run"), "--precision", "bf16"]
    words += ["--whitening-bias-epochs", "1", "--lookahead", "3", "--channels-last", "--resident", "host"]
    if importlib.util.find_spec("tensorboard") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own imports; the forked ranks inherit them
            import torch.utils.tensorboard  # noqa: F401
        words += ["--tensorboard", str(folder / "board")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        _write_cifar10(folder, 21, monkeypatch)
        with Training(folder, *words, ranks=2) as training:
            training.finish()
            yield training, folder


def test_the_fast_recipe_trains_on_cifar10_as_torchvision_stores_it(
    cifar10_run: tuple[Training, Path],
) -> None:
    training, folder = cifar10_run
    assert training.lines[0] == "105 images to train on, 21 to test (its own split), 10 classes"
    before, last = training.logged("epoch")
    assert "test_correct_of_views" not in before
    for count in (last["test_correct"], last["test_correct_of_views"]):
        assert isinstance(count, int)
        assert 0 <= count <= last["test_images"] == 21
    assert last["test_accuracy_of_views"] == last["test_correct_of_views"] / 21
    done = next(line for line in training.lines if line.startswith("done in "))
    assert f" with test-time augmentation {last['test_accuracy_of_views']:.2%} " in done
    path = folder / "run" / "checkpoint.pt"
    state = checkpoint.parse(path.read_bytes(), path)
    assert state["step"] == 4  # the last step ends with the slow weights, although it is not a multiple of 3
    slow = state["lookahead"]
    assert {name for name, value in state["model"].items() if value.is_floating_point()} == slow.keys()
    assert all(torch.equal(state["model"][name], value) for name, value in slow.items())
    assert slow["layers.0.bias"].abs().max() > 0  # it was trained in the first epoch


def test_tensorboard_has_the_numbers_of_the_log(cifar10_run: tuple[Training, Path]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training, folder = cifar10_run
    events = EventAccumulator(str(folder / "board"), size_guidance={"scalars": 0}).Reload()
    for name, kind in (("loss", "step"), ("test_accuracy", "epoch"), ("images_per_s", "epoch"), ("seconds", "end")):
        found = [(one.step, one.value) for one in events.Scalars(f"{kind}/{name}")]
        expected = [(one["step"], pytest.approx(one[name], rel=1e-6)) for one in training.logged(kind)]
        assert found == expected, name
    assert len(events.Scalars("step/loss")) == 4
