"""``fastload profile`` in real processes: what is recorded, whatever becomes of them, and that they stay their own."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from profiled import check_batches, indices_of, profile, write

from fastload.profiling import command

pytestmark = pytest.mark.slow

LOADERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "forkserver"},
    {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
]
BATCHES = [list(range(place, place + 4)) for place in range(0, 24, 4)]


def test_every_batch_of_a_module_is_told_and_its_arguments_input_and_modules_are_its_own(tmp_path: Path) -> None:
    names = ("resource", "records", "ring", "observe", "trace")
    for name in names:
        (tmp_path / f"{name}.py").write_text("OWN = 1")
    write(
        tmp_path,
        f"""
        import {", ".join(names)}

        if __name__ == "__main__":
            assert all(module.OWN for module in ({", ".join(names)}))
            for arguments in {LOADERS}:
                loader = DataLoader(Slow(), batch_size=4, **arguments)
                for epoch in range(2):
                    for batch in loader:
                        assert batch.shape == (4, 4)
                del loader
            print(sys.argv[1:], sys.stdin.read())
            print("careful", file=sys.stderr)
            sys.exit(17)
        """,
        "package/train.py",
    )
    done = profile(tmp_path, "-m", "package.train", "--steps", "3", input="words")
    assert (done.status, done.output) == (17, "['--steps', '3'] words\n"), done.errors
    assert done.errors.startswith("fastload profile: records the script until it ends\n")
    assert "careful\n" in done.errors
    assert done.errors.splitlines()[-1] == f"page: {Path('recording', 'profile.html')}"
    assert done.trace.missing == {}
    steps = done.rank.steps
    assert len(steps) == 12 * len(LOADERS)
    for number, arguments in enumerate(LOADERS):
        check_batches(steps[12 * number : 12 * number + 12], 2 * BATCHES, arguments["num_workers"])
    (explained,) = done.analysis.ranks
    assert explained.verdict.sentence[:20] in done.errors


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
    assert [indices_of(step) for step in rank.steps] == BATCHES[:4]
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
    assert [indices_of(step) for step in done.rank.steps] == BATCHES[:2]


@pytest.mark.thorough
def test_a_script_that_closes_all_files_does_what_it_does_without_a_recording(tmp_path):
    script = """
        for number, batch in enumerate(DataLoader(Slow(), batch_size=4)):
            if number == 1:
                os.closerange(3, 256)
        print(number)
        """
    done = profile(tmp_path, write(tmp_path, script))
    assert (done.status, done.output) == (0, "5\n"), done.errors
    assert [indices_of(step) for step in done.rank.steps] == BATCHES


RANKS = """
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for epoch in range(2):
        for batch in DataLoader(Slow(), batch_size=3, num_workers=1):
            dist.barrier()
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()
"""
TORCHRUN = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "passes"), [(("--full",), [8, 8]), (("--steps", "9", "--warmup", "2"), [8, 3])], ids=["full", "ended"]
)
def test_each_rank_of_torchrun_is_recorded_and_ends_after_the_same_step(tmp_path, options, passes):
    done = profile(tmp_path, *TORCHRUN, write(tmp_path, RANKS), options=options)
    assert done.status == 0, done.errors
    # Not by lines: the two write at once.
    assert sorted(re.findall(r"rank \d is done", done.output)) == ["rank 0 is done", "rank 1 is done"] * (
        passes[1] == 8
    )
    assert [rank.rank for rank in done.trace.ranks] == [0, 1]
    for rank in done.trace.ranks:
        assert list(Counter(step.iterator for step in rank.steps).values()) == passes


def test_folders_that_are_made_in_the_same_second_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({command._new_folder() for _ in range(4)}) == 4


@pytest.mark.parametrize(("status", "expected"), [(0, 2), (7, 7)])
def test_where_nothing_was_recorded_the_status_is_2_unless_the_script_has_its_own(tmp_path, status, expected):
    (tmp_path / "plain.py").write_text(f"import sys; assert 'torch' not in sys.modules; raise SystemExit({status})")
    done = profile(tmp_path, "plain.py")
    assert done.status == expected
    assert "no DataLoader was iterated over" in done.errors
    assert "damaged" not in done.errors
    assert not done.folder.exists()
