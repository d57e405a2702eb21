"""The library is found, checked and switched off as documented."""

from __future__ import annotations

import os
import subprocess
import sys

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
def test_a_file_that_is_no_library_missing_or_of_another_version_and_another_value_are_told(monkeypatch, tmp_path):
    for wish in ("sse2", "AVX2", "2", "no"):
        monkeypatch.setenv("FASTLOAD_NATIVE", wish)
        with pytest.raises(ConfigError, match=f"one of plain, avx2, avx512; the environment has .*={wish}$"):
            native._load.__wrapped__()
    monkeypatch.delenv("FASTLOAD_NATIVE")
    version, broken = native.ABI + 1, tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    cases = [(broken, "it cannot be loaded"), (tmp_path / "none.so", "it was not built")]
    if native.available():
        cases.append((native.LIBRARY, rf".*another version \({native.ABI}, not {version}\)"))
    monkeypatch.setattr(native, "ABI", version)
    for file, reason in cases:
        with monkeypatch.context() as patch:
            patch.setattr(native, "LIBRARY", file)
            loaded = native._load.__wrapped__()
            assert loaded[0] is None
            patch.setattr(native, "_load", lambda loaded=loaded: loaded)
            patch.setattr(native, "library", native._Functions())
            with pytest.raises(RuntimeError, match=f"library has no processor_level: {reason}"):
                native.processor_level()
