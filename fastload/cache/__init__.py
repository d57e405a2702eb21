"""``DataLoader(cache=)``: records of image files, in memory or on a disk that workers share, from the first epoch on.

::

    open file ─> key ─> found: the record of its coefficients ──────────────┐
                    └─> else read, a record is made of it, and kept ────────┴─> decoded as far as pixels are needed

:mod:`.record_file` has the records, in a memory file or in a folder (:mod:`.disk`); :mod:`.store` finds them by keys.
:mod:`.kinds` knows the forms of records, those of packs too; :mod:`.records` makes and keeps those of files.
:mod:`.request` reads a loader's arguments. :mod:`.shared` has the one cache of a process, and :mod:`.ranks` the memory
files that ranks of a machine share. What decodes files asks for them: :mod:`fastload.late.source`,
:mod:`fastload.late.arrays` and :mod:`fastload.fusion.sources`.
"""
