"""``fastload doctor``: what is there, what is missing, what that costs, and the command that puts it right.

::

    probes ─> child process, one probe after the other ─findings─> watching, with a time limit for each ─> page

In: this machine and what is installed. Out: a page, or JSON, and an exit status. The probes run in a process of their
own, so that one that crashes or hangs is a line of the page, and the others are still made.
"""
