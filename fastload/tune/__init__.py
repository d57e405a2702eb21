"""``fastload tune``: which settings make a loader fastest on this machine, with the same batches.

::

    loader ─> setting ─> trials (in turns, several rounds) ─> the fastest ─> against the present ones again ─> report

A setting is recommended only if it gives the present batches, bit for bit, under one seed, and is faster by more than
the noise. No training step is run, and no object of the user's is changed: every run works on a copy. To try another
argument, add it to :mod:`.settings`.
"""
