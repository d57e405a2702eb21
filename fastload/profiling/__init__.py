"""Records what loading data costs a training script, and explains it afterwards.

In a script's processes the hooks (:mod:`.hooks`) write records into ring files (:mod:`.ring`, :mod:`.recorder`).
Afterwards :mod:`.reader` builds a :class:`~.trace.Trace` from the files, and :mod:`.analyze` an
:class:`~.schema.Analysis` from that: :mod:`.blame` for each stalled nanosecond, a :mod:`.verdict`, and fixes with their
:mod:`.bounds`. All reports are made from the analysis, with the words of :mod:`.formatting`: :mod:`.summary`,
:mod:`.page`, :mod:`.compare`; :mod:`.perfetto` shows the steps of the trace too. To add a report, write a function
from an analysis to text, and name it in :mod:`.command`.

Importing this package imports nothing, because hooks are in processes that may never load a batch.
"""
