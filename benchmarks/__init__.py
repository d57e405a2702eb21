"""Speed and memory of fastload beside torch's own DataLoader and others, measured in one run.

A measurement goes through ``spec.py`` (what is measured: plain values), ``runner.py`` (lets the sides alternate, in
child processes), ``child.py`` and ``cases/`` (measures), ``outcome.py`` (a table, JSON, rows). ``engine.py`` is the
command; ``pipelines/``, ``peers/``, ``gpu/``, ``profiling/``, ``ray/`` and ``scaling/`` have commands of their own.

These are not tests: nothing here fails because a number is low.
"""
