"""The reference pages have every command, every error and every public name."""

from __future__ import annotations

import inspect

import command_line_page
import pytest
from documentation_blocks import ROOT

import fastload
import fastload.images
import fastload.transforms
from fastload import errors

DOCS = ROOT / "docs"


def test_the_page_of_the_command_line_is_the_parsers() -> None:
    remedy = "python tests/documentation/command_line_page.py writes it"
    assert command_line_page.PAGE.read_text(encoding="utf-8") == command_line_page.render(), remedy


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("api.md", [f"fastload.{name}" for name in fastload.__all__]),
        ("api-transforms.md", [f"fastload.transforms.{name}" for name in fastload.transforms.__all__]),
        ("api-images.md", [f"fastload.images.{name}" for name in fastload.images.__all__]),
    ],
)
def test_every_public_name_is_in_the_reference(page: str, names: list[str]) -> None:
    pages = (DOCS / page).read_text() + (DOCS / "errors.md").read_text()
    assert [name for name in names if f"::: {name}\n" not in pages] == []


def test_every_error_is_on_its_page() -> None:
    text = (DOCS / "errors.md").read_text()
    own = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.FastloadError)]
    assert len(own) > 5
    assert [one.__name__ for one in own if f"`{one.__name__}`" not in text] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  -")[2]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


def test_what_people_search_for_is_on_a_page_of_the_site() -> None:
    words = "docker kubernetes kaggle colab jupyter wandb mlflow huggingface lmdb hdf5 parquet webp video audio s3"
    pages = [path.read_text(encoding="utf-8").lower() for path in DOCS.rglob("*.md") if path.name != "changelog.md"]
    assert [word for word in words.split() if not any(word in page for page in pages)] == []
