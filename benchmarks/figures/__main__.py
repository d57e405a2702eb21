"""Render the figures of all documents: ``python -m benchmarks.figures``, from the repository's root."""

import argparse
import difflib
import functools
import sys
from pathlib import Path

from benchmarks.figures.catalogue import FIGURES, PLOTS, PROSE_WITHOUT_FIGURES, REPOSITORY, TABLES, documents
from benchmarks.figures.markers import BadMarker, render, typed_figures
from benchmarks.figures.rows import ROWS, BadRow, read_rows


def rendered(folder: Path = ROWS) -> dict[Path, str]:
    rows = read_rows(folder)
    blocks = {name: functools.partial(make, rows) for name, make in TABLES.items()}
    figures = {name: functools.partial(make, rows) for name, make in FIGURES.items()}
    found = {REPOSITORY / name: make(rows) for name, make in PLOTS.items()}
    for path in documents():
        try:
            found[path] = render(path.read_text(encoding="utf-8"), blocks, figures)
        except BadMarker as error:
            raise BadMarker(f"{path.relative_to(REPOSITORY)}, {error}") from None
    return found


def differences() -> str:
    """Return what rendering would change, as a diff; empty if nothing."""
    parts = []
    for path, text in rendered().items():
        old, name = path.read_text(encoding="utf-8") if path.exists() else "", str(path.relative_to(REPOSITORY))
        parts += difflib.unified_diff(
            old.splitlines(keepends=True), text.splitlines(keepends=True), name, f"{name}, rendered", n=1
        )
    return "".join(parts)


def typed() -> str:
    """Return where a document that must not has measured figures that nothing renders; empty if nowhere."""
    lines = []
    for name in PROSE_WITHOUT_FIGURES:
        if (REPOSITORY / name).exists():
            found = typed_figures((REPOSITORY / name).read_text(encoding="utf-8"))
            lines += [f"{name}, line {line}: {words}\n" for line, words in found]
    return "".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Render, or check; return 1 if a document differs or cannot be rendered."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; show what differs, and fail if it does")
    parser.add_argument("--list", action="store_true", help="print the names that markers may have, and end")
    options = parser.parse_args(arguments)
    if options.list:
        print(f"tables: {', '.join(TABLES)}\nsingle figures: {', '.join(FIGURES)}")
        return 0
    try:
        found = differences()
        if found and not options.check:
            for path, text in rendered().items():
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    path.write_text(text, encoding="utf-8")
                    print(f"rendered {path.relative_to(REPOSITORY)}")
    except (BadMarker, BadRow) as error:
        print(error, file=sys.stderr)
        return 1
    if options.check and found:
        print(found, "run: python -m benchmarks.figures", sep="\n")
    if by_hand := typed():
        print(f"{by_hand}measured figures belong between markers: see benchmarks/README.md", file=sys.stderr)
    return 1 if by_hand or (options.check and found) else 0


if __name__ == "__main__":
    sys.exit(main())
