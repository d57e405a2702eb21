"""``fastload pack``: an ImageFolder tree, stored in a few Arrow files, and the dataset that reads them.

::

    SRC ─listing─> parts of consecutive images ─workers─> encoding ─> part-00000-of-00002.arrow ─┐
                                                                      pack.json ─────────────────┴─> PackedImages

:mod:`~fastload.pack.command` writes, :class:`~fastload.pack.dataset.PackedImages` reads from memory maps. Nothing is
imported here, so that the command line prints its help without pyarrow, Pillow and torch.
"""
