"""Another version of a library may lack a private name: samples stay the same, or an error names what is missing."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from kit.comparison import difference
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload.base import overrides
from fastload.base.overrides import Override

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

cv2: Any = importlib.import_module("cv2") if importlib.util.find_spec("cv2") else None

PACKAGE = Path(fastload.__file__).parent
DOCUMENTED = {"_exit", "_fields", "_getframe", "_typeshed"}

# Without these no batch, or none of worker threads that draw, would be torch's: whoever needs one gets an error.
OF_TORCHS_ITERATOR = {"_dataset_kind", "_persistent_workers", "_profile_name", "_sampler_iter", "_shared_seed"}
OF_TORCHS_ITERATOR |= {"_world_size"}
NEEDED = {"_BaseDataLoaderIter", "_DatasetKind", "_generate_state", "_sharding_worker_init_fn", "_utils"}
OF_THREADS = {"_len_torch_function_stack", "_ops", "_python_dispatch", "_schema"}
# These are asked for by what the loaders below do not use: process groups, streams of devices, arguments.
OF_OTHERS = {"_get_default_store", "_pin_memory_device", "_timeout", "_values"}
OF_MODULES = {"_C", "_autograd", "_profiler"}
OPTIONAL = {"_RecordFunctionFast", "_are_functorch_transforms_active", "_cdata", "_children", "_extra_reducers"}
OPTIONAL |= {"_close_exclusive_fp_after_loading", "_exclusive_fp", "_get_function_stack_at", "_get_tracing_state"}
OPTIONAL |= {
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_im",
    "_indices",
    "_info",
    "_len_torch_dispatch_stack",
}
OPTIONAL |= {"_make_wrapper_subclass", "_overloadname", "_profiler_enabled", "_set_worker_signal_handlers"}
# Folders of commands, and of what other libraries' trainers read.
OF_COMMANDS = {"callbacks", "doctor", "explain", "inject", "profiling", "ray", "run", "tune", "verification"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_names() -> set[str]:
    """Return the private names that the package reads and does not bind."""
    found, bound = set(), set()
    for path in PACKAGE.rglob("*.py"):
        is_command = OF_COMMANDS & {*path.relative_to(PACKAGE).parts[:-1]} or path.name in ("cli.py", "testing.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(attr=name, ctx=ast.Load()) if not is_command:
                    found.add(name)
                case ast.ImportFrom(module=str(module), names=names, level=0) if not is_command:
                    found |= {*module.split("."), *(one.name for one in names)}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                    bound.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    bound.add(name)
    return {name for name in found - bound if is_private(name)}


def test_of_each_private_name_it_is_known_what_happens_without_it():
    known = NEEDED | OF_TORCHS_ITERATOR | OF_THREADS | OF_OTHERS | OF_MODULES | OPTIONAL | DOCUMENTED
    assert foreign_names() <= known


class Everything(Dataset[Any]):
    """Does with files what is done in another way in samples, and draws."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of_random: Callable[[], Any] = lambda: random.random()
        self.of_numpy: Callable[[], Any] = lambda: np.random.rand(2)
        last = [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
        self.first = v1.Compose([v1.RandomResizedCrop(20), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *last])
        last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]
        middle = [v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]
        self.second = v2.Compose([v2.ToImage(), *middle, *last])

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        made: list[Any] = [self.of_random(), self.of_numpy(), torch.rand(2)]
        for path in sorted(self.folder.iterdir()):
            with Image.open(path) as image:
                image = image.convert("RGB")
            enhanced = ImageEnhance.Color(image.crop((1, 2, 60, 50)).resize((40, 40))).enhance(0.5)
            made += [self.first(image), self.second(image), np.array(enhanced)]
            made.append(torchvision.io.read_image(str(path)))
            if cv2 is not None:
                made.append(cv2.imread(str(path)))
        return made


def a_table() -> Any:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"a": [[row, row + 1] for row in range(40)], "b": [0.5] * 40})
    return table.with_format("torch").shuffle(seed=1)


def batches(kind: Any, dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(kind(dataset, 2, shuffle=True, num_workers=1, **options))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset[Any], Any, dict[str, Any]]:
    """Return two datasets, and the batches that they make."""
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    image = Image.fromarray(draw.integers(0, 256, (90, 120, 3), dtype=np.uint8))
    for name in ("0.jpg", "1.png"):
        image.save(folder / name)
    dataset, table = Everything(folder), a_table()
    seeded = batches(fastload.DataLoader, dataset, seed=1)
    return dataset, table, {
        "workers": batches(TorchLoader, dataset), "threads": seeded, "table": batches(TorchLoader, table),
    }  # fmt: skip


def outcome_in_child(do: Callable[[], str]) -> str:
    """Return what a function returns in a forked process, or the error that it raises there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # those of the parent are not there
            for one in [one for _, one in overrides.table() if one.is_installed]:
                one.undo()
            overrides.results.clear()  # other tests' comparisons, with the version that is here
            said = do()
        except BaseException:
            said = traceback.format_exc()
        os.write(writer, said.encode()[-60_000:])
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    return said


def what_differs(samples: Any, *ways: str) -> str:
    """Return in which ways batches are others; the package is imported here, as it may be another one."""
    import fastload

    dataset, table, expected = samples
    runs: dict[str, Callable[[], Any]] = {
        "workers": lambda: batches(fastload.DataLoader, dataset),
        "threads": lambda: batches(fastload.DataLoader, dataset, seed=1, worker_method="thread"),
        "table": lambda: batches(fastload.DataLoader, table),
    }
    found = {way: difference(runs[way](), expected[way]) for way in ways or runs}
    return "".join(f"{way}: {said}\n" for way, said in found.items() if said is not None)


class Without(importlib.abc.MetaPathFinder):
    """Imports the package anew, as if what other libraries call by some names had another name."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        for module in [one for one in sys.modules if one.partition(".")[0] == "fastload"]:
            del sys.modules[module]
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "fastload":
            return None
        place = PACKAGE.parent.joinpath(*fullname.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        loader = importlib.machinery.SourceFileLoader(fullname, str(file))
        if any(name in text for name in self.names):
            loader.get_code = lambda _: compile(self.renamed(text), file, "exec")  # type: ignore[method-assign]
        places = [str(place)] if place.is_dir() else None
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=places)

    def renamed(self, text: str) -> ast.Module:
        def other(dotted: str) -> str:
            return ".".join(f"{one}_of_before" if one in self.names else one for one in dotted.split("."))

        tree = ast.parse(text)
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=name):
                    node.attr = other(name)
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    node.module = other(module)
                    for one in names:
                        one.name, one.asname = other(one.name), one.asname or one.name
                case ast.Constant(value=str(value)):
                    node.value = other(value)
        return tree


def without(names: set[str], samples: Any, *ways: str) -> str:
    def run() -> str:
        Without(names)
        return what_differs(samples, *ways)

    return outcome_in_child(run)


def test_without_any_name_that_is_not_needed_batches_are_the_same(samples):
    said = without(OPTIONAL, samples)
    assert not said, said


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_without_a_name_that_is_not_needed_batches_are_the_same(name, samples):
    said = without({name}, samples)
    assert not said, said


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(NEEDED | OF_TORCHS_ITERATOR | OF_THREADS))
def test_without_a_name_that_is_needed_the_error_has_it(name, samples):
    said = without({name}, samples, *(["threads"] if name in OF_THREADS else []))
    assert f"{name}_of_before" in said
    if name in OF_THREADS:
        assert without({name}, samples, "workers", "table") == ""


@pytest.mark.parametrize(
    "override",
    [
        pytest.param(one, id=one.path, marks=[] if one.library in sys.modules else pytest.mark.thorough)
        for _, one in overrides.table()
        if one.where != overrides.LOADERS
    ],
)
def test_where_a_name_that_is_replaced_is_missing_batches_are_the_same(override: Override, samples):
    pytest.importorskip(override.library)

    def run() -> str:
        type(override).place = lambda one: (object(), "missing") if one is override else place(one)  # type: ignore[method-assign]
        reason = override.unavailable_reason() or ""
        # A version without a function is not asked for it.
        if override.path == "random.random":
            samples[0].of_random = lambda: random.uniform(0, 1)
        elif override.path == "numpy.random.rand":
            samples[0].of_numpy = lambda: np.random.random_sample(2)
        differs = what_differs(samples, *(["threads"] if override.where == overrides.THREADS else ["workers", "table"]))
        return differs if "has no" in reason or override.needs() == reason else f"it is there: {reason}"

    place = type(override).place
    said = outcome_in_child(run)
    assert not said, said
