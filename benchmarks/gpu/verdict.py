"""Say what became of the tests and of each goal, one line each: ``python -m benchmarks.gpu.verdict FOLDER [case ...]``.

Reads the folder of all.sh, with ``benchmarks.jsonl`` and the reports of the tests, and is told which parts did not end
well. The status is 1 if a goal is not met, undecided or not measured, or a test failed. Imports nothing that has to be
installed, so that there is a verdict whatever is missing.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.catalogue import ALL

# Report of pytest -> the part of all.sh that writes it.
_REPORTS = {
    "parallel.xml": "tests in parallel",
    "serial.xml": "tests one by one",
    "sanitizer.xml": "tests under the sanitizer",
}
_MOST_NAMES = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.verdict", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="case", help="cases or subjects that were asked for; all if none")
    parser.add_argument("--ended", action="append", default=[], metavar="PART=HOW", help="a part that did not end well")
    parser.add_argument("--parts", default="tests,benchmarks", help="those that were to run")
    options = parser.parse_args()
    ended = dict(part.split("=", 1) for part in options.ended)
    lines, passed = verdict(options.folder, options.names, ended, options.parts.split(","))
    print("\n".join(lines))
    return 0 if passed else 1


def verdict(
    folder: Path, names: Sequence[str], ended: Mapping[str, str], parts: Sequence[str]
) -> tuple[list[str], bool]:
    """Return the lines, and whether every test passed and every goal that is judged is met, of these parts."""
    lines, passed = [], True
    for report, part in _REPORTS.items() if "tests" in parts else ():
        line, well = _tests(folder / report)
        lines.append("; ".join([f"{part}: {line}", *([ended[part]] if part in ended else [])]))
        passed &= well and part not in ended
    results = _results(folder / "benchmarks.jsonl")
    reasons = [f"{part}: {ended[part]}" for part in ("machine", "benchmarks") if part in ended]
    for case in ALL if "benchmarks" in parts else ():
        if names and not case.name.startswith(tuple(names)):
            continue
        if case.name not in results:
            lines.append(f"goal  {case.name}: not measured: {'; '.join(reasons) or 'no result'}")
            passed = False
        for goal in results.get(case.name, {"goals": []})["goals"]:
            lines.append(f"goal  {case.name}: {goal['what']} | {goal['found']} | goal {goal['words']} | {goal['met']}")
            passed &= goal["met"].startswith(("met", "not judged"))
    return lines, passed


def _tests(report: Path) -> tuple[str, bool]:
    """Return what a report of pytest says, and whether all is well."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return "no report", True  # if there should be one, the part did not end well
    num, num_failed, num_errors, num_skipped = (
        sum(int(suite.get(kind, 0)) for suite in suites) for kind in ("tests", "failures", "errors", "skipped")
    )
    bad = [
        f"{case.get('classname')}::{case.get('name')}"
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    num_passed = num - num_failed - num_errors - num_skipped
    text = f"{num_passed} passed, {len(bad)} failed, {num_skipped} skipped, in {seconds:.0f} s"
    if bad:
        more = f" and {len(bad) - _MOST_NAMES} more" if len(bad) > _MOST_NAMES else ""
        text += f": {', '.join(bad[:_MOST_NAMES])}{more}"
    return text, not bad


def _results(file: Path) -> dict[str, Any]:
    """Return the last result of each case. A last line that is not whole is left out."""
    found: dict[str, Any] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        found[result["case"]] = result
    return found


if __name__ == "__main__":
    sys.exit(main())
