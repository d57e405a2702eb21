"""Markers in a document, and what stands between them. Text in, text out.

A table, on lines of their own:

    <!-- figures: NAME -->
    <!-- end of figures -->

A single figure, within a sentence: ``<!-- figure: NAME -->2.4<!-- end -->``. In blocks of code they mean nothing.
"""

import re
from collections.abc import Callable, Mapping

_FENCED = re.compile(r"(^(?P<fence>```+|~~~+)[^\n]*\n.*?^(?P=fence)[ \t]*$)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(
    r"^<!-- figures: (?P<name>[\w-]+) -->\n(?:(?P<body>(?:(?!^<!-- (?:end of )?figures).)*)^)?<!-- end of figures -->$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"<!-- figure: (?P<name>[\w-]+) -->(?P<body>(?:(?!<!--).)*)<!-- end -->")
_LEFT_OVER = re.compile(r"<!-- (?:end of )?figures?\b[^>\n]*-->|<!-- end -->")

_TYPED = re.compile(
    r"""(?<![\w.,-])(?:\d[\d,]*(?:\.\d+)?)    # a number ...
        (?:x\b|[ ]?%|[ ](?:times|ms|µs|us|ns)\b|[ ](?:images|samples|batches)(?:/s|[ ](?:a|per)[ ]second))
      | (?<![\w.,/-])\d+\.\d+[ ]of\b          # ... or a part, "0.55 of the time"
    """,
    re.VERBOSE,
)


class BadMarker(ValueError):
    """A marker has no partner, or names what is not there."""


def render(text: str, blocks: Mapping[str, Callable[[], str]], figures: Mapping[str, Callable[[], str]]) -> str:
    """Return the document with everything between markers made anew, and the rest as it was."""
    parts, place = [], 0
    for fenced in _FENCED.finditer(text):
        parts += [_render(text[place : fenced.start()], blocks, figures, text.count("\n", 0, place)), fenced[0]]
        place = fenced.end()
    return "".join([*parts, _render(text[place:], blocks, figures, text.count("\n", 0, place))])


def _render(
    text: str, blocks: Mapping[str, Callable[[], str]], figures: Mapping[str, Callable[[], str]], line: int
) -> str:
    def made(of: Mapping[str, Callable[[], str]], match: re.Match[str]) -> str:
        if match["name"] not in of:
            where = line + text.count("\n", 0, match.start()) + 1
            raise BadMarker(f"line {where}: nothing is called {match['name']!r}; there are {', '.join(sorted(of))}")
        return of[match["name"]]()

    for found in _LEFT_OVER.finditer(_blank(text)):
        where = line + text.count("\n", 0, found.start()) + 1
        raise BadMarker(f"line {where}: {found[0]} has no partner, or the pair is not written as markers are")
    text = _BLOCK.sub(
        lambda m: f"<!-- figures: {m['name']} -->\n\n{made(blocks, m).strip()}\n\n<!-- end of figures -->", text
    )
    return _INLINE.sub(lambda m: f"<!-- figure: {m['name']} -->{made(figures, m)}<!-- end -->", text)


def _blank(text: str) -> str:
    """Replace what is rendered, markers included, by as many lines."""

    def lines_of(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _INLINE.sub(lines_of, _BLOCK.sub(lines_of, text))


def typed_figures(text: str) -> list[tuple[int, str]]:
    """Return the measured figures that stand in prose, outside of markers and of code: line and words of each.

    What counts is a number with a unit of speed, of a share or of a short time ("2.4 times", "0.7 ms", "82 %"), not a
    number alone, as in "in 30 seconds" or "Python 3.11".
    """
    without_code = _FENCED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    without_code = re.sub(r"`[^`\n]*`", lambda match: " " * len(match[0]), _blank(without_code))
    return [(without_code.count("\n", 0, found.start()) + 1, found[0]) for found in _TYPED.finditer(without_code)]
