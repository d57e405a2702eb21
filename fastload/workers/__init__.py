"""Tasks -> rows of a batch, in processes or threads.

:mod:`.samples` loads samples, each with its own random numbers, :mod:`.fetch` writes or collates them, :mod:`.on_error`
leaves out or replaces samples that fail. :mod:`.processes` and :mod:`.threads` are the pools. To add a kind of worker,
implement :class:`.pool.Pool` in a new file and add a line to :data:`fastload.base.worker_kinds.WORKER_KINDS`.
"""
