"""From :class:`~fastload.spec.Decisions` to the batches of one iteration.

::

    spec ─> source: inline | workers | resident ─Batch─> [pin] ─Batch─> [device] ─Batch─> iteration

Batches come out in order. :mod:`.build` makes the source and the stages behind it,
:mod:`.iteration` begins epochs and alone counts what was delivered, :mod:`.state` and :mod:`.replicas` save and restore
that count, :mod:`.fusing` connects :mod:`fastload.fusion`. To add a source, give a
dataset a method ``fastload_source(job, counts)`` that returns a :class:`~fastload.stages.Source`.
"""
