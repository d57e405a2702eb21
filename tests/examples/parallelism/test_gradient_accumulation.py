"""A window of micro-batches makes the step of one large batch; ``no_sync`` saves messages."""

from __future__ import annotations

import re
from pathlib import Path

import gradient_accumulation
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripts import PARALLELISM, run_as_torchrun

SCRIPT = PARALLELISM / "gradient_accumulation.py"
LINE = re.compile(r"^(.*?) +(\d+) messages   (\S+) from one process with batches of 64$", re.MULTILINE)


@pytest.mark.slow
def test_two_ranks_make_the_steps_of_one_large_batch_and_no_sync_must_cover_both_passes(tmp_path: Path) -> None:
    printed, silent = run_as_torchrun(SCRIPT, folder=tmp_path)
    rows = {name: (int(messages), float(off)) for name, messages, off in LINE.findall(printed)}
    assert [messages for messages, _ in rows.values()] == [3, 11, 11, 3]
    assert all(off < 1e-12 for name, (_, off) in rows.items() if "divided by k" not in name)
    assert rows["the same, divided by k also in the short window"][1] > 1e-3
    assert silent == ""


@pytest.mark.parametrize("every", [1, 2, 3, 5, 11, 20])
def test_a_window_of_any_size_equals_one_batch_of_its_samples(every: int) -> None:
    accumulated, _ = gradient_accumulation.train(0, 1, 16, every, "around both")
    together, _ = gradient_accumulation.train(0, 1, 16 * every, 1, "nowhere")
    assert torch.allclose(accumulated, together, rtol=0, atol=1e-12)


@given(st.lists(st.integers(), max_size=30), st.integers(1, 8))
def test_windows_hold_every_batch_once_in_order_and_only_the_last_is_short(batches: list[int], every: int) -> None:
    windows = list(gradient_accumulation.in_windows(batches, every))  # type: ignore[arg-type]  # numbers will do
    assert [batch for window in windows for batch in window] == batches
    assert [len(window) for window in windows[:-1]] == [every] * (len(windows) - 1)
    assert all(windows)
