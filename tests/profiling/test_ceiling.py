"""``--ceiling``: after the steps that count, as many with batches from a cache. Real scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiled import profile, write

from fastload import cli
from fastload.profiling.hooks.stopping import StepLimit

SCRIPT = """
seen = 0
try:
    while True:
        for batch in DataLoader(Slow(), batch_size=2):
            seen += 1
            time.sleep(0.002)
finally:
    print(seen, "steps")
"""


@pytest.mark.slow
def test_the_loop_goes_on_with_cached_batches_and_their_steps_are_the_bound(tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT.replace("Slow()", "Slow(0.05)"))
    done = profile(tmp_path, script, options=("--steps", "10", "--warmup", "5", "--ceiling", "4"))
    assert (done.status, done.output) == (0, "25 steps\n"), done.errors
    (rank,) = done.trace.ranks
    assert len(rank.steps) == 15, "those with cached batches are no steps of the loader's"
    assert rank.steps[-1].loop_ns is not None
    assert rank.steps[-1].loop_ns < 80e6, "it ends where the first cached batch is asked for"
    assert rank.ceiling_ns is not None
    assert 2e6 < rank.ceiling_ns < 80e6, "the loop's 2 ms, without the 100 ms that a batch takes"


def test_it_cannot_follow_a_run_that_has_no_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["profile", "--full", "--ceiling", "4", "train.py"])
    assert "not allowed with argument --full" in capsys.readouterr().err


@pytest.mark.slow
def test_the_status_is_the_scripts_where_the_reports_cannot_be_written(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        list(DataLoader(torch.arange(4)))
        os.mkdir("recording/profile.json")
        raise SystemExit(7)
        """,
    )
    done = profile(tmp_path, script, options=())
    assert done.status == 7
    assert "fastload profile: [Errno" in done.errors
    assert "Traceback" not in done.errors


def test_cached_batches_are_given_in_turns_the_oldest_first() -> None:
    stopping = StepLimit(3, cached=2, again=5)
    for batch in "abc":
        assert stopping.cached() is None
        stopping.count(batch)
    assert [stopping.cached() for _ in range(5)] == [("b",), ("c",), ("b",), ("c",), ("b",)]
    with pytest.raises(SystemExit) as ended:
        stopping.cached()
    assert ended.value.code == 0
