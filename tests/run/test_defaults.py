"""Defaults of our own arguments: from the environment, the command line and code; what a script gives itself wins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st

import fastload
from fastload.cache import shared
from fastload.errors import ConfigError
from fastload.loader import argument_defaults
from fastload.run.defaults import as_text, read_text, values_of

DATA = torch.arange(6)
WORDS = st.text(st.characters(exclude_characters=",=", categories=["L", "N"]), min_size=1)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    fastload.uninstall()


@given(st.dictionaries(WORDS, WORDS))
def test_what_is_written_as_text_is_read_again(words):
    assert read_text(as_text(words)) == words


def test_words_stand_for_constants_integers_and_themselves():
    words = {"a": "True", "b": "false", "c": "none", "d": "-12", "e": "thread", "f": "cuda:1"}
    assert list(values_of(words).values()) == [True, False, None, -12, "thread", "cuda:1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fuse", "it must have the form fuse=true,seed=1, got 'fuse'"),
        ("fuse=true,", "got ''"),
        ("=1", "got '=1'"),
        ("seed=1,seed=2", "it has seed twice: 1 and 2"),
    ],
)
def test_text_that_does_not_read_so_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        read_text(text)


def test_install_gives_every_loader_defaults_and_what_is_given_wins():
    fastload.install(fuse=True, seed=3)

    class Own(fastload.DataLoader):
        def __init__(self, dataset):
            super().__init__(dataset, seed=4)

    loaders = [torch.utils.data.DataLoader(DATA), fastload.DataLoader(DATA, fuse=False), Own(DATA)]
    assert [(loader.fuse, loader.seed) for loader in loaders] == [(True, 3), (False, 3), (True, 4)]


def test_a_second_install_adds_to_the_first_and_uninstall_takes_all_back():
    found = [fastload.DataLoader(DATA)]
    fastload.install(fuse=True)
    fastload.install(seed=1)
    found.append(fastload.DataLoader(DATA))
    fastload.uninstall()
    found.append(fastload.DataLoader(DATA))
    assert [(loader.fuse, loader.seed) for loader in found] == [("auto", None), (True, 1), ("auto", None)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"fused": True},
            "fused is not an argument of fastload.DataLoader; there are defaults for worker_method,",
        ),
        ({"num_workers": 2}, "num_workers is an argument of torch's DataLoader; there are defaults for"),
        ({"seeding": "tree"}, "seeding must be None, 'sample' or 'torch', got seeding='tree'"),
        ({"seed": 1, "seeding": "torch"}, "cannot be combined with seed=1"),
        ({"seed": 1, "fuse": 7}, "got fuse=7"),
    ],
)
def test_what_no_loader_can_have_is_refused_at_once_and_nothing_is_changed(values, message):
    torchs = torch.utils.data.DataLoader.__init__
    with pytest.raises(ConfigError, match=message):
        fastload.install(**values)
    assert torch.utils.data.DataLoader.__init__ is torchs
    assert argument_defaults().changed == {}
    assert fastload.DataLoader(DATA).seed is None


def test_loaders_that_can_have_no_cache_go_without_the_default_one(monkeypatch):
    monkeypatch.setenv("FASTLOAD_LOADER", "cache=32MiB")
    argument_defaults().read_environment()
    try:
        assert fastload.DataLoader(DATA).cache == "32MiB"
        without = fastload.DataLoader(DATA, fuse=False)
        assert without.cache is None
        assert [one.item() for one in without] == DATA.tolist()
        with pytest.raises(ConfigError, match="fuse=False decodes files by their own libraries"):
            fastload.DataLoader(DATA, fuse=False, cache="64MiB")
        monkeypatch.setenv("FASTLOAD_LOADER", "cache=32MiB,fuse=false")
        with pytest.raises(ConfigError, match="fuse=False decodes files by their own libraries"):
            argument_defaults().read_environment()
    finally:
        shared.forget()


def test_an_error_that_a_default_has_a_part_in_names_the_defaults():
    fastload.install(seed=1)
    with pytest.raises(ConfigError, match="seeding='torch'") as caught:
        torch.utils.data.DataLoader(DATA, seeding="torch")
    assert caught.value.__notes__ == ["defaults set by FASTLOAD_LOADER, fastload run or fastload.install(): seed=1"]


def test_accelerates_loader_has_the_defaults_of_the_one_that_it_was_made_from(monkeypatch):
    prepare = pytest.importorskip("accelerate.data_loader").prepare_data_loader
    monkeypatch.setenv("FASTLOAD_LOADER", "seed=5")
    argument_defaults().read_environment()
    made = fastload.DataLoader(DATA)
    argument_defaults().change({"seed": 6})
    assert prepare(made, put_on_device=False).base_dataloader.seed == 5


@pytest.mark.slow
def test_a_wrong_variable_stops_a_program_where_fastload_is_imported():
    code = "from fastload import DataLoader"
    environment = {**os.environ, "FASTLOAD_LOADER": "sed=2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "ConfigError: FASTLOAD_LOADER='sed=2': sed is not an argument of fastload.DataLoader" in done.stderr
