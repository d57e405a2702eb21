"""Accelerate: numbers in its trackers' files, the words at the end, and the device stage."""

from __future__ import annotations

from typing import Any

import accelerate
import pytest
import torch
import torch.utils.data
from kit.libraries import accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import TensorDataset

import fastload
from fastload.callbacks import Stall
from fastload.errors import ConfigError


def dataset() -> TensorDataset:
    return TensorDataset(torch.randn(48, 2))


def test_numbers_come_into_tensorboard_and_words_to_standard_error(tmp_path, capsys):
    running = accelerate.Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    running.init_trackers("run")
    loader = running.prepare(fastload.DataLoader(dataset(), batch_size=4, num_workers=2))
    stall = Stall(loader)
    for step, _ in enumerate(loader):
        if step % 4 == 3:
            running.log(stall.numbers(), step=step)
    stall.end()
    running.end_training()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    shares = events.Scalars("data/share")
    assert [event.step for event in shares] == [3, 7, 11]
    assert all(0.0 < event.value <= 1.0 for event in shares)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fastload: ")]
    assert len(told) == 1
    assert "of the step was lost to data" in told[0]


def test_the_rest_of_a_resumed_epoch_counts_too():
    running = accelerator()
    prepared = running.prepare(fastload.DataLoader(dataset(), batch_size=4))
    rest = accelerate.skip_first_batches(prepared, 6)
    stall = Stall(prepared)
    assert len(list(rest)) == 6
    stall.skip()
    assert stall.numbers()["data/share"] > 0.0
    assert stall.numbers() == {}


# -- device= and batch_transform= -------------------------------------------------------------------------------------


def test_what_the_batch_transform_makes_on_the_device_is_given_without_another_copy():
    made: list[Any] = []

    def doubled(batch: Any) -> Any:
        made.append([2 * part for part in batch])
        return made[-1]

    loader = fastload.DataLoader(dataset(), batch_size=4, num_workers=2, device="cpu", batch_transform=doubled)
    given = [batch[0].data_ptr() for batch in accelerator().prepare(loader)]
    assert given == [batch[0].data_ptr() for batch in made]
    assert len(given) == 12


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"device": "cuda:1"}, r"device='cuda:1', and Accelerate would move every batch from there to 'cpu': give .*"),
        ({"device": "cuda"}, r"or leave device out\. prepare\(\.\.\., device_placement=\[False, \.\.\.\]\)"),
        ({"device": "cpu", "fixed_buffers": True}, "leave fixed_buffers out"),
    ],
)
def test_what_accelerate_would_undo_is_an_error(changed, error):
    loader = fastload.DataLoader(dataset(), batch_size=4)
    vars(loader).update(changed)  # as on a machine that has them
    with pytest.raises(ConfigError, match=error):
        accelerator().prepare(loader)


def test_parts_that_are_to_stay_on_the_host_are_an_error_where_accelerate_moves_them():
    from accelerate.data_loader import prepare_data_loader

    loader = fastload.DataLoader(dataset(), batch_size=4)
    vars(loader).update(device="cuda", keep_on_host=(1,))
    with pytest.raises(ConfigError, match=r"keep_on_host=\(1,\), but Accelerate would move these parts to 'cuda:0'"):
        prepare_data_loader(loader, device=torch.device("cuda:0"), put_on_device=True)


def test_a_loader_whose_batches_accelerate_leaves_where_they_are_may_have_another_device(monkeypatch):
    monkeypatch.setattr("fastload.engine.features.device_of", torch.device)
    loader = fastload.DataLoader(dataset(), batch_size=4)
    vars(loader).update(device="cuda:1", keep_on_host=(1,))
    prepared = accelerator().prepare(loader, device_placement=[False])
    assert (prepared.base_dataloader.device, prepared.device) == ("cuda:1", None)
