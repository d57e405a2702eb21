"""While the cache fills there is a line on the terminal, and nowhere else."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from torch.utils.data import Dataset
from tqdm import tqdm

from fastload import DataLoader
from fastload.base.terminal_bar import TerminalBar
from fastload.cache import store
from fastload.cache.shared import records_of
from fastload.engine import filling

WORDS = "filling the cache"


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


class Photos(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __getitem__(self, index: int) -> int:
        with PIL.Image.open(self.paths[index]) as image:
            return int(np.asarray(image.convert("RGB")).sum())

    def __len__(self) -> int:
        return len(self.paths)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Photos:
    """Eight files; and the line comes with the second batch."""
    for name, value in (("_EVERY_S", 0.0), ("_AFTER_S", 0.0)):
        monkeypatch.setattr(filling, name, value)
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    monkeypatch.setenv("TERM", "xterm")
    rng = np.random.default_rng(0)
    for place in range(8):
        PIL.Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(tmp_path / f"{place}.jpg")
    return Photos(tmp_path)


def shown(photos: Photos, monkeypatch: pytest.MonkeyPatch, is_terminal: bool = True, **options: Any) -> list[str]:
    """Return what is on the standard error in each of two epochs."""
    loader = DataLoader(photos, 2, **{"cache": "8MiB", **options})
    found = []
    for _ in range(2):
        screen = Screen(is_terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        for _ in loader:
            pass
        found.append(screen.getvalue())
        assert sys.stderr is screen
    return found


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_the_line_is_there_while_the_cache_fills_and_no_longer(photos, monkeypatch, options):
    first, second = shown(photos, monkeypatch, **options)
    assert WORDS in first
    assert "8.0 MiB" in first
    assert first.endswith("\x1b[2K")  # it is removed
    assert second == ""


def test_elsewhere_than_on_a_terminal_there_is_none(photos, monkeypatch):
    assert shown(photos, monkeypatch, is_terminal=False) == ["", ""]


def test_other_ranks_than_the_first_have_none(photos, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert shown(photos, monkeypatch) == ["", ""]


def test_without_a_cache_there_is_none(photos, monkeypatch):
    assert shown(photos, monkeypatch, cache=None) == ["", ""]


def test_a_short_epoch_has_none(photos, monkeypatch):
    monkeypatch.setattr(filling, "_AFTER_S", 3.0)
    assert shown(photos, monkeypatch) == ["", ""]


def test_it_gives_way_to_a_bar_of_tqdm(photos, monkeypatch):
    with tqdm(total=1, file=io.StringIO()):
        assert shown(photos, monkeypatch) == ["", ""]


def test_it_is_gone_when_an_epoch_is_left(photos, monkeypatch):
    screen = Screen(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    iterator = iter(DataLoader(photos, 2, cache="8MiB"))
    for _ in range(3):
        next(iterator)
    assert WORDS in screen.getvalue()
    del iterator
    assert screen.getvalue().endswith("\x1b[2K")


def test_what_the_program_prints_goes_where_it_went_before(photos, monkeypatch):
    screen, log = Screen(is_terminal=True), io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with contextlib.redirect_stdout(log):
        iterator = iter(DataLoader(photos, 2, cache="8MiB"))
        for step in range(3):
            next(iterator)
            print(step)
        assert WORDS in screen.getvalue()
        assert sys.stderr is screen
    before = sys.stdout
    del iterator
    assert sys.stdout is before
    assert log.getvalue() == "0\n1\n2\n"


def test_it_gives_way_to_a_bar_of_fastload(photos, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Screen(is_terminal=True))
    with TerminalBar():
        assert shown(photos, monkeypatch) == ["", ""]
    assert TerminalBar.num_shown == 0


def test_other_ranks_of_a_group_without_torchrun_have_none(photos, monkeypatch):
    kept = records_of("8MiB")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "stderr", Screen(is_terminal=True))
    monkeypatch.setattr(filling.dist, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(filling.dist, "get_rank", lambda rank=rank: rank)
        assert (filling.filling_of(kept, photos) is None) == bool(rank)
