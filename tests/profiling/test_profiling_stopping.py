"""A script ends after its steps, also if it catches what ends it; a report of several ranks is about one of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from profiled import profile, write

from fastload.profiling.hooks import stopping as stopping_module
from fastload.profiling.hooks.stopping import StepLimit


class Ended(Exception):
    """Stands for the end of a process."""


@pytest.fixture(autouse=True)
def _ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a process is an error."""

    def end(_: object) -> NoReturn:
        raise Ended

    monkeypatch.setattr(stopping_module, "_end_process", end)


def asks(stopping: StepLimit) -> str:
    try:
        stopping.check()
    except (SystemExit, Ended) as error:
        return type(error).__name__
    return "goes on"


def test_a_script_that_comes_back_again_and_again_is_ended_without_being_asked() -> None:
    stopping = StepLimit(2)
    found = []
    for _ in range(20):
        found.append(asks(stopping))
        stopping.count()
    assert found == ["goes on"] * 2 + ["SystemExit"] * 16 + ["Ended"] * 2


def test_a_script_that_loads_in_a_thread_is_ended_with_its_process() -> None:
    stopping = StepLimit(1)
    stopping.count()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asks(stopping)))
    thread.start()
    thread.join()
    assert found == ["Ended"]


def test_a_child_that_is_forked_has_all_its_steps_before_it() -> None:
    stopping = StepLimit(1)
    stopping.count()
    child = os.fork()
    if not child:
        os._exit(0 if asks(stopping) == "goes on" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert asks(stopping) == "SystemExit"


CATCHING = {
    "nothing": """
        while True:
            for batch in DataLoader(Slow(), batch_size=4):
                pass
        """,
    "the loop": """
        def tell_if_killed(_):
            signal.signal(signal.SIGTERM, lambda *_: open("killed", "w").close())

        kept = iter(DataLoader(Slow(), batch_size=4, num_workers=1, worker_init_fn=tell_if_killed))
        next(kept)
        while True:
            try:
                for batch in DataLoader(Slow(), batch_size=4, num_workers=1):
                    pass
            except BaseException:
                pass
        """,
    "a thread": """
        def load():
            while True:
                try:
                    for batch in DataLoader(Slow(), batch_size=4):
                        batches.put(batch)
                except BaseException:
                    pass

        threading.Thread(target=load, daemon=True).start()
        while True:
            try:
                batches.get()
            except BaseException:
                pass
        """,
}


@pytest.mark.slow
@pytest.mark.parametrize("who", CATCHING)
def test_whatever_a_script_catches_it_ends_with_its_recording_and_what_it_printed(tmp_path: Path, who: str) -> None:
    path = write(tmp_path, "import atexit, queue, threading\nbatches = queue.Queue(2)\n")
    lines = CATCHING[who].splitlines()
    with path.open("a", encoding="utf-8") as file:
        file.write('atexit.register(print, "ended")\nprint("begun")\n')
        file.write("\n".join(line[8:] for line in lines) + "\n")
    done = profile(tmp_path, path, options=("--steps", 7, "--warmup", 2))
    assert (done.status, done.output) == (0, "begun\nended\n"), done.errors
    assert ("has had its steps, but no SystemExit ends the script" in done.errors) == (who != "nothing")
    assert "Traceback" not in done.errors
    assert len(done.trace.ranks[0].steps) == 9
    # Killed in the midst of a batch, a worker of torch's would leave the batch in /dev/shm.
    assert not (tmp_path / "killed").exists()


@pytest.mark.thorough
def test_the_status_is_the_scripts_where_the_reports_cannot_be_written(tmp_path: Path) -> None:
    end = "list(DataLoader(torch.arange(4)))\nos.mkdir('recording/profile.json')\nraise SystemExit(7)\n"
    done = profile(tmp_path, write(tmp_path, end), options=())
    assert done.status == 7
    assert "fastload profile: [Errno" in done.errors
    assert "Traceback" not in done.errors
