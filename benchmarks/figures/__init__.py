"""Figures that render themselves: measured rows to the tables, plots and single figures of the documents.

    python -m benchmarks.figures            # renders
    python -m benchmarks.figures --check    # changes nothing; shows what differs, and fails if something does

``benchmarks/rows/*.csv`` have one line a result; commands append to them with ``--rows FILE``. Of lines with the same
case, side and metric the last one counts; those before it are the history. What stands between markers in the
documents is made of them. To add a table, write a function in ``tables.py`` or ``parts.py`` and name it in
``catalogue.py``.
"""
