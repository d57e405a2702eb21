"""Entry point of the command ``fastload``, outside of the package, whose files another package may overwrite.

Returns the exit status of :func:`fastload.cli.main`; 1 if another package called ``fastload`` is imported instead.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions


def main() -> int:
    """Carry out the command line, or say why that is not possible.

    Raises:
        ImportError: a module is missing, and no other package is to blame.
    """
    try:
        from fastload.cli import main as command
    except ImportError as error:
        other = others_version()
        if other is None:
            raise
        print(
            f"fastload: {error}: the package fastload {other} is installed too, and its files are imported in "
            "place of torch-fastload's. Uninstall both (pip uninstall fastload torch-fastload), then install "
            "torch-fastload again",
            file=sys.stderr,
        )
        return 1
    return command()


def others_version() -> str | None:
    """Return the version of another package called fastload that is installed; None if there is none."""
    # An installer writes RECORD; what setuptools leaves in a checkout has none.
    found = (one.version for one in distributions(name="fastload") if one.read_text("RECORD") is not None)
    return next(found, None)
