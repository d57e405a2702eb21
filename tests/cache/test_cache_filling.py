"""While the cache fills there are lines on the terminal, and nowhere else."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from kit.photos import Photos

from fastload import DataLoader
from fastload.cache import store
from fastload.cache.shared import records_of
from fastload.engine import filling

tqdm = pytest.importorskip("tqdm").tqdm


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Photos:
    """Eight files; and a line comes with each batch."""
    for name, value in (("_EVERY_S", 0.0), ("_FIRST_S", 0.0)):
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
def test_lines_tell_how_full_the_cache_is_while_it_fills_and_no_longer(photos, monkeypatch, options):
    first, second = shown(photos, monkeypatch, **options)
    assert re.fullmatch(r"(fastload: filling the cache: [1-8] files, \d+\.\d KiB of 8\.0 MiB\n)+", first)
    assert second == ""


def test_elsewhere_than_on_a_terminal_there_is_none(photos, monkeypatch):
    assert shown(photos, monkeypatch, is_terminal=False) == ["", ""]


def test_other_ranks_than_the_first_have_none(photos, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert shown(photos, monkeypatch) == ["", ""]


def test_without_a_cache_there_is_none(photos, monkeypatch):
    assert shown(photos, monkeypatch, cache=None) == ["", ""]


def test_a_short_epoch_has_none(photos, monkeypatch):
    monkeypatch.setattr(filling, "_FIRST_S", 5.0)
    assert shown(photos, monkeypatch) == ["", ""]


def test_there_is_none_beside_a_bar_of_tqdm(photos, monkeypatch):
    with tqdm(total=1, file=io.StringIO()):
        assert shown(photos, monkeypatch) == ["", ""]


def test_other_ranks_of_a_group_without_torchrun_have_none(monkeypatch):
    kept = records_of("8MiB")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "stderr", Screen(is_terminal=True))
    monkeypatch.setattr(filling.dist, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(filling.dist, "get_rank", lambda rank=rank: rank)
        assert (filling.filling_of(kept) is None) == bool(rank)
