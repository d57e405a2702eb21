"""Imports go one way; the command line stays light; the interpreter's end is borne."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastload

PACKAGE = Path(fastload.__file__).parent

# Data meets the modules in this order; a module imports only from those before it. A new module gets its place here.
ORDER = [
    "inject",
    "inject.fastload_hook",
    "inject.sitecustomize",
    "errors",
    "compat",
    "users_line",
    "defaults",
    "terminal_bar",
    "observe",
    "at_exit",
    "targets",
    "script_loaders",
    "profiling",
    "profiling.ring",
    "profiling.clocks",
    "profiling.recorder",
    "profiling.stats",
    "profiling.trials",
    "profiling.hooks",
    "profiling.hooks.patching",
    "profiling.hooks.loader_info",
    "profiling.hooks.session",
    "profiling.hooks.stages",
    "profiling.hooks.devices",
    "profiling.hooks.samples",
    "profiling.hooks.fetching",
    "profiling.hooks.stopping",
    "profiling.hooks.training_loop",
    "profiling.hooks.torch_loader",
    "profiling.hooks.fastload_loader",
    "profiling.hooks.rerun",
    "profiling.hooks.cold",
    "profiling.hooks.trials",
    "profiling.hooks.start",
    "profiling.trace",
    "profiling.recording",
    "profiling.schema",
    "profiling.workers",
    "profiling.reader",
    "profiling.formatting",
    "profiling.blame",
    "profiling.verdict",
    "profiling.overheads",
    "profiling.workload",
    "profiling.simulation",
    "profiling.changes",
    "profiling.calibration",
    "profiling.whatif",
    "profiling.analyze",
    "profiling.api",
    "profiling.pytest_plugin",
    "profiling.summary",
    "profiling.page",
    "profiling.perfetto",
    "profiling.compare",
    "profiling.scalars",
    "profiling.command",
    "profiling.whatif_command",
    "native",
    "native.generators",
    "seeding",
    "native.rows",
    "native.jpeg",
    "late.scope",
    "late.origin",
    "late.view",
    "late.source",
    "late.reading",
    "late.image",
    "late.opener",
    "late.draws",
    "late.containers",
    "late.samples",
    "late",
    "pack",
    "pack.options",
    "pack.listing",
    "pack.pixels",
    "pack.encoding",
    "pack.parts",
    "pack.description",
    "pack.tasks",
    "pack.run",
    "pack.command",
    "pack.dataset",
    "philox",
    "order",
    "shard",
    "sampling",
    "work",
    "epochs",
    "nesting",
    "sampler_generators",
    "on_error",
    "layout",
    "workers.samples",
    "workers.fetch",
    "spec",
    "resuming",
    "statistics",
    "packing",
    "page_lock",
    "slots",
    "reachable",
    "library_generators",
    "workers",
    "workers.method_patches",
    "workers.torch_routing",
    "workers.routing",
    "workers.pool",
    "workers.transport",
    "workers.worker_process",
    "private_memory",
    "workers.threads",
    "workers.pipes",
    "workers.processes",
    "cgroups",
    "memory",
    "streams",
    "resident",
    "transforms.draws",
    "transforms.params",
    "transforms.base",
    "batch_keys",
    "assembly",
    "delivery",
    "inline",
    "pinning",
    "moving",
    "transforms.batches",
    "device",
    "transforms.arguments",
    "transforms.sample",
    "transforms.steps",
    "transforms.recipe",
    "native.arrays",
    "transforms.gather",
    "transforms.resampling",
    "transforms.fused_kernel",
    "transforms.fused",
    "transforms.crop",
    "transforms.resize",
    "transforms.affine",
    "transforms.erasing",
    "transforms.chain",
    "transforms.parts",
    "transforms.values",
    "transforms.color",
    "transforms.blur",
    "transforms.jitter",
    "transforms.mix",
    "transforms.auto_geometry",
    "transforms.auto",
    "transforms.stages",
    "transforms.compose",
    "transforms.preview",
    "transforms",
    "images.base",
    "images.pillow",
    "images.torchvision_io",
    "images.native_jpeg",
    "images.nvjpeg",
    "images.choice",
    "images",
    "fusion.conversions",
    "fusion.recognition",
    "fusion.originals",
    "fusion.changes",
    "fusion.sources",
    "fusion.readers",
    "fusion.values",
    "fusion.rows",
    "fusion.stages",
    "fusion.plan",
    "fusion.parameters",
    "fusion.runner",
    "fusion.dataset",
    "fusion.encoded",
    "fusion",
    "fusing",
    "idle_slots",
    "sources",
    "residence",
    "state",
    "agreement",
    "resident_source",
    "iteration",
    "replaying",
    "exit_report",
    "adapters",
    "explaining",
    "loader",
    "images.dali_recipe",
    "images.dali_running",
    "images.dali_feeding",
    "images.dali",
    "installation",
    "verification",
    "verification.hashing",
    "verification.plan",
    "verification.report",
    "verification.copies",
    "verification.subject",
    "verification.record",
    "verification.stages",
    "verification.causes",
    "verification.culprit",
    "verification.run",
    "verification.command",
    "tune",
    "tune.settings",
    "tune.intervals",
    "tune.search",
    "tune.usage",
    "tune.runner",
    "tune.advice",
    "explain",
    "explain.tables",
    "explain.command",
    "tune.report",
    "tune.finding",
    "tune.script",
    "tune.command",
    "doctor",
    "doctor.finding",
    "doctor.images",
    "doctor.probes",
    "doctor.command",
    "testing",
    "cli",
]

# What runs when a loader is constructed, or a class replaced, and has to name the loader: inside functions only.
MAY_IMPORT_LATER = {
    ("inject.fastload_hook", "installation"),
    ("adapters", "loader"),
    ("inject.sitecustomize", "script_loaders"),
    ("inject.sitecustomize", "profiling.hooks.start"),
    ("profiling.hooks.trials", "fusing"),
    ("profiling.hooks.trials", "loader"),
    ("profiling.hooks.trials", "tune.runner"),
    ("profiling.hooks.trials", "tune.search"),
    ("profiling.hooks.trials", "cgroups"),
}

# Plain data and functions: tested with thousands of random cases, so without threads, clocks, processes or sockets.
PURE = [
    "profiling.stats",
    "profiling.trace",
    "profiling.trials",
    "profiling.schema",
    "profiling.formatting",
    "profiling.overheads",
    "profiling.workload",
    "profiling.simulation",
    "profiling.changes",
    "profiling.calibration",
    "profiling.whatif",
    "profiling.perfetto",
    "profiling.compare",
    "profiling.workers",
    "profiling.blame",
    "profiling.verdict",
    "errors",
    "defaults",
    "seeding",
    "on_error",
    "pack.options",
    "pack.listing",
    "pack.pixels",
    "pack.encoding",
    "pack.description",
    "philox",
    "order",
    "shard",
    "sampling",
    "epochs",
    "work",
    "layout",
    "transforms.draws",
    "transforms.base",
    "batch_keys",
    "nesting",
    "fusion.recognition",
    "fusion.sources",
    "fusion.stages",
    "fusion.plan",
    "fusion.parameters",
    "verification.hashing",
    "verification.plan",
    "verification.report",
    "tune.settings",
    "tune.intervals",
    "tune.search",
    "tune.report",
]
IMPURE = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "queue",
    "select",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
}


def modules() -> dict[str, Path]:
    """Return all modules of the package but its door, by their names within it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts:
            found[".".join(parts)] = path
    return found


MODULES = modules()


class _Imports(ast.NodeVisitor):
    """Collects what a module imports, at its top level and inside of functions."""

    def __init__(self, name: str, path: Path) -> None:
        self.top: set[str] = set()
        self.inner: set[str] = set()
        self._depth = 0
        package = name.split(".")
        self._package = package if path.name == "__init__.py" else package[:-1]
        self.visit(ast.parse(path.read_text(encoding="utf-8")))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef  # type: ignore[assignment]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            base = ["fastload", *self._package[: len(self._package) - (node.level - 1)]]
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
        else:
            module = node.module or ""
        for alias in node.names:
            inside = f"{module}.{alias.name}".removeprefix("fastload.")
            self._add(f"fastload.{inside}" if module.split(".")[0] == "fastload" and inside in MODULES else module)

    def _add(self, name: str) -> None:
        (self.inner if self._depth else self.top).add(name)


IMPORTS = {name: _Imports(name, path) for name, path in MODULES.items()}


def ours(names: set[str]) -> set[str]:
    """Return the modules of this package among these, without its name."""
    return {name.removeprefix("fastload.") for name in names if name.split(".")[0] == "fastload"}


def test_every_module_has_its_place_in_the_order():
    assert sorted(MODULES) == sorted(ORDER)


def test_modules_import_only_from_those_before_them():
    for name in MODULES:
        later = ours(IMPORTS[name].top) - set(ORDER[: ORDER.index(name)])
        assert not later, f"{name} imports {sorted(later)}, which come later"


def test_functions_import_later_modules_only_where_that_is_meant():
    later = {
        (name, imported) for name in MODULES for imported in ours(IMPORTS[name].inner) - set(ORDER[: ORDER.index(name)])
    }
    assert later == MAY_IMPORT_LATER


def test_no_module_comes_in_by_the_packages_own_door():
    assert [name for name in MODULES if "fastload" in ours(IMPORTS[name].top | IMPORTS[name].inner)] == []


def test_pure_modules_have_no_threads_clocks_or_processes():
    for name in PURE:
        imports = IMPORTS[name].top | IMPORTS[name].inner
        found = {module.split(".")[0] for module in imports} & IMPURE
        found |= ours(imports) & {"slots", "workers", "delivery", "workers.processes"}
        assert not found, f"{name} imports {sorted(found)}"


@pytest.mark.parametrize("name", ["inject.fastload_hook", "inject.sitecustomize", "targets", "cli"])
def test_what_every_process_runs_imports_only_the_standard_library(name):
    for module in IMPORTS[name].top:
        root = module.split(".")[0]
        assert root in sys.stdlib_module_names or module in (
            "fastload_hook",
            "fastload.inject.fastload_hook",
            "fastload.targets",
        )


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "code",
    [
        "import fastload",
        "import fastload.cli",
        "import fastload.errors",
        "import sys; sys.argv = ['fastload', '--help']; import fastload.cli; fastload.cli.main()",
        "import sys; sys.argv = ['fastload', 'run', '--help']; import fastload.cli; fastload.cli.main()",
        "import sys; sys.argv = ['fastload', 'pack', '--help']; import fastload.cli; fastload.cli.main()",
        "import sys; sys.argv = ['fastload', '--version']; import fastload.cli; fastload.cli.main()",
        "import sys; sys.argv = ['fastload']; import fastload.cli; fastload.cli.main()",
    ],
)
def test_the_command_line_does_not_import_torch(code):
    watch = (
        "import atexit, sys; heavy = {'torch', 'numpy', 'rich', 'pyarrow', 'PIL'}\n"
        "atexit.register(lambda: print('heavy:', heavy & set(sys.modules)))\n"
    )
    done = python(watch + code)
    assert done.stdout.endswith("heavy: set()\n"), done.stdout + done.stderr


@pytest.mark.interpreter
def test_the_engine_imports_no_library_that_it_does_not_need():
    done = python(
        "import fastload, sys, fastload.transforms; fastload.DataLoader([1]); "
        "print(sorted({'torch._dynamo', 'sympy', 'triton', 'torchvision', 'PIL', 'accelerate', 'lightning', "
        "'pytorch_lightning', 'transformers', 'timm', 'rich', 'IPython'} & set(sys.modules)))"
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["num_workers=1", "num_workers=1, worker_method='thread'"])
def test_an_iterator_that_outlives_all_modules_ends_without_a_word(arguments):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import fastload, torch\n"
            f"iterator = iter(fastload.DataLoader(torch.arange(100), {arguments}))\n"
            "next(iterator)\n"
            "torch.kept = iterator  # a module that goes after this one",
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


# What a plain loader with two workers may run, so that it can be read: see DESIGN.md.
MOST_FILES = 30
MOST_LINES = 8_000

# Notes every file of the package in which a function or class body runs, in the script's process and its workers.
_TRACED = """
import os, sys, threading, pathlib
folder, root = pathlib.Path(sys.argv[1]), sys.argv[2]
files = set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
        files.add(code.co_filename)

def write():
    (folder / str(os.getpid())).write_text("\\n".join(files))

def leave(code, leave=os._exit):
    write()
    leave(code)

os._exit = leave  # workers end by it
import torch
sys.setprofile(note)
threading.setprofile(note)
import fastload

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.values = torch.randn(100, 3)
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return self.values[index]

loader = fastload.DataLoader(Samples(), 8, shuffle=True, num_workers=2, seed=1, multiprocessing_context="fork")
assert len(list(loader)) == 13
del loader
sys.setprofile(None)
write()
"""


@pytest.mark.interpreter
def test_a_plain_loader_runs_few_files_and_lines(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _TRACED, str(tmp_path), str(PACKAGE)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    traces = list(tmp_path.iterdir())
    assert len(traces) == 3, "the script's process and two workers"
    files = sorted({name for trace in traces for name in trace.read_text().split()})
    lines = {name: len(Path(name).read_text(encoding="utf-8").splitlines()) for name in files}
    told = "\n".join(f"{number:5} {name}" for name, number in lines.items())
    assert (len(files) <= MOST_FILES, sum(lines.values()) <= MOST_LINES) == (True, True), told


@pytest.mark.interpreter
@pytest.mark.slow
def test_a_plain_loader_imports_no_feature_that_it_does_not_use():
    unused = ["adapters", "at_exit", "device", "exit_report", "moving", "on_error", "page_lock", "pinning", "resident"]
    unused += ["state", "transforms", "workers.routing", "workers.threads"]
    done = python(
        "import fastload, sys, torch\n"
        "loader = fastload.DataLoader(torch.arange(9), num_workers=1, seed=1, multiprocessing_context='fork')\n"
        "list(loader), list(fastload.DataLoader(torch.arange(9)))\n"
        f"print([name for name in {unused} if 'fastload.' + name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr
