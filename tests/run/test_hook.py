"""after_import: acting on a module when somebody else imports it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fastload.inject.fastload_hook import after_import

NAME = "fastload_test_module"


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)
    assert sys.meta_path == finders


def test_actions_follow_the_first_import_and_see_the_whole_module(module_file: Path) -> None:
    module_file.write_text("first = 1\nlast = 2\n")
    seen: list[list[int]] = []
    for _ in range(2):
        after_import(NAME, lambda module: seen.append([module.first, module.last]))
    assert importlib.util.find_spec(NAME) is not None  # which does not import it
    assert seen == []
    module = importlib.import_module(NAME)
    importlib.reload(module)
    assert seen == [[1, 2]] * 2
    assert "exec_module" not in vars(module.__loader__)
    after_import(NAME, lambda module: seen.append([module.first]))  # it is there
    assert seen[2:] == [[1]]


@pytest.mark.parametrize("text", [None, "raise RuntimeError('not yet')\n"], ids=["missing", "failing"])
def test_a_module_that_is_not_there_or_fails_first_is_acted_on_once(module_file: Path, text: str | None) -> None:
    if text is not None:
        module_file.write_text(text)
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert (importlib.util.find_spec(NAME) is None) == (text is None)
    with pytest.raises(ModuleNotFoundError if text is None else RuntimeError, match=f"{NAME}|not yet"):
        importlib.import_module(NAME)
    assert seen == []
    module_file.write_text("value = 'now it works'\n")
    importlib.invalidate_caches()
    assert importlib.import_module(NAME).value == "now it works"
    assert len(seen) == 1
