"""``fastload explain``: how loaders work, what ``fuse=True`` would do, what makes samples cheaper. And ``replay``.

In: a script, module or object. Out: a table for each loader or dataset, and advice that is measured on a few samples;
from :func:`fastload.replay` a sample. To add a line about a loader, yield it in :mod:`fastload.engine.facts`; to
measure another argument, add it to :mod:`fastload.tune.settings`.
"""
