"""``fastload explain``: how loaders work, and what ``fuse=True`` would do. And ``replay``.

In: a script, module or object. Out: a table for each loader or dataset; from :func:`fastload.replay` a sample. To add a
line about a loader, yield it in :mod:`fastload.engine.facts`.
"""
