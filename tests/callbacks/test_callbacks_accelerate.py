"""Accelerate: numbers in its trackers' files, the words at the end, and the device stage."""

from __future__ import annotations

from typing import Any

import accelerate
import pytest
import torch
import torch.utils.data
from accelerate.data_loader import prepare_data_loader
from kit.libraries import accelerator
from torch.utils.data import TensorDataset

import fastload
from fastload.callbacks import Stall
from fastload.errors import ConfigError


def dataset() -> TensorDataset:
    return TensorDataset(torch.randn(48, 2))


def test_the_rest_of_a_resumed_epoch_counts_too_and_the_words_come_to_standard_error(capsys):
    running = accelerator()
    prepared = running.prepare(fastload.DataLoader(dataset(), batch_size=4))
    rest = accelerate.skip_first_batches(prepared, 6)
    stall = Stall(prepared)
    assert len(list(rest)) == 6
    stall.skip()
    assert stall.numbers()["data/share"] > 0.0
    assert stall.numbers() == {}
    stall.end()
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fastload: ")]
    assert "of the step was lost to data" in told


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
        ({"device": "cuda", "keep_on_host": (1,)}, r"\(1,\), but Accelerate would move these parts to 'cuda:0'"),
    ],
)
def test_what_accelerate_would_undo_is_an_error(changed, error):
    loader = fastload.DataLoader(dataset(), batch_size=4)
    vars(loader).update(changed)  # as on a machine that has them
    with pytest.raises(ConfigError, match=error):
        if "keep_on_host" in changed:
            prepare_data_loader(loader, device=torch.device("cuda:0"), put_on_device=True)
        accelerator().prepare(loader)


def test_a_loader_whose_batches_accelerate_leaves_where_they_are_may_have_another_device(monkeypatch):
    monkeypatch.setattr("fastload.engine.features.device_of", torch.device)
    loader = fastload.DataLoader(dataset(), batch_size=4)
    vars(loader).update(device="cuda:1", keep_on_host=(1,))
    prepared = accelerator().prepare(loader, device_placement=[False])
    assert (prepared.base_dataloader.device, prepared.device) == ("cuda:1", None)
