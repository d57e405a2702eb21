"""Writes docs/command-line.md from the command line's parser: ``python tests/documentation/command_line_page.py``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from fastload import cli

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"

INTRODUCTION = """\
---
search:
  boost: 0.5
---

# Command line

`python -m fastload` is the same command, for an interpreter that you name. `fastload COMMAND --help` has examples.

| command | what it does |
| --- | --- |
"""

# Where more is said about a command.
MORE = {
    "run": "[Replace a loader](replace.md#without-editing-the-script)",
    "verify": "[Verify](verify.md)",
    "profile": "[Profile](profile.md)",
    "report": "[Recordings again](profile.md#recordings-again)",
    "compare": "[Recordings again](profile.md#recordings-again)",
    "pack": "[Packs](images.md#packs)",
    "unpack": "[Packs](images.md#packs)",
    "explain": "[Which setting when](settings.md). Targets: [as for verify](#fastload-verify)",
    "tune": "[Tune](tune.md). Targets: [as for verify](#fastload-verify)",
    "doctor": "[Install](install.md#check-the-installation)",
}

ENVIRONMENT = """\
## Variables of the environment

| variable | what it does |
| --- | --- |
| `FASTLOAD_INSTALL=1` | set by `fastload run`: fastload's loader is put in place of torch's |
| `FASTLOAD_LOADER=fuse=true,seed=1` | defaults of fastload's own arguments |
| `FASTLOAD_REPORT=1` | as `fastload run --report` |
| `FASTLOAD_OVERRIDES=0` | [no function](how-it-works.md#functions-of-other-libraries) of another library is replaced |
| `FASTLOAD_NATIVE=0` | the C library is left aside |
| `FASTLOAD_NATIVE=avx2` | ... or uses no newer instructions: `plain`, `avx2`, `avx512`, with the same results |
| `FASTLOAD_TRITON=0` | the Triton kernel is left aside |
| `FASTLOAD_NVTX=1` | the device stage names its parts for Nsight Systems: see [Traces](device.md#traces) |
| `FASTLOAD_TRANSPORT=pipes` | pipes in place of shared memory, as on systems other than Linux |
"""


def render() -> str:
    """Return the page."""
    parser, verbs = cli._parsers()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    summaries = {str(one.dest): one.help or "" for one in commands._choices_actions}
    rows = [f"| [`fastload {name}`](#fastload-{name}) | {summaries[name]} |" for name in verbs]
    rows.append("| `fastload --version` | print the version and exit |")
    parts = [INTRODUCTION + "\n".join(rows) + "\n"]
    parts += [_section(name, verb) for name, verb in verbs.items()]
    return "\n".join([*parts, ENVIRONMENT])


def _section(name: str, verb: argparse.ArgumentParser) -> str:
    # What else --help says stands on the page that is named; three commands take the same targets.
    summary = " ".join((verb.description or "").strip().partition("\n\n")[0].split())
    lines = [f"## fastload {name}", "", summary, "", f"More: {MORE[name]}.", ""]
    usage = verb.usage or f"fastload {name} [OPTION ...] {' '.join(map(_words, _positionals(verb)))}".rstrip()
    lines += ["```text", f"usage: {usage}", "```", ""]
    for group in verb._action_groups:
        actions = [one for one in group._group_actions if one.help is not argparse.SUPPRESS and one.dest != "help"]
        if actions:
            if group.title not in ("options", "positional arguments"):
                lines += [f"{_capital(group.title or '')}:", ""]
            lines += [
                "| option | meaning |" if actions[0].option_strings else "| argument | meaning |",
                "| --- | --- |",
            ]
            lines += [f"| `{_cell(_words(one))}` | {_cell(_help(one))} |" for one in actions] + [""]
    left_out = ("examples:",) if name == "verify" else ("examples:", "targets:")
    parts = [part for part in (verb.epilog or "").strip("\n").split("\n\n") if not part.startswith(left_out)]
    if any(parts):
        lines += ["```text", "\n\n".join(parts), "```", ""]
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _positionals(verb: argparse.ArgumentParser) -> list[argparse.Action]:
    return [one for one in verb._actions if not one.option_strings]


def _words(action: argparse.Action) -> str:
    """Return an option with its value, or the name of an argument."""
    value: Any = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return str(value)
    words = ", ".join(action.option_strings)
    return words if action.nargs == 0 else f"{words} [{value}]" if action.nargs == "?" else f"{words} {value}"


def _help(action: argparse.Action) -> str:
    return re.sub(r"%\(default\)s", str(action.default), action.help or "").replace("%%", "%")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
