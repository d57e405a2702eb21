"""What is kept of files from the first epoch on, in memory or on a disk that workers share: ``DataLoader(cache=)``.

::

    open file ─> key ─> found: the record of its coefficients ──────────────┐
                    └─> else read, a record is made of it, and kept ────────┴─> decoded as far as pixels are needed

:mod:`.store` is the memory: entries by their keys; :mod:`.disk` is the same in a file. :mod:`.records` knows what an
entry is. :mod:`.asked` reads a loader's arguments. :mod:`.shared` has the one cache of a process, and :mod:`.ranks`
hands its memory to the other ranks of the machine. What decodes files asks for them: :mod:`fastload.late.source`,
:mod:`fastload.late.arrays` and :mod:`fastload.fusion.sources`.
"""
