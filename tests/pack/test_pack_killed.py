"""Killed in the middle, and run again: the pack is that of a run that was left alone.

One of the "images" is a named pipe: whoever reads it stands still until the test writes to it, so that the middle is
where the test wants it, and no clock is needed. Packing refuses pipes for that very reason, so here it is told not to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pack_tools import contents, file, needs_library, picture

from fastload.pack import run
from fastload.pack.options import PackOptions
from fastload.pack.run import pack

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from fastload.pack import run
from fastload.pack.options import PackOptions
from fastload.pack.run import pack

run.refuse_pipe = lambda path: None

if __name__ == "__main__":
    options = PackOptions(coefficients=sys.argv[4] == "True")
    pack(sys.argv[1], sys.argv[2], options, workers=int(sys.argv[3]))
"""


@pytest.fixture
def pipe(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an image that is a named pipe, the last but one of all."""
    monkeypatch.setattr(run, "refuse_pipe", lambda _: None)
    path = source / "eel" / "z0.jpg"
    os.mkfifo(path)
    os.utime(path, ns=(1, 1))
    (source / "eel" / "z1.jpg").write_bytes(file(picture(20, 20, 30)))
    return path


@contextmanager
def fed(pipe: Path) -> Iterator[None]:
    """Have whoever reads the pipe find an image there."""

    def feed() -> None:
        with open(pipe, "wb") as end:
            end.write(file(picture(40, 40, 11), progressive=True))

    os.utime(pipe, ns=(1, 1))  # writing to it has changed its time, by which the folder would be another
    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("coefficients", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_killed_is_gone_on_with(source, tmp_path, pipe, workers, coefficients):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, tmp_path / "script.py", source, tmp_path / "pack", str(workers), str(coefficients)]
    with subprocess.Popen(words) as process, open(pipe, "wb"):  # when all before it were read
        process.kill()
        process.wait()
    options = PackOptions(coefficients=coefficients)
    with fed(pipe):
        num_stored = pack(source, tmp_path / "pack", options, workers=1).num_before
    assert num_stored == 13 if workers == 1 else num_stored <= 13
    with fed(pipe):
        pack(source, tmp_path / "at once", options, workers=1)
    assert contents(tmp_path / "pack") == contents(tmp_path / "at once")


def test_ctrl_c_ends_the_run_in_a_line_and_the_next_one_goes_on(source, tmp_path, pipe):
    code = "from fastload.cli import main; from fastload.pack import run; run.refuse_pipe = print; raise SystemExit"
    command = [sys.executable, "-c", f"{code}(main())", "pack", str(source), str(tmp_path / "pack"), "--workers=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # The pipe's end follows: an interrupt between Python's look for one and the read would wait as long as that.
        with open(pipe, "wb"):
            process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=200)[1]
    assert process.returncode == 130
    assert error == "fastload pack: interrupted; the same command continues where this one stopped\n"
    with fed(pipe):
        assert pack(source, tmp_path / "pack", workers=1).num_images == 15
