"""What is kept of files from the first epoch on, in memory that the workers of a machine share: ``DataLoader(cache=)``.

::

    open file ─> key ─> found: the record of its coefficients ──────────────┐
                    └─> else read, a record is made of it, and kept ────────┴─> decoded as far as pixels are needed

:mod:`.store` is the memory: entries by their keys. :mod:`.records` knows what an entry is. :mod:`.shared` has the one
cache of a process. What decodes files asks for them: :mod:`fastload.late.source`,
:mod:`fastload.late.arrays` and :mod:`fastload.fusion.sources`.
"""
