"""Scripts as users write them, unmodified, under ``fastload profile``: what they print and how they end is theirs.

The scripts are of this project, in the manner of each library's documentation; the libraries are the real ones. Their
data are made up, and small.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import sys
from pathlib import Path

import pytest
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


# -- torchvision -------------------------------------------------------------------------------------------------------


VISION = """
import sys
import torch
from torchvision import transforms
from torchvision.datasets import FakeData

def run(loader, words):
    seen = sum(images.size(0) for images, target in loader)
    print(f"{words} [{len(loader)}] {seen}")

if __name__ == "__main__":
    steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    train = torch.utils.data.DataLoader(
        FakeData(20, (3, 40, 40), 10, steps), batch_size=4, shuffle=True, num_workers=2, pin_memory=True)
    val = torch.utils.data.DataLoader(
        FakeData(8, (3, 40, 40), 10, steps), batch_size=4, shuffle=False, num_workers=2, pin_memory=True)
    for epoch in range(int(sys.argv[1])):
        run(train, f"Epoch {epoch}")
        run(val, "Test")
"""


@pytest.mark.thorough
def test_the_loaders_of_a_script_are_recorded_with_their_workers(tmp_path: Path) -> None:
    run = run_of(tmp_path, VISION, "2")
    assert run.status == 0, run.errors
    assert run.output == "".join(f"Epoch {epoch} [5] 20\nTest [2] 8\n" for epoch in (0, 1))
    rank = run.rank
    assert batches_of(rank) == {"RandomSampler": [5, 5], "SequentialSampler": [2, 2]}
    assert workers_of(rank) == {0, 1}
    assert sum(sample.weight for step in rank.steps for task in step.batch.tasks for sample in task.samples) == 56
    train = next(loader for loader in rank.loaders.values() if loader["sampler"] == "RandomSampler")
    (explained,) = run.analysis.ranks
    assert (explained.workers.number, explained.workers.method) == (2, multiprocessing.get_all_start_methods()[0])
    assert explained.verdict.cause is None  # 14 steps are too few, and it says so
    assert "steady steps were recorded" in explained.verdict.sentence
    assert explained.verdict.sentence.split(";")[0][:20] in run.errors
    assert (train["engine"], train["batch_size"], train["num_workers"], train["pin_memory"]) == ("torch", 4, 2, True)


@pytest.mark.slow
def test_a_script_ends_after_its_steps_with_status_0_and_what_it_had_printed(tmp_path: Path) -> None:
    run = run_of(tmp_path, VISION, "90", options=("--steps", "8", "--warmup", "2"))
    assert run.status == 0, run.errors
    assert run.output == "Epoch 0 [5] 20\nTest [2] 8\n"
    assert len(run.rank.steps) == 10


# -- libraries ---------------------------------------------------------------------------------------------------------

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
@needs("transformers")
def test_the_loaders_of_hugging_faces_trainer_with_accelerate_are_recorded(tmp_path: Path) -> None:
    run = run_of(tmp_path, TRAINER)
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
@pytest.mark.parametrize(
    ("options", "passes"), [(("--full",), [8, 8]), (("--steps", "9", "--warmup", "2"), [8, 3])], ids=["full", "ended"]
)
def test_each_rank_of_torchrun_is_recorded_and_ends_after_the_same_step(tmp_path: Path, options, passes) -> None:
    run = run_of(tmp_path, RANKS, before=TORCHRUN, options=options)
    assert run.status == 0, run.errors
    # Not by lines: the two write at once.
    assert sorted(re.findall(r"rank \d is done", run.output)) == ["rank 0 is done", "rank 1 is done"] * (passes[1] == 8)
    ranks = run.trace.ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert batches_of(rank) == {"DistributedSampler": passes}
        assert workers_of(rank) == {0}
