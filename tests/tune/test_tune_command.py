"""``fastload tune``, end to end: scripts and objects as they are, in a second or two."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastload
from fastload import cli
from fastload.run.targets import Target, UsageError
from fastload.tune import runner
from fastload.tune.command import Found, chosen, loaders_in, names_in_stack
from fastload.tune.run import tune as tune_loader
from fastload.tune.search import Search

TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Waiting(Dataset):
    def __getitem__(self, index):
        time.sleep(0.004)
        return index + torch.rand(2)
    def __len__(self):
        return 10_000

def fail():
    raise ValueError("no data today")

class Failing(Waiting):
    def __getitem__(self, index):
        raise OSError("no such file")

class Exiting(Waiting):
    def __getitem__(self, index):
        sys.exit("no data today")

loaders = {name: DataLoader(data, batch_size=8) for name, data in [("a", Waiting()), ("b", Waiting())]}
failing, exiting = DataLoader(Failing()), DataLoader(Exiting())

if __name__ == "__main__":
    print("the script's own words", sys.argv[1:])
    del loaders, failing, exiting
    train_loader = DataLoader(Waiting(), batch_size=8, shuffle=True)
    if "--several" in sys.argv:
        test_loader = DataLoader(Waiting(), batch_size=16)
    try:
        for batch in train_loader:
            print("trained")
    except BaseException:  # such scripts exist
        print("caught")
    list(train_loader)
    print("went on")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    sys.modules.pop("train", None)
    yield tmp_path
    sys.modules.pop("train", None)


def tune(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastload.cli", "tune", *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_script_is_tuned_at_its_first_batch_and_trains_nothing(folder: Path) -> None:
    done = tune("--seconds", "3", "--json", "-", "train.py", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["subject"] == "train_loader, Waiting, 10,000 samples, batches of 8, train.py:30"
    assert "the script's own words ['--epochs', '3']" in done.stderr
    assert not {"trained", "went on"} & {*done.stderr.splitlines()}
    assert found["present"]["differs"] == ""
    settings = [(one["setting"], one["differs"]) for one in found["trials"]]
    assert {differs for _, differs in settings} == {""}
    with_workers = [one for one in found["trials"] if one["setting"]["num_workers"] and one["slices"]]
    assert all(one["augmentation"].startswith("the values differ: epoch 0, batch 0") for one in with_workers)
    assert all(one["as_torch"] == (one["setting"]["worker_method"] != "thread") for one in with_workers)
    assert any(one["as_torch"] for one in with_workers)
    # How fast they are is the machine's business; what is recommended was faster each time, or as good as.
    assert (found["best"] is None) == (found["recommended"] == {})
    assert found["best"] is None or found["best"]["gain"]["low"] > 1.0


def test_the_notes_begin_with_the_transform_that_takes_most_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched, and the times are given."""
    monkeypatch.setattr(Search, "run", lambda search: None)
    monkeypatch.setattr(runner, "measured_stages_ms", lambda batches: {"GaussianBlur": 9.0, "sample": 1.0})
    report = tune_loader(fastload.DataLoader(torch.arange(100), batch_size=8), seconds=1, subject="")
    assert report.notes[0] == "GaussianBlur takes 90 % of a sample (9.0 of 10.0 ms)"


@pytest.mark.slow
def test_of_several_loaders_without_a_terminal_all_are_listed_with_status_2(folder: Path) -> None:
    done = tune("train.py", "--several")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "fastload tune: there are 2 loaders; name one with --loader NAME or a number:",
        "  1  train_loader, Waiting, 10,000 samples, batches of 8, train.py:30",
        "  2  test_loader, Waiting, 10,000 samples, batches of 16, train.py:32",
    ]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["train.py:failing"], 1, "the loader fails as it is: OSError: no such file"),
        (["train.py:exiting"], 1, "the loader fails as it is: SystemExit: no data today"),
        (
            ["train.py:loaders"],
            2,
            "there are 2 loaders; name one with --loader NAME or a number:\n  1  loaders['a']",
        ),
        (["--loader", "c", "train.py:loaders"], 2, "'c' is no loader of this script; there are:"),
        (["train.py:fail"], 2, "train.py:fail() raised ValueError: no data today"),
        (
            ["train.py:Waiting"],
            2,
            "train.py:Waiting() is of type Waiting: no DataLoader, nor a list",
        ),
        ([], 2, "a script, -m MODULE or MODULE:NAME is missing; see fastload tune --help"),
    ],
)
def test_what_cannot_be_tuned_is_told(
    folder: Path, words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.utils.data.DataLoader.__init__
    assert cli.main(["tune", "--seconds", "1", *words]) == status
    assert torch.utils.data.DataLoader.__init__ is before
    said = capsys.readouterr().err
    assert said.startswith("fastload tune: ")
    assert message in said


@pytest.mark.parametrize("word", ["0", "soon", "inf"])
def test_seconds_that_are_none_are_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["tune", f"--seconds={word}", "train.py"])
    assert ended.value.code == 2
    assert f"must be a positive integer, got '{word}'" in capsys.readouterr().err


# -- which of several loaders ------------------------------------------------------------------------------------------


def loader() -> Any:
    return fastload.DataLoader(torch.arange(4))


FOUND = [Found(None, "train_loader", "train.py:30", "images"), Found(None, "", "train.py:31", "others")]
LISTED = "  1  train_loader, images, train.py:30\n  2  others, train.py:31"


@pytest.mark.parametrize(("wanted", "place"), [("1", 0), ("train_loader", 0), ("train.py:31", 1), ("2", 1)])
def test_a_loader_is_called_by_its_number_its_variable_or_its_line_and_the_only_one_needs_no_name(wanted, place):
    assert chosen(FOUND, wanted, None) is FOUND[place]
    assert chosen(FOUND[:1], None, None) is FOUND[0]


def test_of_several_the_user_is_asked():
    asked = []

    def ask(question: str) -> str:
        asked.append(question)
        return " 2 "

    assert chosen(FOUND, None, ask) is FOUND[1]
    assert asked == [f"There are 2 loaders:\n{LISTED}\nWhich one? [1-2] "]


def no_answer(question: str) -> str:
    raise EOFError


@pytest.mark.parametrize(
    ("found", "wanted", "ask", "message"),
    [
        (FOUND, None, None, "there are 2 loaders; name one with --loader NAME or a number:"),
        (FOUND, "3", None, "'3' is no loader of this script; there are:"),
        (FOUND, "", None, "'' is no loader"),
        (FOUND, None, no_answer, "no loader was chosen"),
        ([FOUND[0], FOUND[0]], "train_loader", None, "'train_loader' is the name of several loaders"),
    ],
)
def test_without_an_answer_all_are_listed(found, wanted, ask, message):
    with pytest.raises(UsageError, match=message) as caught:
        chosen(found, wanted, ask)
    if ask is None and found is FOUND:
        assert str(caught.value).endswith(LISTED)


def test_loaders_have_the_names_of_variables_items_and_attributes_that_hold_them():
    class Trainer:
        def __init__(self) -> None:
            self.inside = loader()

    plain, trainer = loader(), Trainer()
    by_phase, listed, nobodys = {"val": loader()}, [loader()], iter([loader()])
    unheld = next(nobodys)
    names = names_in_stack([plain, trainer.inside, by_phase["val"], listed[0]])
    assert names == {
        id(plain): "plain",
        id(trainer.inside): "trainer.inside",
        id(by_phase["val"]): "by_phase['val']",
        id(listed[0]): "listed[0]",
    }
    del unheld


def test_loaders_are_found_in_what_a_module_holds_or_returns():
    one, two = loader(), loader()
    assert loaders_in(Target(one, "data:x")) == [("x", one)]
    assert loaders_in(Target((one, 3, two), "data:make()")) == [("make()[0]", one), ("make()[2]", two)]
    assert loaders_in(Target({"a": two}, "data:x")) == [("x['a']", two)]
    with pytest.raises(UsageError, match="data:x is of type list: no DataLoader, nor"):
        loaders_in(Target([1, 2], "data:x"))
