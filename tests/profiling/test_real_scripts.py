"""Scripts as users write them, unmodified, under ``fastload profile``: what they print and how they end is theirs.

The scripts are of this project, in the manner of PyTorch's own examples and of each library's documentation; the
libraries are the real ones. The data are made up, and small.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from profiled import Profiled, profile

from fastload.profiling.trace import Rank

pytestmark = pytest.mark.timeout(300)


def run_of(
    folder: Path, text: str, *words: str, options: tuple[str, ...] = ("--full",), before: tuple[str, ...] = ()
) -> Profiled:
    """Return what came of a script; ``before``: words in front of it."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return profile(folder, *before, "train.py", *words, options=options, env=os.environ | environment)


def needs(library: str) -> pytest.MarkDecorator:
    """Skip a test where a library is not installed, without importing it."""
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def batches_of(rank: Rank) -> dict[str, list[int]]:
    """Return the steps of each loader: by the name of its sampler, as many as each pass had."""
    found: dict[str, dict[int, int]] = {}
    for step in rank.steps:
        passes = found.setdefault(rank.loaders[step.loader]["sampler"], {})
        passes[step.iterator] = passes.get(step.iterator, 0) + 1
    return {sampler: list(passes.values()) for sampler, passes in found.items()}


def workers_of(rank: Rank) -> set[int]:
    """Return the workers that made what was delivered; -1 stands for the main process."""
    return {task.worker for step in rank.steps for task in step.batch.tasks}


def num_samples(rank: Rank) -> int:
    """Return how many samples were asked of datasets for what was delivered, not all of them measured."""
    return sum(sample.weight for step in rank.steps for task in step.batch.tasks for sample in task.samples)


# -- PyTorch's examples ------------------------------------------------------------------------------------------------


IMAGENET = """
import argparse
import torch
import torch.nn as nn
import torchvision.datasets as datasets
import torchvision.transforms as transforms


class AverageMeter:
    def __init__(self):
        self.count = 0

    def update(self, n):
        self.count += n


def train(train_loader, model, criterion, optimizer, epoch):
    seen = AverageMeter()
    model.train()
    for i, (images, target) in enumerate(train_loader):
        output = model(images.to("cpu", non_blocking=True))
        loss = criterion(output, target.to("cpu", non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(images.size(0))
    print(f"Epoch: [{epoch}][{i + 1}/{len(train_loader)}] {seen.count}")


def validate(val_loader, model, criterion):
    seen = AverageMeter()
    model.eval()
    with torch.no_grad():
        for i, (images, target) in enumerate(val_loader):
            criterion(model(images), target)
            seen.update(images.size(0))
    print(f"Test: [{i + 1}/{len(val_loader)}] {seen.count}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-j", "--workers", default=4, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-b", "--batch-size", default=256, type=int)
    args = parser.parse_args()
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = datasets.ImageFolder(
        f"{args.data}/train",
        transforms.Compose([
            transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize,
        ]))
    val_dataset = datasets.ImageFolder(
        f"{args.data}/val",
        transforms.Compose([transforms.Resize(36), transforms.CenterCrop(32), transforms.ToTensor(), normalize]))
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True)
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers, pin_memory=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.Flatten(), nn.Linear(256, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch)
        validate(val_loader, model, criterion)


if __name__ == "__main__":
    main()
"""


def write_photographs(folder: Path) -> None:
    """Write two classes: 20 photographs of 60 by 48 pixels to train with, 8 to validate."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 8)):
        for number in range(count):
            path = folder / "photographs" / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (48, 60, 3), dtype=np.uint8)).save(path)


@pytest.mark.thorough
def test_the_imagenet_examples_loaders_are_recorded_with_their_workers(tmp_path: Path) -> None:
    write_photographs(tmp_path)
    run = run_of(tmp_path, IMAGENET, "photographs", "-j", "2", "-b", "4", "--epochs", "2")
    assert run.status == 0, run.errors
    assert run.output == "".join(f"Epoch: [{epoch}][5/5] 20\nTest: [2/2] 8\n" for epoch in (0, 1))
    rank = run.rank
    assert batches_of(rank) == {"RandomSampler": [5, 5], "SequentialSampler": [2, 2]}
    assert workers_of(rank) == {0, 1}
    assert num_samples(rank) == 2 * (20 + 8)
    train = next(loader for loader in rank.loaders.values() if loader["sampler"] == "RandomSampler")
    (explained,) = run.analysis.ranks
    assert (explained.workers.number, explained.workers.method) == (2, multiprocessing.get_all_start_methods()[0])
    assert explained.verdict.cause is None  # 14 steps are too few, and it says so
    assert "steady steps were recorded" in explained.verdict.sentence
    assert explained.verdict.sentence.split(";")[0][:20] in run.errors
    assert (train["engine"], train["batch_size"], train["num_workers"], train["pin_memory"]) == ("torch", 4, 2, True)


@pytest.mark.slow
def test_a_script_ends_after_its_steps_with_status_0_and_what_it_had_printed(tmp_path: Path) -> None:
    write_photographs(tmp_path)
    run = run_of(
        tmp_path,
        IMAGENET,
        *("photographs", "-j", "2", "-b", "4", "--epochs", "90"),
        options=("--steps", "8", "--warmup", "2"),
    )
    assert run.status == 0, run.errors
    assert run.output == "Epoch: [0][5/5] 20\nTest: [2/2] 8\n"
    assert (len(run.rank.steps), run.rank.ceiling_ns) == (10, None)


# -- libraries ---------------------------------------------------------------------------------------------------------

TIMM = """
import torch
from timm.data import create_loader
from torchvision.datasets import FakeData

if __name__ == "__main__":
    for prefetches in (True, False):
        loader = create_loader(
            FakeData(20, (3, 40, 40), 10), input_size=(3, 32, 32), batch_size=4, is_training=True, num_workers=2,
            device=torch.device("cpu"), persistent_workers=False, use_prefetcher=prefetches,
        )
        print([len([0 for images, labels in loader if images.shape == (4, 3, 32, 32)]) for epoch in range(2)])
"""


@pytest.mark.thorough
@needs("timm")
def test_timms_loaders_with_its_prefetcher_and_without_are_recorded(tmp_path: Path) -> None:
    run = run_of(tmp_path, TIMM)
    assert (run.status, run.output) == (0, "[5, 5]\n[5, 5]\n"), run.errors
    rank = run.rank
    assert len(rank.loaders) == 2
    assert batches_of(rank) == {"RandomSampler": [5, 5, 5, 5]}
    assert workers_of(rank) == {0, 1}
    assert num_samples(rank) == 80


LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def training_step(self, batch, number):
        features, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(features), labels)

    def validation_step(self, batch, number):
        self.training_step(batch, number)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    rows = TensorDataset(torch.randn(24, 2), torch.arange(24) % 2)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(
        Classifier(), DataLoader(rows, batch_size=4, shuffle=True, num_workers=2), DataLoader(rows, batch_size=8)
    )
    print(f"{trainer.global_step} steps")
"""


@pytest.mark.slow
@needs("lightning")
def test_lightnings_trainer_is_recorded_sanity_check_included(tmp_path: Path) -> None:
    run = run_of(tmp_path, LIGHTNING)
    assert (run.status, run.output) == (0, "12 steps\n"), run.errors
    assert batches_of(run.rank) == {"SequentialSampler": [2, 3, 3], "RandomSampler": [6, 6]}
    assert workers_of(run.rank) == {-1, 0, 1}  # the validation has no workers


@pytest.mark.thorough
@needs("lightning")
def test_lightnings_trainer_is_ended_after_the_steps_that_were_wanted(tmp_path: Path) -> None:
    run = run_of(tmp_path, LIGHTNING, options=("--steps", "6", "--warmup", "1"))
    assert (run.status, run.output) == (0, ""), run.errors
    assert len(run.rank.steps) == 7


ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    rows = TensorDataset(torch.randn(24, 2), torch.arange(24) % 2)
    model = torch.nn.Linear(2, 2)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(rows, 4, shuffle=True, num_workers=2)
    )
    for epoch in range(2):
        for number, (features, labels) in enumerate(loader):
            accelerator.backward(torch.nn.functional.cross_entropy(model(features), labels))
            optimizer.step()
            optimizer.zero_grad()
    print(f"after {2 * number + 2} steps")
"""

TRAINER = """
import torch
import transformers

class Classifier(torch.nn.Linear):
    def forward(self, features, labels):
        logits = super().forward(features)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

if __name__ == "__main__":
    arguments = transformers.TrainingArguments(
        output_dir="trained", use_cpu=True, num_train_epochs=2, per_device_train_batch_size=4,
        dataloader_num_workers=2, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )
    rows = [{"features": torch.ones(2), "labels": torch.tensor(index % 2)} for index in range(24)]
    done = transformers.Trainer(Classifier(2, 2), arguments, train_dataset=rows).train()
    print(f"after {done.global_step} steps")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [pytest.param(ACCELERATE, marks=needs("accelerate")), pytest.param(TRAINER, marks=needs("transformers"))],
    ids=["accelerate", "transformers"],
)
def test_the_loaders_of_hugging_faces_libraries_are_recorded(tmp_path: Path, text: str) -> None:
    run = run_of(tmp_path, text)
    assert run.status == 0, run.errors
    assert run.output.splitlines()[-1] == "after 12 steps"
    assert list(batches_of(run.rank).values()) == [[6, 6]]
    assert workers_of(run.rank) == {0, 1}


# -- ranks -------------------------------------------------------------------------------------------------------------

RANKS = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rows = TensorDataset(torch.randn(64, 2), torch.arange(64) % 2)
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=4, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()
"""

TORCHRUN = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.thorough
def test_each_rank_of_torchrun_is_recorded(tmp_path: Path) -> None:
    run = run_of(tmp_path, RANKS, before=TORCHRUN)
    assert run.status == 0, run.errors
    # Not by lines: the two write at once.
    assert sorted(re.findall(r"rank \d is done", run.output)) == ["rank 0 is done", "rank 1 is done"]
    ranks = run.trace.ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert batches_of(rank) == {"DistributedSampler": [8, 8]}
        assert workers_of(rank) == {0}


@pytest.mark.thorough
def test_all_ranks_end_after_the_same_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, RANKS, before=TORCHRUN, options=("--steps", "9", "--warmup", "2"))
    assert (run.status, run.output) == (0, ""), run.errors
    assert [(rank.rank, len(rank.steps)) for rank in run.trace.ranks] == [(0, 11), (1, 11)]
