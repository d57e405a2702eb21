"""Tests of late decoding are skipped where it is off, unless the run insists on the native library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from fastload.late import colors, opener

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


@pytest.fixture(autouse=True)
def late_decoding() -> None:
    """Skip or fail where no file is decoded late."""
    reason = opener.why_not()
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"no file is decoded late here: {reason}")


@pytest.fixture(autouse=True)
def small_files_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode late what would not pay: small files are quick to test."""
    monkeypatch.setattr(opener, "LEAST_VALUES", 0)


@pytest.fixture(scope="module")
def colors_replaced() -> Iterator[None]:
    """Replace the functions that change colors, as a worker process does, and put them back."""
    places = [(sys.modules["PIL.ImageEnhance"], name) for name in ("Brightness", "Color", "Contrast")]
    classes = {getattr(module, name): dict(vars(getattr(module, name))) for module, name in places}
    functions = sys.modules["torchvision.transforms._functional_pil"]
    before = {name: getattr(functions, name) for name in ("adjust_hue", "to_grayscale")}
    colors.prepare()
    yield
    colors._prepared -= {"PIL.ImageEnhance", functions.__name__}
    for name, function in before.items():
        setattr(functions, name, function)
    for kind, attributes in classes.items():
        kind.__init__ = attributes["__init__"]
        del kind.enhance, kind.__getattr__, kind.__reduce_ex__
