"""Which settings make a loader fastest here: tried on the user's own loader, and compared bit for bit.

::

    loader ─> setting ─> trials (in turns, several rounds) ─> the fastest ─> against the present ones again ─> report

Only settings whose batches equal the present ones, under one seed, are recommended, and only if they are faster by more
than the noise. No training step is run, and no object of the user's is changed: every run works on a copy.
"""
