"""The names that users may rely on, pinned."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.data

import fastload
from fastload import errors

PACKAGE = Path(fastload.__file__).parent

# What our class has beside torch's.
OWN_METHODS = ["close", "explain", "failed_samples", "load_state_dict", "set_epoch", "state_dict", "statistics"]


@pytest.mark.parametrize("name", fastload.__all__)
def test_each_public_name_can_be_imported_and_has_a_docstring(name):
    value = getattr(fastload, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)
    assert name in dir(fastload)


def test_type_checkers_and_the_reference_see_each_public_name():
    for_types = next(node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {name.name for node in for_types.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == {*fastload.__all__, "__version__"}


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="DataLoadr"):
        fastload.DataLoadr  # noqa: B018


def test_our_loader_has_torchs_methods_and_ours():
    own = [
        name
        for name in vars(fastload.DataLoader)
        if not name.startswith("_") and callable(getattr(fastload.DataLoader, name))
    ]
    assert sorted(own) == OWN_METHODS
    assert not set(OWN_METHODS) & set(dir(torch.utils.data.DataLoader))


def test_torchs_arguments_have_torchs_names_kinds_order_and_defaults():
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    ours = inspect.signature(fastload.DataLoader).parameters
    expected = [(name, one.kind, one.default) for name, one in torchs.items()]
    assert [(name, ours[name].kind, ours[name].default) for name in ours if name in torchs] == expected


def test_our_errors_are_one_tree():
    for name in fastload.__all__:
        value = getattr(fastload, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, fastload.FastloadError)
            assert name in (errors.__doc__ or "")
    assert issubclass(fastload.ConfigError, ValueError)
    assert issubclass(fastload.WorkerDied, RuntimeError)
    assert issubclass(fastload.LoadTimeout, RuntimeError)
    assert issubclass(fastload.DatasetError, RuntimeError)


@pytest.mark.slow
def test_the_parts_that_documents_name_by_the_package_are_there_without_an_import_of_their_own():
    code = "import fastload; print(fastload.images.__name__, fastload.testing.__name__, fastload.transforms.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["fastload.images", "fastload.testing", "fastload.transforms"], done.stderr
