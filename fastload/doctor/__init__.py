"""``fastload doctor``: what works on this machine, what is missing, what that costs, and the command that mends it.

::

    probes.PROBES ─> child process, one probe after the other ─findings─> command (a page or JSON, and an exit status)

The child has a time limit for each probe, so a probe that crashes or hangs costs one line of the page. To add a probe,
write a function that yields findings, and add a line to ``PROBES``.
"""
