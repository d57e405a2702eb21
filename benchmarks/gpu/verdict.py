"""What became of the tests and of each goal, one line each: ``python -m benchmarks.gpu.verdict FOLDER [case ...]``.

In: the folder of all.sh, with ``benchmarks.jsonl`` and the reports of the tests, and which parts did not end well. Out:
lines on standard output. A goal within the interval of what was measured is undecided. The status is 1 if a goal is not
met, undecided or not measured, or a test failed. Imports nothing that has to be installed, so that there is a verdict
whatever is missing.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.gpu.catalogue import Case, chosen_cases

# Report of pytest -> the part of all.sh that writes it.
_REPORTS = {
    "parallel.xml": "tests in parallel",
    "serial.xml": "tests one by one",
    "sanitizer.xml": "tests under the sanitizer",
}
_MOST_NAMES = 20
_NOT_JUDGED = "not judged: on the CPU"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.verdict", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="case", help="cases or subjects that were asked for; all if none")
    parser.add_argument("--ended", action="append", default=[], metavar="PART=HOW", help="a part that did not end well")
    parser.add_argument("--parts", default="tests,benchmarks", help="those that were to run")
    options = parser.parse_args()
    parts = options.parts.split(",")
    ended = dict(part.split("=", 1) for part in options.ended)
    lines, passed = verdict(options.folder, options.names, ended, parts)
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
    for case in chosen_cases(names) if "benchmarks" in parts else ():
        for goal in _goals(case):
            found, met = _judged(results.get(case.name), goal, "; ".join(reasons) or "no result")
            lines.append(f"goal  {case.name}: {goal.name} | {found} | goal {goal.words} | {met}")
            passed &= met in ("met", _NOT_JUDGED)
    return lines, passed


def _tests(report: Path) -> tuple[str, bool]:
    """Return what a report of pytest says, and whether all is well."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return "no report", True  # if there should be one, the part did not end well
    count = {
        kind: sum(int(suite.get(kind, 0)) for suite in suites) for kind in ("tests", "failures", "errors", "skipped")
    }
    bad = [
        f"{case.get('classname')}::{case.get('name')}"
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    num_passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    text = f"{num_passed} passed, {len(bad)} failed, {count['skipped']} skipped, in {seconds:.0f} s"
    if bad:
        more = f" and {len(bad) - _MOST_NAMES} more" if len(bad) > _MOST_NAMES else ""
        text += f": {', '.join(bad[:_MOST_NAMES])}{more}"
    return text, not bad


def _results(file: Path) -> dict[str, Mapping[str, Any]]:
    """Return the results by the names of their cases. A last line that is not whole is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        found[result["benchmark"]] = result
    return found


class _Goal(NamedTuple):
    """What a case is to reach."""

    name: str
    words: str
    bound: float
    sides: tuple[str, ...]
    metric: str = ""
    """Empty: the ratio of two sides."""


def _goals(case: Case) -> Iterator[_Goal]:
    for one in case.comparisons:
        if one.least_ratio is not None:
            name = f"{one.ours} against {one.theirs}"
            yield _Goal(name, f">= {one.least_ratio:g}", one.least_ratio, (one.ours, one.theirs))
    for metric in case.metrics:
        for side in case.sides:
            if metric.most_value is not None and side.package == "fastload":
                name = f"{side.name}, {metric.name}"
                yield _Goal(name, f"<= {metric.most_value:g}", metric.most_value, (side.name,), metric.name)


def _judged(result: Mapping[str, Any] | None, goal: _Goal, reason: str) -> tuple[str, str]:
    if result is None:
        return "-", f"not measured: {reason}"
    if goal.metric:
        numbers = result["sides"].get(goal.sides[0], {}).get(goal.metric)
        names = ("median", "first_quartile", "third_quartile")
    else:
        found = (one for one in result["comparisons"] if (one["ours"], one["theirs"]) == goal.sides)
        numbers, names = next(found, None), ("value", "low", "high")
    if numbers is None:
        return "-", f"not measured: {_why_not(result, *goal.sides)}"
    middle, low, high = (f"{numbers[name]:.3g}" for name in names)
    reached: bool | None = numbers["reached"]
    met = _NOT_JUDGED if reached is None else "met" if reached else "not met"
    if reached is not None and numbers[names[1]] < goal.bound < numbers[names[2]]:
        met = "undecided"
    return f"{middle} ({low} to {high}), n={result['n']}", met


def is_undecided(case: Case, result: Mapping[str, Any]) -> bool:
    """Return whether the interval of a result, as in its line of JSON, contains a goal of its case."""
    return any(_judged(result, goal, "")[1] == "undecided" for goal in _goals(case))


def _why_not(result: Mapping[str, Any], *sides: str) -> str:
    """Return why one of these sides was not measured, in a line."""
    for side in sides:
        for reason in (result["skipped"].get(side), result["failed"].get(side)):
            if reason:
                return f"{side}: {reason.splitlines()[-1]}"
    return "it has no numbers"


if __name__ == "__main__":
    sys.exit(main())
