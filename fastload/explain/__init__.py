"""``fastload explain``: how loaders work, and what ``fuse=True`` would do. And ``replay``.

To add a line about a loader, yield it in :mod:`fastload.engine.facts`.
"""
