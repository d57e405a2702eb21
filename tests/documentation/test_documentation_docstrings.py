"""The examples in docstrings, which the API reference shows: ``>>>`` gives what is written there, and blocks run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

import fastload

PACKAGE = Path(fastload.__file__).parent
SETUPS = Path(__file__).parent / "setups"
_BLOCK = re.compile(r"(?ms)^ *```python\n(.*?)^ *```$")


def docstrings_of(path: Path) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


DOCSTRINGS = {
    path: docstrings_of(path)
    for path in sorted(PACKAGE.glob("**/*.py"))
    if re.search(r">>> |```python", path.read_text(encoding="utf-8"))  # to parse all takes a second
}
WITH_PROMPTS = [path for path, texts in DOCSTRINGS.items() if any(">>> " in text for text in texts)]
BLOCKS = [
    # What checks a loader in all ways starts interpreters too.
    pytest.param(path, block, id=path.stem, marks=[pytest.mark.slow] if "def test_" in block else [])
    for path, texts in DOCSTRINGS.items()
    for text in texts
    for block in _BLOCK.findall(text)
]


@pytest.mark.parametrize("path", WITH_PROMPTS, ids=lambda path: path.stem)
def test_the_examples_of_a_module_give_what_is_written_there(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize(("path", "block"), BLOCKS)
def test_a_block_of_a_docstring_runs(path: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "page"}
    for setup in ("everywhere", "profile", "verify"):
        exec(compile((SETUPS / f"{setup}.py").read_text(), setup, "exec"), names)
    exec(compile(textwrap.dedent(block), str(path), "exec"), names)
    for name, value in list(names.items()):
        if name.startswith("test_"):
            value()


def test_every_public_example_is_found() -> None:
    shown = [inspect.getdoc(getattr(fastload, name)) or "" for name in fastload.__all__]
    texts = [text for found in DOCSTRINGS.values() for text in found]
    assert sum(">>> " in one for one in shown) >= 4
    assert sorted(one for one in shown if ">>> " in one and one not in texts) == []
