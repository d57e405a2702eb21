"""Speed and memory of fastload beside torch's own DataLoader and others, measured in one run.

A family has cases (``spec.py``), functions that measure them, and a command: ``engine`` (``cases/``), ``pipelines``,
``peers`` and ``gpu``. All of them run through ``command.py`` (options), ``runner.py`` (lets the sides take turns, each
in a process: ``child.py``), ``outcome.py`` (a table, goals, JSON, rows) and ``figures`` (rows to tables and drawings).
``profiling.zoo``, ``ray``, ``versions`` and ``conformance`` count something else than speed, and write such rows too.

These are not tests: nothing here fails because a number is low.
"""
