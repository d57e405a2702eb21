"""``fastload explain``: how the loaders of a script work, what ``fuse=True`` would do, and what makes samples cheaper.

In: a script, module or object. Out: a table for each loader or dataset, and advice that is measured on a few samples.
"""
