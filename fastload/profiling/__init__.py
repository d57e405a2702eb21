"""What the data cost a training script: recorded in its processes, explained afterwards.

Data meet the modules in this order: hooks (in the script's processes) write records into rings (:mod:`.records`,
:mod:`.ring`, :mod:`.recorder`); afterwards :mod:`.reading` makes a :class:`~.trace.Trace` of the files, and everything
else is computed from that: what each stalled nanosecond is charged to, a verdict, predictions, reports.

Importing this package imports nothing: hooks are in processes that may never load a batch.
"""
