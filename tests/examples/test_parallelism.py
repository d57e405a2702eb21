"""The small examples of examples/parallelism: each is run, and what it prints is what its docstring claims."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scripts import PARALLELISM, REPOSITORY, run, run_as_torchrun

pytestmark = pytest.mark.slow

FOLDER = REPOSITORY / PARALLELISM
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "common"))
OTHERS = {"deterministic_flags", "init_methods", "launch_by_name", "worker_memory"}
"""They have tests of their own."""
SMALL = r"(?:0(?:\.0)?e\+00|\d(?:\.\d)?e-(?:0[6-9]|[1-9]\d))"
"""A number below 1e-5."""


def others(start: int, *steps: int) -> str:
    """Return a pattern of the list of these four indices, and of others that begin at ``steps``."""
    return re.escape(str([index for first in (start, *steps) for index in range(first, first + 4)]))


# Arguments of the script; ranks; what its first rank prints, in this order. The other ranks print nothing.
CASES: dict[str, tuple[str, int, list[str]]] = {
    "batch_size_sweep": (
        "--seeds 1 --threads 1 --workers 0 --batch-sizes 32,128 --epochs 1 --limit-batches 2 --norm none",
        1,
        [r"\| 32 \| 0\.0125 \| [\d.]+ \| [\d.]+ ± 0\.0 \| 1 \| - \|", r"\| 128 \| 0\.05 \|.*\| 1 \| 95\.3 \|"],
    ),
    "batch_split": (
        "--batch-size 10",
        2,
        [
            r"torch\.DistributedSampler +a rank gets \[10, 10\], a step has 20",
            r"fastload\.DistributedSampler +a rank gets \[10, 10\], a step has 20",
            r"fastload\.DistributedBatchSampler +a rank gets \[5, 5\], a step has 10",
        ],
    ),
    "compile_and_export": (
        "",
        1,
        [
            r"torch\.jit\.trace: +\[True, False\], warns: .*TracerWarning",
            r"torch\.compile: +\[True, True\]",
            r"torch\.export: +(?!none)\w+",
            r"with torch\.cond: +\[True, True, True\], saved and loaded",
        ],
    ),
    "cross_entropy": (
        "",
        1,
        [
            r"ignored classes do not count +(\d\.\d{11})\d \1\d",
            r"classes of torch\.int64 +accepted",
            r"perfect prediction: 0\.000; with a softmax before: 0\.905",
        ],
    ),
    "data_parallel": ("", 1, [rf"gradients: {SMALL} apart", rf"their sum: +{SMALL}", r"their mean: +\d\.\de-01"]),
    "data_vs_model_parallel": (
        "--batch-size 4 --micro-batches 2 --repeats 1 --device cpu",
        2,
        ["one process", "data parallel", "model parallel", r"2 micro-batches \(1F1B\)", r" 0\.00 s of it by two ranks"],
    ),
    "ddp_invariants": (
        "--device cpu",
        2,
        [
            r"before: 6 of 11 tensors differ between the ranks, the first is '0\.weight'",
            "wrapped: all equal",
            r"ten steps later: 2 of 11 tensors differ between the ranks, the first is '1\.running_mean'",
            "statistics for all: all 11 tensors equal",
        ],
    ),
    "ddp_toy": ("", 2, [rf"2 ranks: 0\.0e\+00 between ranks, {SMALL} from one process"]),
    "gradient_accumulation": (
        "",
        2,
        [
            rf"around forward and backward +3 messages +{SMALL}",
            rf"around backward only +11 messages +{SMALL}",
            rf"no no_sync +11 messages +{SMALL}",
            r"also in the short window +3 messages +\de-0[1-3]",
        ],
    ),
    "head_of_line": (
        "",
        1,
        [
            rf"torch, while sample 0 is blocked: +{others(4, 12)}",
            rf"in_order=False gives first: +{others(4)}",
            rf"fastload, sample 0 is blocked: +{re.escape(str(list(range(1, 16))))}",
        ],
    ),
    "mixed_precision": (
        "",
        1,
        [
            "outputs torch.bfloat16  loss torch.float32  weights torch.float32  gradients torch.float32",
            "outputs torch.float16  loss torch.float32  weights torch.float32  gradients torch.float32",
            r"after an overflow: weights unchanged, scale 1024\.0 -> 512\.0",
            r"after unscale_: norm .*, a step of 1$",
            r"without unscale_: norm .*, a step of 0\.000977$",
        ],
    ),
    "optimizer_after_to": (
        "",
        1,
        [
            r"before to\(dtype\) +still right",
            "before channels-last +still right",
            "before SyncBatchNorm +still right",
            "before to_empty +updates parameters that the model no longer has",
            "before another layer +updates parameters that the model no longer has",
            r"torch\.float32; after load_state_dict: torch\.float64",
        ],
    ),
    "packed_sequences": (
        "",
        1,
        [r"62 steps: 0\.[0-6]", "padding: 69%; in buckets 3%", r"1 ranks: \[62\]", r"4 ranks: \[62, 62, 62, 62\]"],
    ),
    "pipeline_by_hand": (
        "--network resnet18 --batch-size 4 --side 32 --split-sizes 4,2 --repeats 1",
        1,
        [r"\| 4 \| 1 \|.*\| 1\.00 \|", r"\| 2 \| 2 \|.*\| 0\.75 \|"],
    ),
    "pipeline_schedules": (
        "--micro-batches 1,4 --batch-size 4 --repeats 1 --device cpu",
        2,
        [rf"\| GPipe \| 1 \|.*\| {SMALL} \|", rf"GPipe \| 4 \|.*\| 4 \| {SMALL}", rf"1F1B \| 4 \|.*\| 2 \| {SMALL}"],
    ),
    "producer_consumer": ("", 1, [r"one after the other: \d+ ms", r"ahead, a queue of 2: \d+ ms"]),
    "scaling": (
        "--batch-size 16 --repeats 2",
        2,
        [rf"\| {name}: .*\| 2: [\d,]+ \| [\d.]+ \| [\d,]+ \|" for name in ("tiny", "larger")],
    ),
    "send_receive": (
        "--device cpu",
        2,
        [rf"rank {rank}: gradients {SMALL} off, 3 messages in the first step, 2 in the second" for rank in range(2)],
    ),
    "send_receive on four ranks": (
        "--device cpu --network mobilenet",
        4,
        [rf"rank {rank}: gradients {SMALL} off, {6 if rank in (1, 2) else 3} messages" for rank in range(4)],
    ),
    "sparse_gradients": (
        "",
        2,
        [
            r"averaged gradient: torch\.sparse_coo, (?:1[7-9]|2\d|3[0-2]) of 1000 rows",
            r"farthest from the mean of the dense ones: 0e\+00",
            *(f"{name}: steps" for name in ("SGD", "Adagrad", "SparseAdam")),
            "Adam: Adam does not support sparse gradients",
            "two kinds of devices: .*input module must be on the same type of devices",
        ],
    ),
    "weighted_sampling": ("", 1, [r"expected 0\.000 0\.125 0\.250 0\.625", r"drawn +0\.000 0\.125 0\.259 0\.616"]),
    "worker_count": (
        "",
        1,
        [r"fastload: (\w+), (\w+)\n(?:\d workers.*: \1, \2\n){3}(?:\d ranks.*order \1, drawn \2\n){3}"],
    ),
    "zero_copy": (
        "",
        1,
        [
            r"torch\.tensor\(array\) +copies",
            r"torch\.from_numpy\(array\) +shares",
            r"tensor\.view\(-1\) +shares",
            r"tensor\.reshape\(-1\) +shares",
            r"tensor\.t\(\)\.reshape\(-1\) +copies",
            r"tensor\.clone\(\) +copies",
            r"one number of a million: 4,\d{3},\d{3} bytes; cloned: \d,\d{3}$",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_script_prints_what_its_docstring_claims(case: str, tmp_path: Path) -> None:
    arguments, num_ranks, expected = CASES[case]
    script = PARALLELISM / f"{case.split()[0]}.py"
    printed, *silent = run_as_torchrun(script, *arguments.split(), folder=tmp_path, num_ranks=num_ranks)
    assert silent == [""] * (num_ranks - 1)
    place = 0
    for pattern in expected:
        found = re.compile(pattern, re.MULTILINE).search(printed, place)
        assert found, f"{pattern} is not in\n{printed}"
        place = found.end()


def test_every_example_is_run_has_a_row_in_the_list_and_says_its_command_and_what_was_measured() -> None:
    assert sorted({case.split()[0] for case in CASES} | OTHERS) == EXAMPLES
    readme = (FOLDER / "README.md").read_text()
    assert not [link for link in re.findall(r"\]\(([^)]+)\)", readme) if not (FOLDER / link).exists()]
    for name in EXAMPLES:
        assert f"]({name}.py)" in readme
        opening = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
        command = rf"^    (python|torchrun.*) (examples/parallelism/{name}\.py|-m examples\.parallelism\.{name})\b"
        assert re.search(command, opening, re.MULTILINE), name
        assert "the notes" in opening.lower(), name
        assert re.search(r"^Measured", opening, re.MULTILINE), name


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        (PARALLELISM / "ddp_toy.py", "--spawn", "2"),
        ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", PARALLELISM / "ddp_toy.py"),
    ],
    ids=["spawn", "torchrun"],
)
def test_ranks_are_started_by_spawn_and_by_torchrun(command: tuple[str | Path, ...]) -> None:
    assert re.search(CASES["ddp_toy"][2][0], run(*command))


def test_a_script_that_is_started_by_its_path_finds_its_neighbours_and_a_module_its_package() -> None:
    name = "examples.parallelism.launch_by_name"
    assert run(PARALLELISM / "launch_by_name.py") == (
        "rank 0: package None, sys.path[0] examples/parallelism, import common: found\n"
    )
    assert run("-m", name) == "rank 0: package examples.parallelism, sys.path[0] ., import common: not found\n"


def test_weights_are_the_same_for_another_number_of_workers_and_not_for_another_seed(tmp_path: Path) -> None:
    script = PARALLELISM / "deterministic_flags.py"
    settings = [("--seed", "1", "--workers", "2"), ("--seed", "1", "--workers", "0"), ("--seed", "2", "--workers", "0")]
    lines = [run_as_torchrun(script, *words, folder=tmp_path, num_ranks=1)[0].splitlines() for words in settings]
    assert lines[0] == lines[1]
    assert lines[0][0] != lines[2][0]
    assert lines[0][1] == "new memory holds [nan, nan]"
    assert "does not have a deterministic implementation" in lines[0][2]


def test_a_list_is_copied_into_each_worker_and_an_array_stays_shared(tmp_path: Path) -> None:
    from worker_memory import LETTERS, MIB, NUM

    (printed,) = run_as_torchrun(PARALLELISM / "worker_memory.py", folder=tmp_path, num_ranks=1)
    own: dict[str, list[float]] = {"a list of strings": [], "one array": []}
    for kind, *sizes in re.findall(r"^(.+?) +worker \d: RSS +(\S+) MiB PSS +(\S+) MiB USS +(\S+) MiB$", printed, re.M):
        rss, pss, uss = map(float, sizes)
        assert rss > pss > uss > 0
        own[kind].append(uss)
    assert [len(workers) for workers in own.values()] == [2, 2]
    assert min(own["a list of strings"]) > max(own["one array"]) + 0.8 * NUM * LETTERS / MIB  # of the letters alone
