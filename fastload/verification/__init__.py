"""``fastload verify``: whether a loader gives the same bits however it is run, and if not, which stage differs.

::

    target ─> subject ─> plan ─> record (twice) ─> compare ─> culprit ─> report

A subject is a loader taken apart, so that it can be built again with other settings; a record is the batches of one
such loader, as hashes. No stage changes an object of the user's: every run works on a copy. To add a check, add a pair
of settings to :mod:`.plan`.
"""
