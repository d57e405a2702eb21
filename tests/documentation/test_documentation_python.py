"""Every block of Python in README and docs runs: those of a page one after the other, in one namespace.

What a page takes for granted (a dataset, a model, a folder of images) is made by ``setups/PAGE.py``, which is executed
before; ``setups/everywhere.py`` before all. What the setups import a page does not get: it must import what it uses.
Pages that take seconds are slow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
import torchvision
from documentation_blocks import PAGES, Block, blocks_of

from fastload.cache import shared

SETUPS = Path(__file__).parent / "setups"
LANGUAGES = {"python", "sh", "text", "toml", "json"}

# Pages whose blocks run in an interpreter of their own: they import libraries that take seconds, or load for seconds.
SLOW = {"replace", "coming-from", "verify"}


def _has(module: str) -> bool:
    return all(find_spec(module.rsplit(".", place)[0]) for place in range(module.count("."), -1, -1))


# The first statement of a block: what it needs to run, and whether that is here. Without it, it is compiled.
NEEDS: dict[str, tuple[bool, str]] = {
    "from nvidia.dali import fn, pipeline_def, types": (_has("nvidia.dali"), "DALI: uv run --with nvidia-dali-cuda130"),
    "import webdataset as wds": (_has("webdataset"), "uv run installs it"),
}

# What a page says that its examples print or do, and what must hold at the end for that to be true.
PRINTED = {
    "device": "[8, 3, 32, 32]",
    "faults": "index 3, train/cat/11.jpg (OSError: Truncated File Read): replaced by 34",
    "images": '{"native": 48}',
}
TRUE_AT_THE_END = {"resume": "step + 1 == len(sampler)"}  # it went on at the fourth batch, to the last


def python_of(path: Path) -> list[Block]:
    return [block for block in blocks_of(path) if block.language == "python"]


WITH_PYTHON = [path for path in PAGES if python_of(path)]


def code_of(block: Block) -> str:
    """Return a block's code, with its lines where they are on the page; without a GPU, for the CPU."""
    text = block.text if torch.cuda.is_available() else block.text.replace('"cuda"', '"cpu"')
    return "\n" * (block.line - 1) + text


def first_of(block: Block) -> str:
    """Return the first line of a block, without its comment."""
    return block.text.splitlines()[0].partition("  #")[0]


def has_what_it_needs(block: Block) -> bool:
    return NEEDS.get(first_of(block), (True, ""))[0]


def setups_of(path: Path) -> list[Path]:
    return [one for one in (SETUPS / "everywhere.py", SETUPS / f"{path.stem}.py") if one.exists()]


def is_imported(value: object) -> bool:
    """Return whether a setup imported this: a page must do so itself, so that its blocks can be pasted."""
    return isinstance(value, ModuleType) or (
        isinstance(value, type | FunctionType) and getattr(value, "__module__", "") != "page"
    )


@pytest.fixture(autouse=True)
def no_cache_is_left() -> Iterator[None]:
    yield
    shared.forget()


@pytest.mark.parametrize("path", [one for one in WITH_PYTHON if one.stem not in SLOW], ids=lambda path: path.stem)
def test_the_python_of_a_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", torchvision.datasets.CIFAR10)  # a setup may replace it
    made: dict[str, Any] = {"__name__": "page"}
    for setup in setups_of(path):
        exec(compile(setup.read_text(), setup, "exec"), made)
    names = {"__name__": "page", "__builtins__": __builtins__}
    names |= {name: value for name, value in made.items() if not is_imported(value)}
    for block in python_of(path):
        code = compile(code_of(block), str(path), "exec")
        if has_what_it_needs(block):
            exec(code, names)
    for name, value in list(names.items()):
        if name.startswith("test_"):  # a block that shows how to write a test
            value()
    if path.stem in PRINTED:
        assert PRINTED[path.stem] in path.read_text()
        assert PRINTED[path.stem] in capsys.readouterr().out.replace("'", '"')
    assert eval(TRUE_AT_THE_END.get(path.stem, "True"), names)


@pytest.mark.slow
@pytest.mark.parametrize("path", [one for one in WITH_PYTHON if one.stem in SLOW], ids=lambda path: path.stem)
def test_the_python_of_a_page_of_libraries_runs(path: Path, tmp_path: Path) -> None:
    blocks = [block for block in python_of(path) if has_what_it_needs(block)]
    parts = [setup.read_text() for setup in setups_of(path)] + [code_of(block).lstrip() for block in blocks]
    (tmp_path / "page.py").write_text("\n".join(parts))
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_block_has_a_language_and_can_be_read(path: Path) -> None:
    for block in blocks_of(path):
        assert block.language in LANGUAGES, f"{block}: no language, or an unknown one: {block.language!r}"
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "text":  # output and drawings, no commands
            assert not block.text.startswith(("fastload ", "pip ", "uv ", "python ", "torchrun ")), f"{block} is sh"


def test_every_setup_belongs_to_a_page_and_what_is_said_of_pages_to_one_that_is_there() -> None:
    stems = {path.stem for path in WITH_PYTHON}
    assert {one.stem for one in SETUPS.iterdir()} <= stems | {"everywhere"}
    assert stems >= SLOW | PRINTED.keys() | TRUE_AT_THE_END.keys()
    assert stems | {first_of(block) for path in WITH_PYTHON for block in python_of(path)} >= NEEDS.keys()
