"""``fastload doctor``: whether all that fastload needs works on this machine, and what is slower than it could be.

::

    probes.PROBES ─findings─> command (the verdict, what is not well and what mends it; or JSON, and an exit status)

A probe asks the ``unavailable_reason()`` of a part of fastload, or looks at what is installed. To add one, write a
function that yields findings, and add it to ``PROBES``.
"""
