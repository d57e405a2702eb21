"""``fastload profile`` in real processes: what is recorded, whatever becomes of them, and that they stay their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from profiled import DATASET, profile, record_in_fork, write

from fastload.profiling import command
from fastload.profiling.reader import read_trace
from fastload.profiling.trace import Trace, TracedStep

pytestmark = pytest.mark.slow

LOOP = """
if __name__ == "__main__":
    {importing}
    for arguments in {arguments}:
        loader = DataLoader(Slow(), batch_size=4, **arguments)
        for epoch in range(2):
            for batch in loader:
                assert batch.shape == (4, 4)
        del loader
    print("trained")
"""
OURS = "from fastload import DataLoader"


def indices_of(step: TracedStep) -> list[int]:
    return sorted(sample.index for task in step.batch.tasks for sample in task.samples if sample.index is not None)


@pytest.mark.parametrize(
    ("importing", "loaders"),
    [
        (
            "pass",
            [
                {"num_workers": 0},
                {"num_workers": 2},
                {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "forkserver"},
            ],
        ),
        ("pass", [{"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}]),
        (OURS, [{"num_workers": 1, "multiprocessing_context": "spawn"}]),
    ],
    ids=["torch", "torch, spawn", "ours, spawn"],
)
def test_every_batch_is_told_with_its_tasks_and_samples(
    tmp_path: Path, importing: str, loaders: list[dict[str, Any]]
) -> None:
    write(tmp_path, LOOP.format(importing=importing, arguments=loaders))
    done = profile(tmp_path, "train.py")
    assert (done.status, done.output) == (0, "trained\n"), done.errors
    _check_trace(done.trace, loaders)


@pytest.mark.parametrize(
    "loaders",
    [
        [
            {"num_workers": 0},
            {"num_workers": 2},
            {"num_workers": 2, "persistent_workers": True},
            {"num_workers": 2, "persistent_workers": True, "seed": 3},
            {"num_workers": 2, "chunk_size": "batch"},
        ],
        [{"num_workers": 2, "worker_method": "thread"}],
    ],
    ids=["processes", "threads"],
)
def test_every_batch_of_ours_is_told_with_its_tasks_and_samples(tmp_path: Path, loaders: list[dict[str, Any]]) -> None:
    record_in_fork(tmp_path, DATASET + LOOP.format(importing=OURS, arguments=loaders))
    _check_trace(read_trace(str(tmp_path)), loaders)


def _check_trace(trace: Trace, loaders: list[dict[str, Any]]) -> None:
    assert trace.missing == {}
    (rank,) = trace.ranks
    assert len(rank.steps) == 12 * len(loaders)
    for number, arguments in enumerate(loaders):
        _check_batches(rank.steps[12 * number : 12 * number + 12], arguments)
    assert all(step.loop_cpu_ns is not None and step.loop_ns is not None for step in rank.steps[:-1])
    assert bool(rank.probe_ns) <= any("worker_method" in arguments for arguments in loaders)


def _check_batches(steps: list[TracedStep], arguments: dict[str, Any]) -> None:
    assert [step.first for step in steps] == [place % 6 == 0 for place in range(12)]
    workers = set()
    for place, step in enumerate(steps):
        assert indices_of(step) == list(range(4 * (place % 6), 4 * (place % 6) + 4))
        assert sum(task.num_samples for task in step.batch.tasks) == 4
        for task in step.batch.tasks:
            workers.add(task.worker)
            assert task.ns >= sum(sample.ns for sample in task.samples) >= 2_000_000 * len(task.samples)
            assert task.cpu_ns is not None
            assert task.cpu_ns < task.ns
            assert task.collate is not None
            assert task.ended <= step.wait.ended
            if task.worker >= 0:
                assert task.dispatched is not None
                assert task.arrived is not None
                assert step.batch.drawn is not None
                assert step.batch.drawn.begun <= task.begun
                assert task.ended <= task.arrived <= step.wait.ended
    assert workers <= ({0, 1} if arguments["num_workers"] else {-1})


@pytest.mark.thorough
def test_workers_whose_environment_was_cleared_are_missing_and_not_idle(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        if __name__ == "__main__":
            del os.environ["FASTLOAD_PROFILE"]
            print(len(list(DataLoader(Slow(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))))
        """,
    )
    done = profile(tmp_path, "train.py")
    assert (done.status, done.output) == (0, "6\n"), done.errors
    assert "wrote nothing" in done.trace.missing["what workers do"]
    assert [step.batch.tasks for step in done.trace.ranks[0].steps] == [[]] * 6


def test_a_module_is_recorded_with_its_arguments_and_its_input_and_modules_are_its_own(tmp_path: Path) -> None:
    names = ("resource", "records", "ring", "observe", "trace")
    for name in names:
        (tmp_path / f"{name}.py").write_text("OWN = 1")
    write(
        tmp_path,
        f"""
        import {", ".join(names)}

        if __name__ == "__main__":
            assert all(module.OWN for module in ({", ".join(names)}))
            print(sys.argv[1:], sys.stdin.read(), len(list(DataLoader(Slow(), batch_size=12))))
            print("careful", file=sys.stderr)
            sys.exit(17)
        """,
        "package/train.py",
    )
    done = profile(tmp_path, "-m", "package.train", "--steps", "3", input="words")
    assert (done.status, done.output) == (17, "['--steps', '3'] words 2\n")
    assert done.errors.startswith("fastload profile: records the script until it ends\ncareful\n")
    assert done.errors.splitlines()[-1] == f"page: {Path('recording', 'profile.html')}"
    assert len(done.trace.ranks[0].steps) == 2


def test_a_script_that_has_a_json_of_its_own_imports_that(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "json.py").write_text("OWN = 1")
    (tmp_path / "own" / "train.py").write_text("import json; print(json.OWN)")
    assert profile(tmp_path, Path("own", "train.py")).output == "1\n"


ENDS = {
    "raise KeyError('mine')": 1,
    "os._exit(4)": 4,
    "os.kill(os.getpid(), signal.SIGKILL)": 137,
    "os.abort()": 134,
}


@pytest.mark.parametrize("end", ENDS)
def test_however_a_script_ends_what_was_recorded_stands(tmp_path: Path, end: str) -> None:
    path = write(
        tmp_path,
        f"""
        if __name__ == "__main__":
            for number, batch in enumerate(DataLoader(Slow(), batch_size=4, num_workers=1)):
                print(number, flush=True)
                if number == 3:
                    {end}
        """,
    )
    done = profile(tmp_path, path)
    assert (done.status, done.output) == (ENDS[end], "0\n1\n2\n3\n")
    (rank,) = done.trace.ranks
    assert [indices_of(step) for step in rank.steps] == [list(range(place, place + 4)) for place in range(0, 16, 4)]
    if "raise" in end:
        assert "KeyError: 'mine'" in done.errors
        traceback = done.errors.partition("Traceback")[2].partition("KeyError")[0]
        assert traceback
        assert "fastload" not in traceback


def test_a_worker_that_is_killed_leaves_its_records_and_torchs_error(tmp_path: Path) -> None:
    # Not before both batches have been read: what they share memory by is sent by a thread of the worker.
    path = write(
        tmp_path,
        """
        class Dying(Slow):
            def __getitem__(self, index):
                if index == 9:
                    while not os.path.exists("1"):
                        time.sleep(0.001)
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().__getitem__(index)

        if __name__ == "__main__":
            os.chdir(os.path.dirname(os.path.abspath(__file__)))
            for number, batch in enumerate(DataLoader(Dying(), batch_size=4, num_workers=1)):
                open(str(number), "w").close()
        """,
    )
    done = profile(tmp_path, path)
    assert done.status == 1
    # torch says the one if it hears of the worker's end first, the other if it finds it.
    assert re.search(r"DataLoader worker \(pid\S* \d+\) (is killed by signal: Killed|exited unexpectedly)", done.errors)
    assert [indices_of(step) for step in done.trace.ranks[0].steps] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.thorough
def test_what_a_script_begins_in_its_midst_is_recorded_apart_from_it(tmp_path: Path) -> None:
    script = """
        for number, batch in enumerate(DataLoader(Slow(), batch_size=4)):
            if number == 2 and len(sys.argv) == 1:
                child = os.fork()
                if not child:
                    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
                assert os.waitpid(child, 0)[1] == 0
        """
    done = profile(tmp_path, write(tmp_path, script))
    assert done.status == 0, done.errors
    found = [[indices_of(step) for step in rank.steps] for rank in done.trace.ranks]
    assert found == 2 * [[list(range(place, place + 4)) for place in range(0, 24, 4)]]


@pytest.mark.thorough
def test_ranks_that_a_script_starts_itself_have_their_numbers(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        import torch.distributed, torch.multiprocessing

        def train(rank):
            torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
            for batch in DataLoader(Slow(), batch_size=12, num_workers=1):
                torch.distributed.barrier()
            torch.distributed.destroy_process_group()

        if __name__ == "__main__":
            torch.multiprocessing.start_processes(train, nprocs=2, start_method="fork")
        """,
    )
    done = profile(tmp_path, path, tmp_path / "meeting")
    assert done.status == 0, done.errors
    assert [(rank.rank, len(rank.steps)) for rank in done.trace.ranks] == [(0, 2), (1, 2)]


ENDLESS = """
if __name__ == "__main__":
    for epoch in range(3):
        for batch in DataLoader(Slow(), batch_size=4, num_workers=1):
            if epoch == 0:
                {spoil}
    print("trained")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ("import shutil; shutil.rmtree('recording', ignore_errors=True)", "[Errno 2]"),
        ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))", "[Errno 27] File too large"),
    ],
    ids=["the folder goes", "the disk is full"],
)
def test_a_folder_that_cannot_be_written_to_does_not_disturb_the_script(tmp_path: Path, spoil: str, error: str) -> None:
    done = profile(tmp_path, write(tmp_path, ENDLESS.format(spoil=spoil)))
    assert done.output == "trained\n"
    assert f"is no longer recorded: {error}" in done.errors


def test_folders_that_are_made_in_the_same_second_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({command._new_folder() for _ in range(4)}) == 4


@pytest.mark.parametrize(("status", "expected"), [(0, 2), (7, 7)])
def test_where_nothing_was_recorded_the_status_is_2_unless_the_script_has_its_own(
    tmp_path: Path, status: int, expected: int
) -> None:
    (tmp_path / "plain.py").write_text(f"import sys; assert 'torch' not in sys.modules; raise SystemExit({status})")
    done = profile(tmp_path, "plain.py")
    assert done.status == expected
    assert "no DataLoader was iterated over" in done.errors
    assert "damaged" not in done.errors
    assert not done.folder.exists()


@pytest.mark.thorough
def test_a_script_that_closes_all_files_goes_on(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        import os
        for number, batch in enumerate(DataLoader(Slow(), batch_size=4)):
            if number == 1:
                os.closerange(3, 256)
        print(number)
        """,
    )
    done = profile(tmp_path, path)
    assert (done.status, done.output) == (0, "5\n"), done.errors
    assert len(done.trace.ranks[0].steps) == 6
