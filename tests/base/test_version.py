"""The name that installers know fastload by is found where it is asked for."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import fastload
from fastload.base.version import DISTRIBUTION

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_distribution_is_named_as_in_pyproject():
    assert tomllib.loads(PROJECT.read_text())["project"]["name"] == DISTRIBUTION


def test_the_version_is_that_of_the_distribution():
    installed = version("torch-fastload")
    assert re.match(r"\d+\.\d+", installed)
    assert fastload.__version__ == installed
