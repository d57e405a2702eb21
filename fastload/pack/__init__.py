"""``fastload pack``: an ImageFolder tree, stored in a few files, and the dataset that reads them.

::

    SRC ─listing─> files ─threads─> encoding ─> records, index ─┐
                                                pack.json ──────┴─> PackedImages

:mod:`~fastload.pack.command` writes, :class:`~fastload.pack.dataset.PackedImages` reads. The records are a
:class:`~fastload.cache.record_file.RecordFile`. Nothing is imported here, so that the command line prints its help
without Pillow and torch.
"""
