"""``fastload profile --json``: the analysis, and where the script's own output goes."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastload.profiling.schema import VERSION, Analysis

SCRIPT = """
import torch
for batch in torch.utils.data.DataLoader(list(range(400)), batch_size=2):
    pass
print("printed by the script")
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["-", "told.json"])
def test_the_analysis_is_written_as_json_and_the_scripts_output_stays_apart(tmp_path: Path, where: str):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "fastload", "profile", "--full", "--json", where, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout if where == "-" else (tmp_path / where).read_text())
    assert told["version"] == VERSION
    assert told.keys() == {field.name for field in dataclasses.fields(Analysis)}
    assert told["ranks"][0]["num_steps"] > 100
    assert ("printed by the script" in done.stderr, "VERDICT" in done.stderr) == (where == "-", where != "-")
