"""An ImageFolder tree, encoded once into a few Arrow files, and the dataset that reads them from memory maps.

::

    SRC ─listing─> parts of consecutive images ─workers─> encoding ─> part-00000-of-00002.arrow ─┐
                                                                      pack.json ─────────────────┴─> PackedImages

``fastload pack`` writes (:mod:`~fastload.pack.command`), :class:`~fastload.pack.dataset.PackedImages` reads. Nothing is
imported here, so that the command line prints its help without pyarrow, Pillow and torch.
"""
