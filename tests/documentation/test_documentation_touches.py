"""The page of what fastload changes in a process: its table, and that a plain loader changes nothing."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fastload.base import overrides

PAGES = Path(__file__).parents[2] / "docs"

# Prints what a plain loader has replaced of the names that it gets, after each batch.
PLAIN = """
import json, pkgutil, random, sys
import numpy.random
import torch
import fastload

def present():
    found = {}
    for library, owner, name in json.loads(sys.argv[1]):
        if library in sys.modules:
            place = pkgutil.resolve_name(owner)
            ours = place.values() if isinstance(place, dict) else [getattr(place, name)]
            found[owner, name] = [*map(id, ours)]
    return found

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.tensor(index) ** 2

before = present()
print(len(before))
for options in ({"num_workers": 2}, {"num_workers": 2, "seed": 1, "persistent_workers": True}):
    for batch in fastload.DataLoader(Squares(), 8, shuffle=True, **options):
        now = present()
        print([name for name in now if now[name] != before.get(name)])
"""


def test_the_table_is_that_of_the_overrides():
    made = runpy.run_path(str(PAGES / "touches.py"))
    assert (PAGES / "touches.md").read_text() == made["rendered"](), "run: python docs/touches.py"


@pytest.mark.interpreter
def test_a_plain_loader_leaves_each_name_of_the_table_as_it_was():
    names = [(one.library, one.owner, one.name) for _, one in overrides.table() if one.name != "manual_seed"]
    command = [sys.executable, "-c", PLAIN, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    number, *replaced = done.stdout.splitlines()
    assert int(number) > 30, "random and torch are imported"
    assert replaced == ["[]"] * 6
