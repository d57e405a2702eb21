"""A build for 64-bit ARM makes what the library makes here, of the fuzzer's input; an emulator runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from fuzz import PIECES, compiled, made_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"


def built(folder: Path, cc: str | None, *flags: str) -> Path:
    """Return a folder with the programs, which know no libjpeg and no libpng: there are none for ARM."""
    for name in ("fuzz_jpeg", "fuzz_pieces"):
        compiled(folder, name, *flags, cc=cc)
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        reason = f"no {' and no '.join(missing)}: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        (pytest.fail if os.environ.get("FASTLOAD_REQUIRE_QEMU", "") not in ("", "0") else pytest.skip)(reason)
    return built(tmp_path_factory.mktemp("here"), None, "-O1")


@pytest.fixture(scope="module", params=["NEON", pytest.param("plain C", marks=pytest.mark.thorough)])
def there(request: pytest.FixtureRequest, here: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    portable = ["-DFASTLOAD_PORTABLE"] if request.param == "plain C" else []
    return built(tmp_path_factory.mktemp("there"), COMPILER, "-O3", "-static", *portable)


def assert_same(here: Path, there: Path, program: str, arguments: Iterable[object], rounds: int) -> None:
    """Check that both make the same of so many rounds, by the digests of all that they made."""
    digests = []
    for command in ([here / program], [EMULATOR, there / program]):
        environment = {**os.environ, "FUZZ_ROUNDS": str(rounds)}
        words = [*map(str, command), "1e9", "1", *map(str, arguments)]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        assert f"{rounds} rounds" in done.stdout
        digests.append(done.stdout.partition("digest: ")[2])
    assert digests[0]
    assert digests[0] == digests[1]


def test_damaged_files_and_records_of_every_kind(here, there, tmp_path):
    assert_same(here, there, "fuzz_jpeg", made_files(tmp_path), 500)


@pytest.mark.parametrize("piece", [piece for piece in PIECES if piece != "png"])
def test_colors_rows_numbers_and_orders(here, there, piece):
    rounds = 50 if piece in ("cache", "states") else 300
    assert_same(here, there, "fuzz_pieces", (piece, rounds), rounds)
