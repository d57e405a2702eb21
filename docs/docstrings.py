"""Docstrings of the package as Markdown, for the site's reference: a part of mkdocstrings' options in mkdocs.yml.

They are written for readers of the code: roles name objects (``:class:`DataLoader```), ``::`` begins a literal block.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(
    r":(?:class|meth|func|mod|attr|data|exc|obj):`~?\.?(?:[\w.]+ <)?([^`>]+?)>?`"
)
_LITERAL = re.compile(r"(?m)^( *)(.*?) ?::$")
_PAGE = re.compile(r"docs/([\w-]+)\.md")


def as_markdown(text: str) -> str:
    """Return a docstring without roles, with links to pages that it names.

    Literal blocks, which are indented in Markdown too, lose their marks.
    """
    text = _PAGE.sub(r"[\1](\1.md)", _ROLE.sub(r"`\1`", text))
    return _LITERAL.sub(lambda found: f"{found[1]}{found[2]}:" if found[2] else "", text)


class Docstrings(griffe.Extension):
    """Changes each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
