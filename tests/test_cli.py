"""The ``fastload`` command: what it runs is what would have run without it, but for the loader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastload import cli

FASTLOAD = [sys.executable, "-m", "fastload"]

LOAD = """
import json, torch
from torch.utils.data import DataLoader

def load():
    loader = DataLoader(torch.arange(6), batch_size=2)
    list(loader)
    return [type(loader).__module__, type(loader).__name__, loader.statistics().batches]
"""
LOADED_BY_US = ["fastload.loader", "DataLoader", 3]

Script = Callable[[str, str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Write a file into a fresh folder, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


def execute(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)


def fastload_run(*arguments: object, **options: Any) -> str:
    """Return the standard output of a ``fastload run`` that must succeed."""
    done = execute(*FASTLOAD, "run", *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


DESCRIBE = """
import json, sys
import __main__

print(json.dumps([
    sys.argv, sys.path, sys.orig_argv[1:], sys.executable, sys.flags, __name__, __file__, __package__,
    sorted(vars(__main__)), [type(finder).__name__ for finder in sys.meta_path if "waits for" not in str(finder)],
]))
"""


@pytest.mark.interpreter
def test_an_unmodified_script_loads_with_our_class_which_is_imported_with_the_first_loader(script: Script) -> None:
    text = """
    import sys
    facts = {"before": "fastload" in sys.modules, "loaded": load(), "after": "fastload" in sys.modules}
    module = sys.modules["torch.utils.data.dataloader"]
    facts["finders"] = [str(finder) for finder in sys.meta_path]
    facts["loader"] = [sorted(vars(module.__loader__)), module.__loader__ is module.__spec__.loader]
    print(json.dumps(facts))
    """
    script("train.py", LOAD + textwrap.dedent(text))
    facts = json.loads(fastload_run("train.py"))
    assert facts["loaded"] == LOADED_BY_US
    assert (facts["before"], facts["after"]) == (False, True)
    # The import system is as plain Python has it; some finders wait for torchdata, Accelerate and Lightning.
    assert not [finder for finder in facts["finders"] if "torch.utils" in finder]
    assert facts["loader"] == [["name", "path"], True]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["train.py", "./train.py", "package/main.py", "-m package.main", "package"])
def test_the_script_sees_the_process_that_plain_python_would_give_it(script: Script, target: str) -> None:
    for name in ("train.py", "package/main.py", "package/__main__.py"):
        script(name, DESCRIBE)
    words = [*target.split(), "--epochs", "3", "-m", "--", "--report", "a b"]
    assert fastload_run(*words) == execute(sys.executable, *words).stdout != ""


@pytest.mark.slow
def test_the_status_and_the_streams_are_the_scripts_own_and_without_torch_nothing_is_imported(script: Script) -> None:
    text = """
    import sys
    print(sys.stdin.read().upper(), {name.split(".")[0] for name in sys.modules} & {"torch", "fastload"})
    print("careful", file=sys.stderr)
    sys.exit(17)
    """
    script("echo.py", text)
    done = execute(*FASTLOAD, "run", "echo.py", input="words")
    assert (done.returncode, done.stdout, done.stderr) == (17, "WORDS set()\n", "careful\n")


@pytest.mark.slow
def test_a_program_gets_the_broken_pipe_signal_as_from_a_shell() -> None:
    said = fastload_run("--", "bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert said.split() == ["y", str(128 + signal.SIGPIPE)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_load_with_our_class_and_the_same_options_too(script: Script, method: str) -> None:
    text = (
        LOAD
        + f"""
import multiprocessing

def child(answer):
    answer.send([*load(), DataLoader([1]).seed])

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    print(json.dumps([*here.recv(), DataLoader([1]).seed]))
    process.join()
"""
    )
    script("parent.py", text)
    environment = os.environ | {"FASTLOAD_LOADER": "seed=2,seeding=sample"}
    printed = fastload_run("--seed", "1", "parent.py", env=environment)
    assert json.loads(printed) == [*LOADED_BY_US, 1, 1]


@pytest.mark.thorough
def test_every_process_of_torchrun_loads_with_our_class(script: Script) -> None:
    script("train.py", LOAD + "import os; open(f'rank{os.environ[\"RANK\"]}', 'w').write(json.dumps(load()))")
    torchrun = Path(sys.executable).with_name("torchrun")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    fastload_run("--", torchrun, "--standalone", "--nproc-per-node=2", "train.py", env=environment)
    assert [json.loads(Path(f"rank{rank}").read_text()) for rank in range(2)] == [LOADED_BY_US] * 2


@pytest.mark.slow
def test_the_users_own_sitecustomize_is_executed_as_ever(script: Script) -> None:
    script("site/sitecustomize.py", "import sys; sys.user_was_here = (__name__, __file__)")
    script("look.py", "import sys, sitecustomize; print(sys.user_was_here, sitecustomize.__file__, sys.path)")
    environment = os.environ | {"PYTHONPATH": str(Path("site").resolve())}
    plain = execute(sys.executable, "look.py", env=environment)
    assert fastload_run("look.py", env=environment) == plain.stdout != ""


@pytest.mark.slow
def test_where_fastload_cannot_be_imported_a_warning_says_that_torchs_loader_stays(script: Script) -> None:
    text = """
    import sys, torch
    sys.modules["fastload"] = None
    loader = torch.utils.data.DataLoader([1, 2])
    print(type(loader).__module__, len(list(loader)))
    """
    script("without.py", text)
    done = execute(*FASTLOAD, "run", "without.py")
    assert done.stdout.split() == ["torch.utils.data.dataloader", "2"]
    assert "fastload run: torch's DataLoader stays" in done.stderr
    assert "install fastload in that environment" in done.stderr


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("profle train.py", "no such command: profle; did you mean profile?"),
        ("verfy", "no such command: verfy; did you mean verify?"),
        ("Tune train.py", "no such command: Tune; did you mean tune?"),
        ("train.py", "no such command: train.py; there are run, verify, "),
        ("run --sed 1 train.py", "no such option: --sed; did you mean --seed?"),
        ("tune --second=4 train.py", "no such option: --second=4; did you mean --seconds?"),
        ("run --num-workers 4 train.py", "no such option: --num-workers; there are --help, --report, "),
        ("verify --methods pigeon train.py", "argument --methods: "),
        ("verify --json no/x train.py", "must be a file in an existing folder, or '-', got 'no/x'"),
        ("verify --batches 0 train.py", "must be a positive integer, got '0'"),
        ("tune --seconds inf train.py", "must be a positive integer, got 'inf'"),
        *(("", f"\n    {verb} ") for verb in ("run", "verify", "pack", "explain", "doctor")),
    ],
)
def test_a_slip_in_writing_is_answered_by_what_was_meant_and_no_word_by_the_list_of_commands(line, hint, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert hint in said
    assert "usage: fastload" in said


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word() -> None:
    code = """
    import sys
    from fastload import cli

    def doctor(options):
        "Say much."
        print("words " * 100_000)
        return 0

    cli.doctor = doctor
    sys.exit(cli.main(["doctor"]))
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.interpreter
def test_help_the_version_and_the_doctors_own_process_import_no_torch() -> None:
    code = """
    import contextlib, sys
    import fastload, fastload.errors
    from fastload.cli import main
    for arguments in ([], ["--help"], ["--version"], ["run", "--help"], ["pack", "--help"]):
        with contextlib.suppress(SystemExit):
            main(arguments)
    import fastload.doctor.command
    print([name for name in ("torch", "numpy", "PIL", "rich", "pyarrow") if name in sys.modules])
    """
    done = execute(sys.executable, "-W", "error", "-c", textwrap.dedent(code))
    assert done.stdout.splitlines()[-1] == "[]"
    assert "usage: fastload run" in done.stdout


# A line, the user's command in it, and the value of fuse: "true" where it is left out.
LINES = [
    ("run a.py --report", "a.py --report", None),
    ("run --report a.py -- b", "a.py -- b", None),
    ("run -m a --report", "-m a --report", None),
    ("run --report -- a -m", "-- a -m", None),
    ("run --report", "", None),
    ("run a.py --fuse", "a.py --fuse", None),
    ("run --fuse a.py", "a.py", "true"),
    ("run --fuse --report a.py", "a.py", "true"),
    ("run --fuse false a.py", "a.py", "false"),
    ("run --fuse=auto a.py --fuse true", "a.py --fuse true", "auto"),
    ("run --seed 1 --fuse auto -m true", "-m true", "auto"),
]


@pytest.mark.parametrize(("line", "command", "fuse"), LINES)
def test_the_user_command_begins_at_the_first_word_that_is_no_option_nor_its_value(line, command, fuse):
    parser, verbs = cli._parsers()
    own, rest = cli.split_command(line.split(), verbs)
    assert rest == command.split()
    assert parser.parse_args(own).fuse == fuse


REPORTED = """
import torch
from torch.utils.data import DataLoader

class Mine(DataLoader):
    pass

def train():
    for _ in range(2):
        list(Mine(torch.arange(6), batch_size=2))

if __name__ == "__main__":
    train()
    kept = DataLoader(torch.arange(6), batch_size=3, num_workers=1)
    list(kept)
    list(kept)
    never = DataLoader(torch.arange(6))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "variables"),
    [(["--report"], {}), ([], {"FASTLOAD_REPORT": "1"}), (["--report"], {"RANK": "3"}), ([], {})],
    ids=["argument", "variable", "rank", "not asked"],
)
def test_the_report_has_a_line_for_each_loader_that_iterated(script, options, variables):
    script("train.py", REPORTED + "    raise SystemExit('stopped')")
    done = execute(*FASTLOAD, "run", *options, "train.py", env=os.environ | variables)
    assert (done.returncode, done.stdout) == (1, "")
    reported = [
        "Mine: 3 batches, 6 samples, no workers",
        "Mine: 3 batches, 6 samples, no workers",
        "DataLoader: 4 batches, 12 samples, 1 worker (multiprocessing)",
    ]
    rank = "rank 3: " if variables.keys() == {"RANK"} else ""
    asked = options or variables
    told = [line.partition("; loading: ")[0] for line in done.stderr.splitlines()]
    assert told == ["stopped", *(f"fastload: {rank}{line}" for line in reported if asked)]
    assert done.stderr.count("; loading: ") == (len(reported) if asked else 0)


NOT_TORCHS = """
import torch
class Own:
    def __iter__(self):
        return iter(range(3))
list(Own())
torch.utils.data.DataLoader([1])  # is never iterated
"""
IN_A_CHILD = """
import multiprocessing, torch
from torch.utils.data import DataLoader
def load():
    list(DataLoader([1, 2]))
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=load)
    child.start()
    child.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [(NOT_TORCHS, 1), (IN_A_CHILD, 0), (NOT_TORCHS + "raise ValueError(1)", 0)],
    ids=["another loader", "in a child process", "an error"],
)
def test_a_run_that_replaced_nothing_says_so_once(script: Script, text: str, said: int) -> None:
    script("train.py", text)
    done = execute(*FASTLOAD, "run", "train.py")
    assert done.stderr.count("nothing was replaced: no DataLoader of torch's was iterated") == said, done.stderr
    assert done.returncode == ("ValueError" in text)
