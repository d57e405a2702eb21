"""What a run reports: times, the log, TensorBoard."""

from __future__ import annotations

import json
import resource
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from training.errors import RunError, UsageError
from training.metrics import Throughput, Timer, peak_flops
from training.reporting import Log


def test_the_peak_is_given_or_unknown_on_the_cpu() -> None:
    assert peak_flops(torch.device("cpu"), "fp32", None) == 0
    assert peak_flops(torch.device("cpu"), "bf16", 0.5) == 0.5e12


def test_the_log_is_appended_to_and_tensorboard_gets_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "board")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    for step in (1, 2):
        log = Log(tmp_path / "log.jsonl", tmp_path / "board")
        log.write("epoch", step=step, loss=0.5, waits=[0.1, 0.2], name="x")
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0] == {"kind": "epoch", "step": 1, "loss": 0.5, "waits": [0.1, 0.2], "name": "x"}
    assert written == [("epoch/loss", 0.5, 1), ("closed", 0, 0), ("epoch/loss", 0.5, 2), ("closed", 0, 0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_null_in_the_log(tmp_path: Path, value: float) -> None:
    log = Log(tmp_path / "log.jsonl", None)
    log.write("step", step=1, loss=value)
    log.close()
    assert (tmp_path / "log.jsonl").read_text() == '{"kind": "step", "step": 1, "loss": null}\n'


def test_a_missing_tensorboard_and_a_log_that_cannot_be_written_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="--tensorboard needs TensorBoard: pip install tensorboard"):
        Log(None, tmp_path)
    with pytest.raises(UsageError, match=r"--json must be a writable file, .+ Is a directory"):
        Log(tmp_path, None)
    log = Log(Path("/dev/full"), None)
    with pytest.raises(RunError, match=r"the log '/dev/full' cannot be written: No space left on device"):
        log.write("step", step=1)
    log.close()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    log, path = Log(tmp_path / "log.jsonl", None), tmp_path / "log.jsonl"
    log.write("step", step=1)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(RunError, match="cannot be written: File too large; free some space"):
            log.write("step", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    log.close()


def test_the_wait_is_the_time_from_requesting_to_receiving_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 15.0, 15.5, 20.0])
    monkeypatch.setattr("training.metrics.time.perf_counter", lambda: next(times))
    timer = Timer()  # at 10, and requests the first batch
    timer.batch_received()
    assert timer.received == 11.0
    timer.batch_requested()  # at 15, after a step
    timer.batch_received()
    assert timer.received == 15.5
    assert timer.waited == 1.5
    assert timer.seconds == 10.0


def test_the_slowest_rank_counts_for_the_throughput() -> None:
    speed = Throughput.of_ranks(600, [(2.0, 0.5), (3.0, 0.1)], image_flops=1e9, peak=1e12)
    assert (speed.images_per_s, speed.seconds, speed.waited) == (200.0, 3.0, 0.5)
    assert speed.data_wait_of_ranks == pytest.approx((0.25, 0.1 / 3))
    assert speed.utilisation == pytest.approx(600e9 / 3 / 2e12)
    assert str(speed) == "    200 images/s   data wait  16.7%   MFU 10.0%"
