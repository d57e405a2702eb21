"""The advice at the end of ``fastload explain``: what it measures, and what it leaves alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from torchvision import datasets, transforms

import fastload
from fastload import cli
from fastload.explain import tables
from fastload.explain.advice import SAMPLES, advice_for
from fastload.tune.runner import Runner
from fastload.tune.settings import Setting


class Counting(Dataset[Any]):
    def __init__(self, length: int = 500) -> None:
        self.length, self.made = length, 0

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        return torch.tensor(index)

    def __len__(self) -> int:
        return self.length


def test_cheap_samples_that_draw_nothing_are_advised_to_do_without_seeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples are made; only the times are given, since the advice turns on microseconds."""
    measure = Runner.processor_time

    def timed(runner: Runner, setting: Setting, number: int) -> tuple[float, int, str]:
        cpu_s, made, differs = measure(runner, setting, number)
        assert 0 < cpu_s < 0.01
        return (1e-6 if setting.seeding == "torch" else 2e-6), made, differs

    monkeypatch.setattr(Runner, "processor_time", timed)
    said = [*advice_for(fastload.DataLoader(Counting(), batch_size=256, num_workers=2))]
    assert said[:-1] == [
        f"now: 0.002 ms of processor time per sample (measured on {SAMPLES}, without workers)",
        "seeding='torch': 2.0 times as fast; the same batches",
    ]


def test_where_a_sample_is_work_seeding_is_not_worth_a_word() -> None:
    class Busy(Counting):
        def __getitem__(self, index: int) -> Any:
            end = time.process_time() + 0.002
            while time.process_time() < end:
                pass
            return index

    now, nothing, _ = advice_for(fastload.DataLoader(Busy(), batch_size=16))
    assert nothing == "other values of fuse and seeding gain less than 10 %"
    assert float(now.split()[1]) == pytest.approx(2.0, rel=0.5)


def test_fusion_of_torchvisions_transforms_is_measured() -> None:
    steps = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    data = datasets.FakeData(2, (3, 32, 32))
    images = torch.stack([transforms.functional.pil_to_tensor(data[0][0])] * 256)
    cifar = datasets.CIFAR10.__new__(datasets.CIFAR10)
    cifar.data, cifar.targets, cifar.train = images.permute(0, 2, 3, 1).numpy(), [0] * 256, True
    cifar.transform, cifar.target_transform = transforms.Compose(steps), None
    said = [*advice_for(fastload.DataLoader(cifar, batch_size=32))]
    (fused,) = [line for line in said if line.startswith("fuse=True: ")]
    assert float(fused.split()[1]) > 1.5
    assert "other batches under the same seed (the values differ" in fused


def test_the_loader_and_its_dataset_stay_as_they_are() -> None:
    loader = fastload.DataLoader(data := Counting(), batch_size=16, shuffle=True)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert list(advice_for(loader))
    assert data.made == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert loader.statistics().batches == 0


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(1000))


@pytest.mark.parametrize("arguments", [{"batch_size": 8}, {"batch_size": None}])
def test_streams_get_advice_too(arguments: dict[str, Any]) -> None:
    assert next(advice_for(fastload.DataLoader(Stream(), **arguments))).startswith("now: ")


def test_a_dataset_smaller_than_a_round_is_measured_as_far_as_it_goes() -> None:
    assert "(measured on 16, without workers)" in next(advice_for(fastload.DataLoader(Counting(20), batch_size=4)))


@pytest.mark.parametrize("failure", [OSError("no such file"), SystemExit("no such file")])
def test_what_cannot_be_loaded_is_told_below_the_tables(
    failure: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Counting):
        def __getitem__(self, index: int) -> Any:
            raise failure

    tables.print_tables(fastload.DataLoader(Failing()), advice=True)
    said = capsys.readouterr().out
    assert "Failing, 500 samples" in said
    assert f"none, because loading a sample fails: {type(failure).__name__}: no such file" in said


@pytest.mark.parametrize(("option", "advice"), [([], True), (["--no-samples"], False)])
def test_explain_makes_samples_unless_it_is_told_not_to(
    option: list[str], advice: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"explained_{'with' if advice else 'without'}"
    text = (
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader(torch.arange(100), batch_size=8)\n"
    )
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["explain", *option, f"{name}.py:loader"]) == 0
    said = capsys.readouterr().out
    assert (f"(measured on {SAMPLES}, without workers)" in said) == advice
    assert "Tensor, 100 samples, batches of 8" in said
