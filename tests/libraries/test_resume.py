"""Trainings of Lightning, Accelerate and transformers that are resumed in the middle of an epoch: the same samples."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import lightning
import pytest
import torch
import transformers
from kit.libraries import accelerator, lightning_trainer, training_arguments
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from ranks import run_ranks
from resumed_loaders import LENGTH, Count, Noisy, global_batches, in_order, keyed, shared_out
from torch.utils.data import IterableDataset, RandomSampler

import fastload

STEPS = 7
"""Of an epoch, in batches of four."""
EPOCHS = 3
KNOWN = pytest.mark.parametrize("make", [keyed, in_order, shared_out, global_batches])


def rows(batches: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in batches]


def uninterrupted(make: Callable[..., Any], epochs: int = EPOCHS) -> list[list[list[Any]]]:
    loader = make()
    return [rows(loader) for _ in range(epochs)]


# --- Lightning -------------------------------------------------------------------------------------------------------


class Recorder(lightning.LightningModule):
    """Notes the batches of each epoch that it is trained with."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.loader = loader
        self.seen: list[tuple[int, list[Any]]] = []

    def train_dataloader(self) -> Any:
        return self.loader

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        parts = batch if isinstance(batch, list) else [batch]  # of several loaders
        self.seen.append((self.current_epoch, [part.tolist() for part in parts]))
        return self.layer(torch.ones(1, 1)).mean()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        assert len(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def trained(folder: Path, loaders: Any, checkpoint: str | None = None, **options: Any) -> list[tuple[int, list[Any]]]:
    """Train, from a checkpoint or from the beginning with one after each step; return what was seen."""
    module, path = Recorder(), None if checkpoint is None else folder / f"{checkpoint}.ckpt"
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    saving_epochs = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    training = lightning_trainer(folder, *[saving, saving_epochs] * (path is None), max_epochs=EPOCHS, **options)
    training.fit(module, *loaders, ckpt_path=path)
    return module.seen


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
    "a sampler of ours": (lambda: [shared_out()], (6, 7, 8), {}),
    "global batches": (lambda: [global_batches()], (6, 7, 8), {}),
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
def test_every_checkpoint_of_lightnings_training_goes_on_where_it_was_written(name: str, tmp_path: Path) -> None:
    make, steps, options = CASES[name]
    loaders = make()
    whole = trained(tmp_path, loaders, **options)
    for loader in loaders:
        if isinstance(loader, fastload.DataLoader):
            loader.close()
    assert len(whole) == EPOCHS * options.get("limit_train_batches", STEPS)
    for step in steps:
        assert trained(tmp_path, make(), f"step={step}", **options) == whole[step:], step
    if name == "keyed":
        assert trained(tmp_path, make(), "epoch=0") == whole[STEPS:]


class Stopped(Recorder):
    """Ends behind a checkpoint in its first epoch."""

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.seen) == 3:
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir, "stopped.ckpt"))
            self.trainer.should_stop = True


def resumed(saved_by: Any, loader: Any, folder: Path) -> tuple[Any, list[str]]:
    """Stop a training and go on with another loader; return what it saw then, and the warnings about its place."""
    lightning_trainer(folder, max_epochs=EPOCHS).fit(Stopped(saved_by))
    second = Recorder(loader)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        lightning_trainer(folder, max_epochs=EPOCHS).fit(second, ckpt_path=folder / "stopped.ckpt")
    texts = [str(one.message) for one in warned]
    return second.seen, [text for text in texts if "resum" in text or "anew" in text]


def without_a_seed(kind: Any) -> Any:
    return kind(range(LENGTH), 4, shuffle=True)


def test_without_a_seed_lightning_resumes_as_with_torchs_class(tmp_path: Path) -> None:
    def found(saved_by: Any, kind: Any) -> Any:
        torch.manual_seed(0)
        return resumed(without_a_seed(saved_by), without_a_seed(kind), tmp_path)

    torchs, ours = torch.utils.data.DataLoader, fastload.DataLoader
    expected = found(torchs, torchs)
    assert found(ours, ours) == found(torchs, ours) == found(ours, torchs) == expected
    fastload.install()
    assert found(torchs, torchs) == expected


def seeded(dataset: Any = range(LENGTH), **options: Any) -> Any:
    return fastload.DataLoader(dataset, 4, **{"seed": 1} | options)


@pytest.mark.parametrize(
    ("saved_by", "make", "difference"),
    [
        (lambda: seeded(range(LENGTH - 4)), seeded, "number of samples was 22 when it was saved and is 26 now"),
        (lambda: without_a_seed(torch.utils.data.DataLoader), seeded, "a loader that has no state (torch's, or"),
        (lambda: seeded(Count(), num_workers=1), lambda: seeded(Count()), "num_workers was 1 when it was saved and is"),
    ],
)
def test_a_state_that_does_not_fit_is_one_warning_of_lightnings_loader_and_the_epoch_begins_anew(
    saved_by: Any, make: Any, difference: str, tmp_path: Path
) -> None:
    seen, (warned,) = resumed(saved_by(), make(), tmp_path)
    assert "begins anew: " in warned
    assert difference in warned
    assert "set load_state_dict = None on the loader or its class" in warned
    assert seen[0] == (0, [next(iter(make())).tolist()])
    assert seen[-1][0] == EPOCHS - 1


def test_a_loader_can_be_kept_from_being_restored(tmp_path: Path) -> None:
    loader = seeded()
    loader.load_state_dict = None
    seen, warned = resumed(seeded(), loader, tmp_path)
    assert seen[0] == (0, [[0, 1, 2, 3]])
    assert not any("anew" in text for text in warned)


# --- Accelerate ------------------------------------------------------------------------------------------------------


def stopped(prepared: Any, epoch: int, step: int) -> Any:
    """Iterate until a step of an epoch is over and return the prepared loader's state."""
    for _ in range(epoch):
        rows(prepared)
    for number, _ in enumerate(prepared, start=1):
        if number == step:
            return prepared.state_dict()
    raise AssertionError("the epoch has fewer steps")


@KNOWN
@pytest.mark.parametrize(("step", "num_workers"), [(1, 2), (4, 0), (STEPS, 2)])
def test_a_prepared_loader_goes_on_from_its_state(make: Any, step: int, num_workers: int) -> None:
    """The state that was loaded is its state until the next step: it may be killed before that."""
    expected = uninterrupted(make, 4)
    running = accelerator()
    state = json.loads(json.dumps(stopped(running.prepare(make(num_workers)), 1, step)))
    loaded = running.prepare(make())
    loaded.load_state_dict(state)
    resumed = running.prepare(make(2 - num_workers))
    resumed.load_state_dict(loaded.state_dict())
    if step < STEPS:  # the state of the last step is that of the next epoch's beginning
        assert rows(resumed) == expected[1][step:]
    assert [rows(resumed), rows(resumed)] == expected[2:]


def test_a_state_that_does_not_fit_is_a_warning_of_a_prepared_loader_and_the_epoch_begins_anew() -> None:
    running = accelerator()
    state = stopped(running.prepare(keyed()), 1, 4)
    resumed = running.prepare(fastload.DataLoader(Noisy(), 8, shuffle=True, seed=5))
    with pytest.warns(UserWarning, match=r"begins anew: .*batch size was 4 .* is 8 now.* do not register"):
        resumed.load_state_dict(state)
    expected = [list(itertools.chain(*batches)) for batches in uninterrupted(keyed)]
    assert [list(itertools.chain(*rows(resumed))) for _ in range(2)] == expected[1:]


def test_a_prepared_loader_makes_its_state_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, asked = accelerator().prepare(fastload.DataLoader(Count(), 4)), []
    made = fastload.DataLoader.state_dict
    monkeypatch.setattr(fastload.DataLoader, "state_dict", lambda loader: asked.append(1) or made(loader))
    rows(prepared)
    assert not asked
    prepared.state_dict()
    assert asked


@KNOWN
@pytest.mark.parametrize("skipped", [1, STEPS])
def test_skipped_batches_leave_the_others_what_they_are(make: Any, skipped: int) -> None:
    expected = uninterrupted(make)
    running = accelerator()
    prepared = running.prepare(make())
    assert rows(prepared) == expected[0]
    assert rows(running.skip_first_batches(prepared, skipped)) == expected[1][skipped:]
    assert rows(accelerate.skip_first_batches(make(), skipped)) == expected[0][skipped:]  # one that is not prepared
    prepared.set_epoch(2)
    assert rows(prepared) == expected[2]


@pytest.mark.parametrize(("dispatch", "num_workers"), [(False, 1), (True, 0), (True, 1)])
def test_a_prepared_stream_goes_on_from_its_state(dispatch: bool, num_workers: int) -> None:
    def make() -> Any:
        return running.prepare(fastload.DataLoader(Count(), 4, num_workers=num_workers))

    running = accelerator(dispatch_batches=dispatch)
    expected = rows(make())
    state = stopped(make(), 0, 3)
    resumed = make()
    resumed.load_state_dict(state)
    assert rows(resumed) == expected[3:]


def in_two(body: Callable[[accelerate.Accelerator], Any], folder: Path) -> list[Any]:
    """Call ``body`` with an accelerator in each of two processes."""

    def rank(number: int) -> Any:
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group is there already
        running = accelerator()
        assert (running.num_processes, running.process_index) == (2, number)
        return body(running)

    return run_ranks(rank, folder)


def of_two(num_workers: int = 0) -> Any:
    sampler = fastload.DistributedSampler(Noisy(), seed=5)
    return fastload.DataLoader(Noisy(), 2, sampler=sampler, num_workers=num_workers)


def test_two_ranks_with_our_sampler_share_out_once_skip_and_go_on_from_checkpoints(tmp_path: Path) -> None:
    def body(running: accelerate.Accelerator) -> Any:
        prepared = running.prepare(of_two(num_workers=1))
        assert type(prepared.base_dataloader.batch_sampler) is torch.utils.data.BatchSampler
        whole = [rows(prepared) for _ in range(EPOCHS)]
        skipping = running.prepare(of_two())
        rows(skipping)
        skipped = rows(running.skip_first_batches(skipping, 3))
        saving = running.prepare(of_two())
        running.register_for_checkpointing(saving)
        stopped(saving, 1, 3)
        running.save_state(str(tmp_path / "checkpoint"))
        running.wait_for_everyone()  # the first process writes
        running._custom_objects.clear()
        resumed = running.prepare(of_two(num_workers=1))
        running.register_for_checkpointing(resumed)
        running.load_state(str(tmp_path / "checkpoint"))
        return [*whole, skipped, *(rows(resumed) for _ in range(2))]

    ranks = in_two(body, tmp_path)
    # Positions interleave: the rows of a rank are every other one.
    epochs = [[list(itertools.chain(*batches)) for batches in rank] for rank in ranks]
    given = [list(itertools.chain(*zip(one, other, strict=True))) for one, other in zip(*epochs, strict=True)]
    expected = [list(itertools.chain(*batches)) for batches in uninterrupted(shared_out)]
    assert given == [*expected, expected[1][12:], expected[1][12:], expected[2]]


def test_global_batches_are_refused_with_the_remedy(tmp_path: Path) -> None:
    def body(running: accelerate.Accelerator) -> str:
        loader = fastload.DataLoader(Noisy(), batch_sampler=fastload.DistributedBatchSampler(Noisy(), 4))
        with pytest.raises(fastload.ConfigError) as refused:
            running.prepare(loader)
        assert sum(len(batch) for batch in loader) == LENGTH // 4 * 2
        return str(refused.value)

    for message in in_two(body, tmp_path):
        for words in ("DistributedBatchSampler", "Do not pass this loader to", "fastload.DistributedSampler"):
            assert words in message


# --- transformers ----------------------------------------------------------------------------------------------------


class Rows(Noisy):
    """Samples as the Trainer takes them."""

    def __getitem__(self, index: int) -> Any:
        return {"features": super().__getitem__(index), "labels": torch.tensor(0.0)}


class Network(torch.nn.Module):
    """Notes the batches that it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[Any]] = []

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(features.tolist())
        return {"loss": self.layer(features[:, :1].float()).mean()}


@pytest.mark.parametrize("make", [keyed, in_order, lambda **options: shared_out(1, **options)])
def test_every_checkpoint_of_transformers_trainer_goes_on_where_it_was_written(make: Any, tmp_path: Path) -> None:
    class OurTrainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(make(samples=Rows()))

    def seen(checkpoint: str | None = None) -> list[list[Any]]:
        settings = {"num_train_epochs": EPOCHS, "save_strategy": "no" if checkpoint else "steps", "save_steps": 1}
        arguments = training_arguments(tmp_path, remove_unused_columns=False, **settings)
        trainer = OurTrainer(Network(), arguments, train_dataset=Rows())
        trainer.train(resume_from_checkpoint=checkpoint)
        assert type(trainer.callback_handler.train_dataloader.base_dataloader) is fastload.DataLoader
        return trainer.model.seen

    whole = seen()
    loader = make(samples=Rows())
    assert whole == [batch["features"].tolist() for _ in range(EPOCHS) for batch in loader]
    for step in (STEPS, 9):
        assert seen(str(tmp_path / f"checkpoint-{step}")) == whole[step:], step
