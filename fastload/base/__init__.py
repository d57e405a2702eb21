"""What every other package may use: torch's private names, the interpreter's end, memory, terminals.

In: nothing of this project but its errors. Out: functions without state of a loader. :mod:`.compat` has everything
that depends on torch's version; :mod:`.nesting` walks through batches, :mod:`.objects` through datasets, by
:mod:`.walking`, and :mod:`.copies` copies these; :mod:`.memory` and :mod:`.cgroups` say what the machine has. Add a
module here only if at least two packages need it.
"""
