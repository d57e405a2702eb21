"""One way to measure: what a sample costs and where that time goes, what a loop loses to data, how fast a setting is.

::

    worker: StageClock ─stages of some tasks─┐
    loop:   next() begins, ends ─────────────┴─> Measurement ─> numbers and words: statistics(), explain(), callbacks
    tune, verify: rate_of(batches) ─> Rate: batches a second, processor time, what other programs used meanwhile

Every loader always has a :class:`~.measurement.Measurement`: it costs less than 1 % of an epoch.
"""
