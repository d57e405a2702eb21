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


def test_the_action_follows_the_import_and_sees_the_whole_module(module_file: Path) -> None:
    module_file.write_text("first = 1\nlast = 2\n")
    seen: list[list[int]] = []
    after_import(NAME, lambda module: seen.append([module.first, module.last]))
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [[1, 2]]
    importlib.import_module(NAME)
    importlib.reload(module)
    assert seen == [[1, 2]]


def test_the_action_comes_at_once_where_the_module_is_there(module_file: Path) -> None:
    module_file.write_text("")
    module = importlib.import_module(NAME)
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert seen == [module]


def test_a_module_that_fails_first_and_succeeds_later_is_acted_on_once(module_file: Path) -> None:
    module_file.write_text("raise RuntimeError('not yet')\n")
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(NAME)
    assert seen == []
    module_file.write_text("value = 'now it works'\n")
    importlib.invalidate_caches()
    assert importlib.import_module(NAME).value == "now it works"
    assert len(seen) == 1


def test_several_actions_wait_for_one_module(module_file: Path) -> None:
    module_file.write_text("")
    seen: list[str] = []
    after_import(NAME, lambda _: seen.append("first"))
    after_import(NAME, lambda _: seen.append("second"))
    module = importlib.import_module(NAME)
    assert sorted(seen) == ["first", "second"]
    assert "exec_module" not in vars(module.__loader__)


def test_a_module_that_does_not_exist_is_still_not_found(module_file: Path) -> None:
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert importlib.util.find_spec(NAME) is None
    with pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)
    module_file.write_text("")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert len(seen) == 1


def test_asking_where_a_module_is_does_not_import_it(module_file: Path) -> None:
    module_file.write_text("")
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert importlib.util.find_spec(NAME) is not None
    assert seen == []
    importlib.import_module(NAME)
    assert len(seen) == 1
