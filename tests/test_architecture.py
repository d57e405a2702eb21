"""Imports go one way; the command line stays light; the interpreter's end is borne."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastload

PACKAGE = Path(fastload.__file__).parent

# Data meets the packages, and the modules beside them, in this order; each imports only from itself and those before.
# fmt: off
ORDER = [
    "inject", "errors", "base", "observe", "measurement", "work", "native", "keys", "sampling", "stages", "options",
    "buffers", "cache", "late", "tables", "spec", "workers", "transforms", "device", "pack", "images", "fusion",
    "engine", "run.result_file", "run.exit_report", "run.defaults", "run.adapters", "loader", "tokens", "run",
    "images.dali", "profiling", "callbacks", "verification", "tune", "explain", "doctor", "testing", "cli", "__main__",
    "inject.sitecustomize",
]
# fmt: on

# Plain data and functions: tested with thousands of random cases, so without threads, clocks, processes or sockets.
# fmt: off
PURE = [
    "profiling.trace", "profiling.schema", "profiling.formatting", "profiling.dominant",
    "profiling.bounds", "profiling.perfetto", "profiling.compare", "profiling.workers", "profiling.blame",
    "profiling.verdict", "errors", "run.defaults", "keys.seeding", "workers.on_error", "pack.listing", "pack.encoding",
    "pack.description", "keys.philox", "keys.rng", "sampling.order", "sampling.permuting", "sampling.distributed",
    "sampling.distributed_orders", "sampling.samplers", "sampling.packs", "sampling.packed_order",
    "sampling.quotas", "sampling.mixture", "sampling.mixture_order", "sampling.mixture_states",
    "sampling.epochs", "work", "stages", "buffers.layout",
    "tables.arrow", "tables.hugging_face", "transforms.draws", "transforms.base", "device.batch_keys",
    "base.nesting", "fusion.transforms", "fusion.sources", "fusion.plan", "verification.hashing",
    "verification.plan", "verification.report", "tune.settings", "tune.search", "tune.report",
]
# fmt: on
IMPURE = {"asyncio", "concurrent", "multiprocessing", "queue", "select", "signal", "socket", "subprocess"}
IMPURE |= {"threading", "time"}


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


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


class _Imports(ast.NodeVisitor):
    """Collects what a module imports, at its top level and inside of functions."""

    def __init__(self, name: str) -> None:
        self.top: set[str] = set()
        self.inner: set[str] = set()
        self._depth = 0
        package = name.split(".")
        self._package = package if MODULES[name].name == "__init__.py" else package[:-1]
        self.visit(tree_of(name))

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


@functools.cache
def imports_of(name: str) -> _Imports:
    return _Imports(name)


def ours(names: set[str]) -> set[str]:
    """Return the modules of this package among these, without its name."""
    return {name.removeprefix("fastload.") for name in names if name.split(".")[0] == "fastload"}


def unit(name: str) -> str:
    """Return the place of ``ORDER`` that a module belongs to."""
    return next(one for one in sorted(ORDER, key=len, reverse=True) if f"{name}.".startswith(f"{one}."))


def test_packages_import_only_from_those_before_them():
    later = {
        (name, imported)
        for name in MODULES
        for imported in ours(imports_of(name).top | imports_of(name).inner) - {"fastload"}
        if ORDER.index(unit(imported)) > ORDER.index(unit(name))
    }
    assert later == set()


def test_no_modules_import_each_other():
    imports = {name: ours(imports_of(name).top | imports_of(name).inner) - {name} for name in MODULES}
    graphlib.TopologicalSorter(imports).prepare()


def test_no_module_comes_in_by_the_packages_own_door():
    assert [name for name in MODULES if "fastload" in ours(imports_of(name).top | imports_of(name).inner)] == []


def test_every_public_method_has_a_docstring_or_inherits_one():
    classes: dict[str, list[ast.ClassDef]] = {}
    for module in MODULES:
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def is_documented(name: str, method: str) -> bool:
        for one in classes.get(name, []):
            own = [node for node in one.body if isinstance(node, ast.FunctionDef) and node.name == method]
            if any(map(ast.get_docstring, own)):
                return True
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in one.bases]
            if any(isinstance(base, ast.Name) and is_documented(base.id, method) for base in bases):
                return True
        return False

    public = [node for name in classes if not name.startswith("_") for node in classes[name]]
    methods = [(one.name, node.name) for one in public for node in one.body if isinstance(node, ast.FunctionDef)]
    assert [one for one in methods if not one[1].startswith("_") and not is_documented(*one)] == []


@functools.cache
def bound_in(name: str) -> set[str]:
    """Return the names that a module binds, in its classes and functions too."""
    found = set()
    for node in ast.walk(tree_of(name)):
        match node:
            case ast.FunctionDef(name=one) | ast.ClassDef(name=one) | ast.Name(id=one, ctx=ast.Store()):
                found.add(one)
            case ast.Attribute(attr=one, ctx=ast.Store()):
                found.add(one)
            case ast.alias(name=one, asname=other):
                found.add((other or one).split(".")[0])
    return found


@functools.cache
def bound_anywhere() -> set[str]:
    return set().union(*map(bound_in, MODULES))


def is_there(target: str, name: str) -> bool:
    """Return whether a module, or what it has, is where a docstring of the module ``name`` says.

    Of a member of a class it is only checked that some class has one of this name.
    """
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    dots = len(target) - len(target.lstrip("."))
    first, *rest = target.lstrip(".").split(".")
    if dots:
        rest = [*package[: len(package) - dots + 1], first, *rest]
    elif first != "fastload":
        is_ours = first in bound_in(name) and bound_anywhere().issuperset(rest)
        return is_ours or first in ("torch", "torchvision", "PIL", "numpy")
    module = next((".".join(rest[:end]) for end in range(len(rest), 0, -1) if ".".join(rest[:end]) in MODULES), "")
    left = rest[len(module.split(".")) :] if module else rest
    names = bound_in(module) if module else fastload.__all__
    return not left or (left[0] in names and bound_anywhere().issuperset(left[1:]))


def test_few_functions_get_all_that_a_loader_was_asked_for():
    whole, found = {"Spec", "Options", "Decisions", "Given"}, []
    for name in MODULES.keys() - {"workers.ray.relay"}:  # whose options are Ray's
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.FunctionDef):
                kinds = {ast.unparse(one.annotation) for one in node.args.args if one.annotation is not None}
                found += [f"{name}.{node.name}"] if kinds & whole else []
    assert len(found) <= 10, sorted(found)


def test_what_docstrings_refer_to_is_there():
    role = re.compile(r":(?:class|func|mod|meth|attr|data|exc):`~?([^`\s]+)`")
    found = {(name, one) for name, path in MODULES.items() for one in role.findall(path.read_text(encoding="utf-8"))}
    assert [(name, target) for name, target in sorted(found) if not is_there(target, name)] == []


def test_no_docstring_begins_with_a_fragment_or_an_indirect_question():
    fragment = re.compile(r"\s*(Of|What|Whether)\b|(?s:.*\n)?\s*In: ")
    blocks = [(name, getattr(node, "body", None)) for name in MODULES for node in ast.walk(tree_of(name))]
    texts = [
        (name, one.lineno, one.value.value)
        for name, block in blocks
        for one in (block if isinstance(block, list) else [])
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
    ]
    found = [f"{name}:{line}: {text.strip()[:60]}" for name, line, text in texts if fragment.match(text)]
    assert found == [], "say what it is, what it does, when it is true (True if ...), or what is returned"


def test_pure_modules_have_no_threads_clocks_or_processes():
    for name in PURE:
        imports = imports_of(name).top | imports_of(name).inner
        found = {module.split(".")[0] for module in imports} & IMPURE
        found |= ours(imports) & {"buffers.slots", "workers", "engine.worker_source", "workers.processes"}
        assert not found, f"{name} imports {sorted(found)}"


IN_EVERY_PROCESS = ["inject.fastload_hook", "base.interrupts", "run.child", "run.result_file", "run.targets"]


@pytest.mark.parametrize("name", [*IN_EVERY_PROCESS, "inject.sitecustomize", "cli"])
def test_what_every_process_runs_imports_only_the_standard_library(name):
    own = {"fastload_hook", "fastload.inject", *(f"fastload.{one}" for one in IN_EVERY_PROCESS)}
    for module in imports_of(name).top:
        assert module.split(".")[0] in sys.stdlib_module_names or module in own


def names_read_at_the_end(module: str) -> list[str]:
    """Return which names of a module its finalizers, and the methods of their classes that these call, may read.

    They may where they ask first whether the interpreter ends.
    """
    tree, found = tree_of(module), []
    imports = [alias for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    names = {(alias.asname or alias.name).split(".")[0] for alias in imports}
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [
        node.targets if isinstance(node, ast.Assign) else [node.target]
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    ]
    names |= {target.id for some in targets for target in some if isinstance(target, ast.Name)}
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        methods: dict[str, Any] = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
        for node in kind.body:  # __del__ = close
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                methods |= {one.id: methods[node.value.id] for one in node.targets if node.value.id in methods}
        to_do, seen = ["__del__"], set()
        while to_do:
            name = to_do.pop()
            if name in seen or name not in methods:
                continue
            seen.add(name)
            inside = [node for line in methods[name].body for node in ast.walk(line)]
            called = [node.func for node in inside if isinstance(node, ast.Call)]
            asked = {getattr(one, "id", getattr(one, "attr", "")).lstrip("_") for one in called}
            if asked & {"exits", "is_finalizing"}:
                continue
            own = {argument.arg for argument in ast.walk(methods[name].args) if isinstance(argument, ast.arg)}
            own |= {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            read = {node.id for node in inside if isinstance(node, ast.Name)} & names - own
            found += [f"{kind.name}.{name} reads {one}" for one in sorted(read)]
            to_do += [one.attr for one in called if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"]
    return found


def test_finalizers_read_no_names_of_a_module_that_may_be_gone():
    found = {name: read for name in MODULES if (read := names_read_at_the_end(name))}
    assert found == {}


# What a plain loader with two workers may run from iter() to its second batch, so that it can be read.
MOST_FILES = 21
MOST_LINES = 5_250

# Notes every file of the package in which a function or class body runs then, in the script's process and its workers.
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
import fastload

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.values = torch.randn(100, 3)
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return self.values[index]

loader = fastload.DataLoader(Samples(), 8, shuffle=True, num_workers=2, multiprocessing_context="fork")
sys.setprofile(note)
threading.setprofile(note)
iterator = iter(loader)
next(iterator), next(iterator)
sys.setprofile(None)
assert len(list(iterator)) == 11
del loader, iterator
write()

loaded = {name.removeprefix("fastload.") for name in sys.modules}
print(sorted(UNUSED & loaded))
import fastload.transforms, fastload.callbacks.measure
print(sorted(LIBRARIES & set(sys.modules)))
"""
_UNUSED = {"base.at_exit", "base.copied_lists", "base.share", "buffers.packing", "callbacks", "device", "engine.state"}
_UNUSED |= {"explain", "keys.library_transforms", "keys.rng", "measurement.numbers", "measurement.rate", "run.adapters"}
_UNUSED |= {"sampling.mixture", "sampling.mixture_order", "sampling.mixture_states", "sampling.packed"}
_UNUSED |= {"sampling.packed_order", "sampling.sampler_generators"}
_UNUSED |= {"tables", "transforms", "workers.on_error", "workers.routing"}
_UNUSED |= {"workers.substitutes", "workers.tables", "workers.threads"}
_LIBRARIES = {"torch._dynamo", "sympy", "triton", "torchvision", "PIL", "accelerate", "lightning", "pytorch_lightning"}
_LIBRARIES |= {"transformers", "timm", "rich", "IPython", "tensorboard", "wandb", "datasets", "pyarrow"}


@pytest.mark.slow
def test_a_plain_loader_runs_few_files_and_lines_and_imports_nothing_that_it_does_not_need(tmp_path):
    names = f"UNUSED, LIBRARIES = {_UNUSED}, {_LIBRARIES}\n"
    done = subprocess.run(
        [sys.executable, "-c", names + _TRACED, str(tmp_path), str(PACKAGE)],
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n[]\n", "features, and libraries"
    traces = list(tmp_path.iterdir())
    assert len(traces) == 3, "the script's process and two workers"
    files = sorted({name for trace in traces for name in trace.read_text().split()})
    assert files, f"another fastload than {PACKAGE} was imported"
    lines = {name: len(Path(name).read_text(encoding="utf-8").splitlines()) for name in files}
    told = "\n".join(f"{number:5} {name}" for name, number in lines.items())
    assert (len(files) <= MOST_FILES, sum(lines.values()) <= MOST_LINES) == (True, True), told
    page = (PACKAGE.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- core -->")[2].partition("<!-- end of core -->")[0].split("`")[1::2]
    assert listed == [Path(name).relative_to(PACKAGE).with_suffix("").as_posix() for name in files]
