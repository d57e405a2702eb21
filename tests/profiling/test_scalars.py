"""TensorBoard's scalars: what is written to event files is read back by TensorBoard itself."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from profile_analyses import analysis, bare, hostile, rank

from fastload import cli
from fastload.errors import ConfigError
from fastload.profiling.command import write_reports
from fastload.profiling.scalars import scalars, write_scalars


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what the event files of a folder hold."""
    pytest.importorskip("tensorboard", reason="tensorboard, which reads event files, is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_event_files_have_the_means_and_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard, which torch writes event files with, is not installed")
    one = analysis("cpu", ranks=[rank("cpu", num_steps=5)])
    write_scalars(one, str(tmp_path))
    found = read_back(tmp_path)
    assert {(tag, step) for tag, values in found.items() for step, _ in values} == {
        (tag, step) for tag, _, step in scalars(one)
    }
    for tag, value, step in scalars(one):
        assert dict(found[tag])[step] == pytest.approx(value, rel=1e-6)
    assert found["fastload/step_ms"] == [(0, pytest.approx(182.0))]
    assert [step for step, _ in found["fastload/steps/stall_ms"]] == [0, 1, 2, 3, 4]
    assert len(found["fastload/steps/loop_ms"]) == 4  # of the last nobody saw the end
    assert {tag for tag in found if "/blame_ms/" in tag} == {
        f"fastload/blame_ms/{name}" for name in ("stage/RandAugment", "stage/Decode", "sample", "collate", "run-queue")
    }


def test_fastload_report_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard, which torch writes event files with, is not installed")
    write_reports(
        analysis("read", ranks=[rank("read", number=number, num_steps=2) for number in (0, 1)]), str(tmp_path)
    )
    assert cli.main(["report", str(tmp_path), "--tensorboard", str(tmp_path / "events")]) == 0
    assert capsys.readouterr().out == ""
    found = read_back(tmp_path / "events")
    assert found["fastload/rank1/blame_ms/read"] == [(0, pytest.approx(182 * 0.41 * 0.71))]
    assert found["fastload/overhead"] == [(0, pytest.approx(0.004))]


def test_a_file_beside_tensorboards_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path), "--tensorboard", str(tmp_path / "a"), "-o", str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.startswith("fastload report: -o cannot be combined with --tensorboard, ")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_known_is_left_out_and_tags_are_such_as_tensorboard_takes() -> None:
    assert {tag for tag, _, _ in scalars(bare())} == {
        f"fastload/{name}" for name in ("step_ms", "compute_ms", "stall", "head_of_line")
    }
    for tag, _, _ in scalars(hostile()):
        assert all(one.isascii() and (one.isalnum() or one in "-_./") for one in tag), tag


def test_without_tensorboard_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError("No module named 'tensorboard'")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"need the package tensorboard: .*; install it, or ask for --json"):
        write_scalars(analysis("read"), str(tmp_path))
    write_reports(analysis("read"), str(tmp_path))
    assert cli.main(["report", str(tmp_path), "--tensorboard", str(tmp_path / "events")]) == 1
    assert "fastload report: scalars in" in capsys.readouterr().err
