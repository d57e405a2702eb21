"""The library is found, checked and switched off as documented."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastload import native
from fastload.errors import ConfigError

without_library = pytest.mark.without_library


def python(code: str, **environment: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True).stdout


@pytest.mark.slow
@without_library
def test_an_environment_variable_switches_the_library_off_which_an_import_does_not_load():
    said = python(
        "import fastload; from fastload import native; print(native._load.cache_info().misses)\n"
        "print(native.available(), native.unavailable_reason())",
        FASTLOAD_NATIVE="0",
    )
    assert said == "0\nFalse FASTLOAD_NATIVE=0 switches it off\n"


@pytest.mark.slow
@pytest.mark.parametrize("level", native.LEVELS)
def test_an_environment_variable_limits_the_instructions(level):
    code = "from fastload.native import description, processor_level\nprint(processor_level(), description())"
    found, words = python(code, FASTLOAD_NATIVE=level).rstrip().split(" ", 1)
    assert found == min(level, native.processor_level(), key=native.LEVELS.index)
    assert words.endswith(f"instruction set {found} (at most {level}: FASTLOAD_NATIVE)")


@without_library
@pytest.mark.parametrize("wish", ["sse2", "AVX2", "2", "no"])
def test_another_value_of_the_variable_is_refused(wish, monkeypatch):
    monkeypatch.setenv("FASTLOAD_NATIVE", wish)
    with pytest.raises(ConfigError, match=f"one of plain, avx2, avx512; the environment has FASTLOAD_NATIVE={wish}$"):
        native._load.__wrapped__()


def test_a_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(native, "ABI", native.ABI + 1)
    loaded = native._load.__wrapped__()
    assert loaded[0] is None
    assert f"another version ({native.ABI - 1}, not {native.ABI})" in loaded[1]


@without_library
@pytest.mark.parametrize(("content", "reason"), [(b"not a library", "it cannot be loaded"), (None, "it was not built")])
def test_a_file_that_is_no_library_or_missing_is_told(monkeypatch, tmp_path: Path, content, reason):
    monkeypatch.delenv("FASTLOAD_NATIVE", raising=False)
    broken = tmp_path / "_fastload.so"
    if content is not None:
        broken.write_bytes(content)
    monkeypatch.setattr(native, "LIBRARY", broken)
    loaded = native._load.__wrapped__()
    assert loaded[0] is None
    assert loaded[1].startswith(reason)
    monkeypatch.setattr(native, "_load", lambda: loaded)
    monkeypatch.setattr(native, "library", native._Functions())
    with pytest.raises(RuntimeError, match=f"library has no processor_level: {reason}"):
        native.processor_level()
