"""From a :class:`~fastload.spec.Spec` to the batches of one iteration.

::

    spec ─> sources: inline | delivery (workers) | resident_source ─Batch─> [pin] ─Batch─> [device] ─Batch─> iteration

In: a spec and an epoch. Out: batches in order. :mod:`.sources` opens the source, :mod:`.iteration` alone counts what
was delivered, :mod:`.state` and :mod:`.resuming` save and restore that count, :mod:`.fusing` connects
:mod:`fastload.fusion`. To add a source, implement :class:`~fastload.stages.Stage` and open it in :mod:`.sources`.
"""
