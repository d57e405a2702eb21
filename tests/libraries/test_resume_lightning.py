"""Lightning's training, stopped in the middle of an epoch and resumed from its checkpoint: the very same samples."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from kit.libraries import lightning_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from ranks import run_ranks
from resumed_loaders import LENGTH, Count, Noisy, global_batches, keyed, shared_out
from torch.utils.data import IterableDataset, RandomSampler, Subset

import fastload

STEPS = 7
"""Of an epoch, in batches of four."""
EPOCHS = 3


class Recorder(lightning.LightningModule):
    """Notes the batches of each epoch that it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[tuple[int, list[Any]]] = []

    def batches(self) -> list[list[Any]]:
        return [batch for _, batch in self.seen]

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        parts = batch if isinstance(batch, list) else [batch]  # of several loaders
        self.seen.append((self.current_epoch, [part.tolist() for part in parts]))
        return self.layer(parts[0][:, :1].float()).mean()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        assert len(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


KNOWN = pytest.mark.parametrize("make", [keyed, shared_out, global_batches])


def trainer(folder: Path, *callbacks: Any, **options: Any) -> lightning.Trainer:
    return lightning_trainer(folder, *callbacks, **{"max_epochs": EPOCHS} | options)


def rest(folder: Path, loaders: Any, step: str, **options: Any) -> list[tuple[int, list[Any]]]:
    """Train by epochs from a checkpoint; return what was seen."""
    module = Recorder()
    trainer(folder, **options).fit(module, *loaders, ckpt_path=folder / f"{step}.ckpt")
    return module.seen


def expected(make: Callable[..., Any]) -> list[tuple[int, list[Any]]]:
    loader = make()
    return [(epoch, [batch.tolist()]) for epoch in range(EPOCHS) for batch in loader]


def checkpoints(folder: Path, every: int) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1)


@KNOWN
@pytest.mark.parametrize("step", [3, 7])
def test_a_training_stopped_by_steps_goes_on_with_the_very_next_sample(make: Any, step: int, tmp_path: Path) -> None:
    whole = [batch for _, batch in expected(make)]
    first = Recorder()
    training = trainer(tmp_path, max_steps=step, max_epochs=-1)
    training.fit(first, make())
    assert first.batches() == whole[:step]
    training.save_checkpoint(tmp_path / "stopped.ckpt")
    second = Recorder()
    trainer(tmp_path, max_steps=20, max_epochs=-1).fit(second, make(2), ckpt_path=tmp_path / "stopped.ckpt")
    assert second.batches() == whole[step:20]


class Sized(Count):
    def __len__(self) -> int:
        return LENGTH


class Bare(IterableDataset[torch.Tensor]):
    """A stream that does not say where it is."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(number)]) for number in range(LENGTH))


def stream(dataset: Any) -> Any:
    return fastload.DataLoader(dataset, 4, seed=1)


def fast_forwarded() -> Any:
    sampler = RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(3))
    return fastload.DataLoader(Noisy(), 4, sampler=sampler, seed=6)


def with_a_shorter_one(batch_size: int) -> Any:
    short = fastload.DataLoader(Noisy(), batch_size, shuffle=True, seed=5)
    return CombinedLoader([stream(Bare()), short], "max_size_cycle")


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...], dict[str, Any]]] = {
    "keyed": (lambda: [keyed()], (1, 6, 7, 8, 14, 20), {}),
    "workers that persist": (lambda: [keyed(1, persistent_workers=True)], (1, 7, 8), {}),
    "a sampler of ours": (lambda: [shared_out()], (1, 6, 7, 8, 14, 20), {}),
    "global batches": (lambda: [global_batches()], (1, 6, 7, 8, 14, 20), {}),
    "validations in the epoch": (lambda: [keyed(), stream(Noisy())], (4, 8, 12), {"val_check_interval": 3}),
    "epochs cut short": (lambda: [keyed()], (5,), {"limit_train_batches": 5}),
    # Without a length Lightning asks for one batch more than it trains on.
    "a sized stream": (lambda: [stream(Sized())], (1, 2, 7, 9), {}),
    "a stream": (lambda: [stream(Count())], (1, 2, 7, 9), {}),
    "a bare stream": (lambda: [stream(Bare())], (1, 2, 7, 9), {}),
    "a sampler that is not ours": (lambda: [fast_forwarded()], (2, 9), {}),
    # Within the second pass of a shorter loader Lightning does not know, after a resume, that the first one is over.
    "a shorter loader beside a stream": (lambda: [with_a_shorter_one(9)], (2, 3, 5, 7, 9), {}),
    # It has begun, beside the stream's last batch, what the next epoch begins with.
    "one of the same length beside it": (lambda: [with_a_shorter_one(4)], (2, 3, 5, 7, 9), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_checkpoint_of_a_training_goes_on_where_it_was_written(name: str, tmp_path: Path) -> None:
    make, steps, options = CASES[name]
    first, loaders = Recorder(), make()
    trainer(tmp_path, checkpoints(tmp_path, 1), **options).fit(first, *loaders)
    if name == "workers that persist":
        loaders[0].close()
    assert len(first.seen) == EPOCHS * options.get("limit_train_batches", STEPS)
    for step in steps:
        assert rest(tmp_path, make(), f"step={step}", **options) == first.seen[step:], step


def test_the_checkpoint_of_an_epochs_end_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    whole = expected(keyed)
    callback = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    trainer(tmp_path, callback).fit(Recorder(), keyed())
    for epoch in range(EPOCHS - 1):
        assert rest(tmp_path, [keyed()], f"epoch={epoch}") == whole[(epoch + 1) * STEPS :], epoch


# --- Loaders without a seed -----------------------------------------------------------------------------------------


class Script(Recorder):
    """A training that is stopped after some steps; its checkpoint says how many samples were seen."""

    def __init__(self, loader_class: Any, stop: int | None) -> None:
        super().__init__()
        self.loader_class, self.stop, self.place = loader_class, stop, 0

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch.tolist()))
        return self.layer(torch.ones(1, 1)).mean()

    def train_dataloader(self) -> Any:
        return self.loader_class(range(LENGTH), 4, shuffle=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["place"] = 4 * len(self.seen)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.place = checkpoint["place"]

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.seen) == self.stop:
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir, "stopped.ckpt"))
            self.trainer.should_stop = True


class Rest(Script):
    """It loads the samples that are left."""

    def train_dataloader(self) -> Any:
        return self.loader_class(Subset(range(LENGTH), range(self.place, LENGTH)), 4)


class Skipped(Script):
    """Its stream begins where the last one was."""

    def train_dataloader(self) -> Any:
        class Rest(IterableDataset[int]):
            def __iter__(rest) -> Iterator[int]:
                return iter(range(self.place, LENGTH))

        return self.loader_class(Rest(), 4)


def resumed(script: Any, saved_by: Any, loader_class: Any, folder: Path, **options: Any) -> tuple[Any, list[str]]:
    """Stop a script and go on; return what it saw then, and the warnings about its place."""
    torch.manual_seed(0)
    trainer(folder, **options).fit(script(saved_by, 3))
    second = script(loader_class, None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer(folder, **options).fit(second, ckpt_path=folder / "stopped.ckpt")
    return second.seen, [
        text for text in map(str, (one.message for one in warned)) if "resum" in text or "anew" in text
    ]


@pytest.mark.parametrize("script", [Script, Rest, Skipped])
def test_without_a_seed_a_script_resumes_as_with_torchs_class(script: Any, tmp_path: Path) -> None:
    torchs = torch.utils.data.DataLoader
    expected = resumed(script, torchs, torchs, tmp_path)
    ours = fastload.DataLoader
    assert resumed(script, ours, ours, tmp_path) == expected
    assert resumed(script, torchs, ours, tmp_path) == expected
    assert resumed(script, ours, torchs, tmp_path) == expected
    fastload.install()
    assert resumed(script, torchs, torchs, tmp_path) == expected


def seeded(*data: Any, **options: Any) -> Callable[..., Any]:
    return lambda *_, **__: fastload.DataLoader(*data or (range(LENGTH), 4), **{"seed": 1} | options)


@pytest.mark.parametrize(
    ("saved_by", "loader_class", "difference"),
    [
        (seeded(range(LENGTH - 4), 4), seeded(), "the number of samples was 22 when it was saved and is 26 now"),
        (torch.utils.data.DataLoader, seeded(), "a loader that has no state (torch's, or one without a seed)"),
        (seeded(Count(), 4, num_workers=1), seeded(Count(), 4), "num_workers was 1 when it was saved and is 0 now"),
    ],
)
def test_a_state_that_does_not_fit_is_one_warning_and_the_epoch_begins_anew(
    saved_by: Any, loader_class: Any, difference: str, tmp_path: Path
) -> None:
    seen, warned = resumed(Script, saved_by, loader_class, tmp_path)
    assert len(warned) == 1
    assert f"begins anew: {'' if 'that has' in difference else 'the state'}" in warned[0]
    assert difference in warned[0]
    assert "set load_state_dict = None on the loader or its class" in warned[0]
    assert seen[0] == (0, next(iter(loader_class())).tolist())
    assert seen[-1][0] == EPOCHS - 1


def test_a_loader_can_be_kept_from_being_restored(tmp_path: Path) -> None:
    class Unrestored(fastload.DataLoader[Any]):
        load_state_dict = None  # type: ignore[assignment]

    def one(*_: Any, **__: Any) -> Any:
        loader = seeded()()
        loader.load_state_dict = None
        return loader

    for loader_class in (one, lambda *_, **__: Unrestored(range(LENGTH), 4, seed=1)):
        seen, warned = resumed(Script, seeded(), loader_class, tmp_path)
        assert seen[0] == (0, [0, 1, 2, 3])
        assert not any("anew" in text for text in warned)


# --- Two processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What :func:`trained_in_all_ways` returned in each of two processes, which Lightning takes for its own.

    They are forked from a new interpreter: a test that compiles, or uses fake tensors, makes torch believe in a CUDA
    device, so that the next backward pass starts autograd's threads, and a child of such a process cannot train.
    """
    folder = tmp_path_factory.mktemp("two_ranks")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = torch.load(folder / "answers.pt", weights_only=True)
    return answers


def main(folder: Path) -> None:
    """Be the new interpreter."""

    def rank(number: int) -> Any:
        os.environ |= {"LOCAL_RANK": str(number), "NODE_RANK": "0", "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group is there already
        return trained_in_all_ways(folder)

    torch.save(run_ranks(rank, folder), folder / "answers.pt")


def ddp(folder: Path, *callbacks: Any) -> lightning.Trainer:
    return trainer(folder, *callbacks, strategy="ddp", devices=2)


def trained_in_all_ways(folder: Path) -> dict[str, Any]:
    return {name: with_our_sampler(folder / name, name) for name in ("DistributedSampler", "DistributedBatchSampler")}


def with_our_sampler(folder: Path, name: str) -> Any:
    kind = getattr(fastload, name)
    batches = kind is fastload.DistributedBatchSampler

    def make(**options: Any) -> Any:
        if batches:
            return fastload.DataLoader(Noisy(), batch_sampler=kind(Noisy(), 4, seed=5, tail="pad"), **options)
        return fastload.DataLoader(Noisy(), 2, sampler=kind(Noisy(), seed=5), **options)

    first, loader = Recorder(), make()
    training = ddp(folder, checkpoints(folder, 1))
    training.fit(first, loader)
    assert training.world_size == 2
    assert training.train_dataloader is loader
    assert type(loader.batch_sampler if batches else loader.sampler) is kind
    resumed = {}
    for step in (3, STEPS, 9):
        second = Recorder()
        ddp(folder).fit(second, make(num_workers=1), ckpt_path=folder / f"step={step}.ckpt")
        resumed[step] = second.seen
    return first.seen, resumed


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DistributedSampler", "DistributedBatchSampler"])
def test_two_processes_keep_our_samplers_and_go_on(name: str, two_ranks: list[dict[str, Any]]) -> None:
    ranks = [rank[name] for rank in two_ranks]
    for first, resumed in ranks:
        assert len(first) == EPOCHS * STEPS
        assert len(resumed) == 3
        for step, seen in resumed.items():
            assert seen == first[step:], step
    seen = [row[0] for first, _ in ranks for epoch, (batch,) in first if epoch == 1 for row in batch]
    assert set(seen) == set(range(LENGTH))
    assert len(seen) == (STEPS * 4 if name == "DistributedBatchSampler" else LENGTH)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
