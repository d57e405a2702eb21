"""Whether a loader gives the same bits however it is run, and if not, which stage is to blame.

::

    target ─> subject ─> plan ─> record (twice) ─> compare ─> culprit ─> report

A subject is what is to be verified, taken apart so that it can be built again under other settings; a record is what
one such loader gave, as hashes. No stage changes an object of the user's: every run works on a copy.
"""
