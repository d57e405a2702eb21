"""Records what loading data costs a training script, and explains it afterwards.

In a script's processes the hooks (:mod:`.hooks`) write records into ring files (:mod:`.ring`, :mod:`.recorder`).
Afterwards :mod:`.reader` builds a :class:`~.trace.Trace` from the files, :mod:`.analyze` the analysis: blame for each
stalled nanosecond, a verdict, predictions by simulation (:mod:`.whatif`). All reports are made from the analysis.

Importing this package imports nothing, because hooks are in processes that may never load a batch.
"""
