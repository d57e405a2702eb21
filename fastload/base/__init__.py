"""Helpers that every other package may use: torch's private names, interpreter exit, memory, terminals.

They import nothing of this project but its errors, and keep no state of a loader. :mod:`.compat` has all that
depends on torch's version; :mod:`.nesting` walks through batches, :mod:`.objects` through datasets, by
:mod:`.walking`, and :mod:`.copies` copies these; :mod:`.memory` and :mod:`.cgroups` say what the machine has. Add a
module here only if at least two packages need it.
"""
